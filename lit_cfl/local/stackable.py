"""Whether a module's clients can train in a stack, found out on a throw-away copy."""

import copy
import warnings

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_cfl.data import Examples
from lit_cfl.local.cells import why_not_stacked, with_plain_cells
from lit_cfl.local.hooks import needs_trainer
from lit_cfl.local.plan import Precision
from lit_cfl.local.scoring import Batch, losses_of
from lit_cfl.local.steps import Steps
from lit_cfl.local.update import Update, unsupported
from lit_cfl.parameters import ParameterLayout


def obstacles(module: LightningModule, layout: ParameterLayout, examples: Examples, precision: Precision) -> list[str]:
    """Why this module can only be fitted by `trainer`; empty if it can be stacked."""
    found = needs_trainer(module)
    if found:
        return found
    optimizer = module.configure_optimizers()
    if isinstance(optimizer, Optimizer):
        found = [f"the optimizer's option {name}" for name in unsupported(optimizer)]
    found += [f"{type(layer).__name__} ({name})" for name, layer in module.named_modules() if _cannot_stack(layer)]
    found += [f"{why} ({name})" for name, layer in module.named_modules() if (why := why_not_stacked(layer))]
    if precision == "16-mixed":
        found.append("precision 16-mixed, which needs a gradient scaler")
    return found or _tried(module, layout, examples.batch(torch.arange(min(2, len(examples)))))


def _cannot_stack(layer: nn.Module) -> bool:
    """BatchNorm writes statistics while it trains."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm)


def _tried(module: LightningModule, layout: ParameterLayout, batch: Batch) -> list[str]:
    """Takes the gradients of two lanes; what fails here would fail in the run."""
    module = copy.deepcopy(module).cpu().float().train()
    parameters = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    trained = [parameters[slot.name] for slot in layout.slots if not slot.is_buffer]
    constant = [buffers[slot.name] for slot in layout.slots if slot.is_buffer]
    optimizer = module.configure_optimizers()
    if not isinstance(optimizer, Optimizer):
        raise TypeError("`needs_trainer` has refused this module already")
    inputs, labels = (_twice(part) for part in batch)
    present = torch.ones(labels.shape, dtype=torch.bool)
    try:
        losses_of(module, batch)
    except Exception:  # it cannot take the data at all: `require_trainable` says so
        return []
    steps = Steps(with_plain_cells(module), layout, Update.of(optimizer, trained))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # an operation without a rule for stacks is slow, and says so
            steps.gradients(
                tuple(_twice(p.detach()) for p in trained), tuple(_twice(b) for b in constant),
                (inputs, labels), present, torch.zeros(2, dtype=torch.int64),
            )  # fmt: skip
    except Exception as error:  # whatever a user's own module raises when it is stacked
        return [f"{type(error).__name__} in a stack: {str(error).splitlines()[0] if str(error) else ''}"]
    return []


def _twice(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor])
