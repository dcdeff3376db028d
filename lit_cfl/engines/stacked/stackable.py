"""Checks on a throw-away copy whether a module's clients can train in a stack."""

import copy
import warnings
from collections.abc import Sequence

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_cfl.data import Examples
from lit_cfl.engines.optimizers import FunctionalOptimizer, unsupported
from lit_cfl.engines.plan import Precision
from lit_cfl.engines.stacked.hooks import needs_trainer
from lit_cfl.engines.stacked.stackable_layers import why_not_stacked, with_plain_cells
from lit_cfl.engines.steps import Steps
from lit_cfl.engines.task_protocol import Batch, losses_of
from lit_cfl.parameters import ParameterLayout


def obstacles(module: LightningModule, layout: ParameterLayout, examples: Examples, precision: Precision) -> list[str]:
    """Lists why this module can only be fitted by `trainer`; empty if it can be stacked."""
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
    if found:
        return found
    with torch.random.fork_rng(devices=[]):  # a module may draw numbers of its own
        return _compare_with_plain_loop(module, layout, examples.batch(torch.arange(min(2, len(examples)))))


def _cannot_stack(layer: nn.Module) -> bool:
    """Says whether a layer is a BatchNorm, which writes statistics while it trains."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm)


def _compare_with_plain_loop(module: LightningModule, layout: ParameterLayout, batch: Batch) -> list[str]:
    """Compares the gradients of two lanes with those of a plain loop; what differs here would differ in the run.

    The first lane has two examples, the second lane one and a place that is filled up.
    """
    module = copy.deepcopy(module).cpu().double().train()
    inputs, labels = batch[0].double() if batch[0].is_floating_point() else batch[0], batch[1]
    parts = [(inputs, labels), (inputs[:1], labels[:1])]
    buffers = {slot.name: module.get_buffer(slot.name).clone() for slot in layout.slots if slot.is_buffer}
    try:
        alone = [_gradients(module, layout, part) for part in parts]
    except Exception:  # it cannot take the data at all: `require_trainable` reports it
        return []
    for found in alone:
        for slot, gradient in zip(layout.slots, found, strict=False):  # trainable parameters come first
            if gradient is None:  # an optimizer leaves it as it is, decay and all
                return [f"the parameter {slot.name} takes no part in the losses"]
    changed = [name for name, before in buffers.items() if not torch.equal(before, module.get_buffer(name))]
    if changed:
        return [f"the buffer {changed[0]} changes in training"]
    present = torch.tensor([[True, True], [True, False]])[:, : len(labels)]
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # an operation without a rule for stacks is slow, and warns
            together = _stacked_gradients(
                copy.deepcopy(module), layout, (_two_lanes(inputs), _two_lanes(labels)), present
            )
    except Exception as error:  # whatever a user's own module raises when it is stacked
        return [f"{type(error).__name__} in a stack: {str(error).splitlines()[0] if str(error) else ''}"]
    expected = torch.stack([torch.cat([g.flatten() for g in lane if g is not None]) for lane in alone])
    same = torch.allclose(together, expected, rtol=1e-6, atol=1e-9)
    return [] if same else ["its gradients in a stack are others than alone"]


def _gradients(module: LightningModule, layout: ParameterLayout, batch: Batch) -> Sequence[Tensor | None]:
    """Computes the gradient of the mean loss by each trainable parameter; None where the loss does not depend on it."""
    parameters = [module.get_parameter(slot.name) for slot in layout.slots if not slot.is_buffer]
    return torch.autograd.grad(losses_of(module, batch).mean(), parameters, allow_unused=True)


def _stacked_gradients(module: LightningModule, layout: ParameterLayout, batch: Batch, present: Tensor) -> Tensor:
    """Computes the gradients of each lane's mean loss by all trainable parameters `[2, parameters]`."""
    trained = [module.get_parameter(slot.name) for slot in layout.slots if not slot.is_buffer]
    constant = [module.get_buffer(slot.name) for slot in layout.slots if slot.is_buffer]
    optimizer = module.configure_optimizers()
    if not isinstance(optimizer, Optimizer):
        raise TypeError("`needs_trainer` has refused this module already")
    steps = Steps(with_plain_cells(module), layout, FunctionalOptimizer.of(optimizer, trained))
    parameters, buffers = (tuple(_two_lanes(tensor.detach()) for tensor in part) for part in (trained, constant))
    gradients, _ = steps.gradients(parameters, buffers, batch, present, torch.zeros(2, dtype=torch.int64))
    return torch.cat([g.flatten(1) for g in gradients], dim=1)


def _two_lanes(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor])
