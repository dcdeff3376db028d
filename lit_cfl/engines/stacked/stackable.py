"""Checks on temporary copies whether a module can be trained without `trainer`, in a loop or in a stack."""

import copy
import warnings
from collections.abc import Sequence

import torch
from lightning import LightningModule
from torch import Tensor
from torch.optim import Optimizer

from lit_cfl.engines.batch_norm import BatchNorm, has_batch_norm
from lit_cfl.engines.dropout import set_key
from lit_cfl.engines.needs_trainer import has_own_step, loss_of_step, needs_trainer, other_training_step
from lit_cfl.engines.optimizers import FunctionalOptimizer, unsupported
from lit_cfl.engines.stacked.stackable_layers import keeps_count, why_not_stacked, with_plain_cells
from lit_cfl.engines.stacked.steps import Steps
from lit_cfl.engines.step_dependence import Compute, dependence_on_history, reads_of_progress
from lit_cfl.engines.task_protocol import Batch, losses_of
from lit_cfl.errors import in_short
from lit_cfl.parameters import ParameterLayout


def reasons_for_trainer(module: LightningModule, layout: ParameterLayout, batch: Batch) -> list[str]:
    """Lists why only `trainer` can fit this module; empty if its losses and one plain optimizer suffice.

    Args:
        batch: a few examples on the CPU.
    """
    found = needs_trainer(module)
    if found:
        return found
    optimizer = module.configure_optimizers()
    if isinstance(optimizer, Optimizer) and (options := unsupported(optimizer)):
        return [f"the optimizer's option {name}" for name in options]
    found = [f"{why} ({name})" for name, layer in module.named_modules() if (why := keeps_count(layer))]
    if found:
        return found
    with torch.random.fork_rng(devices=[]):  # a module may draw numbers of its own
        return _compare_with_trainer(*_in_double(module, batch), layout)


def _compare_with_trainer(module: LightningModule, batch: Batch, layout: ParameterLayout) -> list[str]:
    """Compares steps of copies: lists what a loop of `losses` would omit or do differently from a Trainer."""
    inputs, labels = batch
    parts = [batch, (inputs[: len(labels) - 1 or 1], labels[: len(labels) - 1 or 1])]
    losses: dict[str, Compute] = {"losses": lambda own, part, number: losses_of(own, part).mean()}
    losses |= {"training_step": loss_of_step} if has_own_step(module) else {}
    for what, compute in losses.items():
        if found := reads_of_progress(module, batch, compute, what):
            return found
    try:
        gradients, after = _after_step(module, layout, batch)
        torch.manual_seed(1)
        others, _ = _after_step(module, layout, batch)
    except Exception:  # it cannot take the data at all: `require_trainable` reports it
        return []
    if found := other_training_step(module, batch):
        return found
    for what, compute in losses.items():
        if found := dependence_on_history(module, layout, parts, compute, what):
            return found
    for slot, gradient, other in zip(layout.slots, gradients, others, strict=False):  # parameters come first
        if gradient is None or other is None:  # an optimizer leaves it unchanged, without decay
            return [f"the parameter {slot.name} takes no part in the losses"]
        if not torch.equal(gradient.nan_to_num(), other.nan_to_num()):
            return ["it draws random numbers, other than by nn.Dropout"]
    normalised = tuple(f"{name}." for name, layer in module.named_modules() if isinstance(layer, BatchNorm))
    changed = [name for name, tensor in after.items() if not torch.equal(tensor, module.get_buffer(name))]
    found = [name for name in changed if not name.startswith(normalised)]
    return [f"the buffer {name} changes in training" for name in found[:1]] or _find_coupling(module, batch)


def reasons_for_no_stack(module: LightningModule, layout: ParameterLayout, batch: Batch) -> list[str]:
    """Lists why a module that does not need `trainer` cannot be stacked; empty if it can."""
    found = [f"{why} ({name})" for name, layer in module.named_modules() if (why := why_not_stacked(layer))]
    if found:
        return found
    normalised = has_batch_norm(module)
    count = 8 if normalised else 2  # the gradients of a normalised batch of two are nearly 0, and mostly rounding
    with torch.random.fork_rng(devices=[]):
        return _compare_with_plain_loop(module, layout, (batch[0][:count], batch[1][:count]))


def _in_double(module: LightningModule, batch: Batch) -> tuple[LightningModule, Batch]:
    """Copies a module in double precision, with its examples; layers in evaluation mode stay so."""
    inputs = batch[0].double() if batch[0].is_floating_point() else batch[0]
    return copy.deepcopy(module).cpu().double(), (inputs, batch[1])


def _find_coupling(module: LightningModule, batch: Batch) -> list[str]:
    """Returns the reason why an example's loss depends on others in its mini-batch (except by BatchNorm), in a list."""
    if len(batch[1]) < 2 or has_batch_norm(module):
        return []
    module = copy.deepcopy(module)
    set_key(module, 0)
    with torch.no_grad():
        alone = losses_of(module, (batch[0][:1], batch[1][:1]))
        together = losses_of(module, batch)[:1]
    same = torch.allclose(alone, together, rtol=1e-6, atol=1e-9, equal_nan=True)
    return [] if same else ["the loss of an example depends on the others of its mini-batch"]


def _compare_with_plain_loop(module: LightningModule, layout: ParameterLayout, batch: Batch) -> list[str]:
    """Compares a step of two lanes with that of a plain loop; any difference would appear in the run.

    The second lane has an example less than the first, and a place that is filled up.
    """
    module, (inputs, labels) = _in_double(module, batch)
    parts = [(inputs, labels), (inputs[: len(labels) - 1 or 1], labels[: len(labels) - 1 or 1])]
    try:
        alone = [_after_step(module, layout, part) for part in parts]
    except Exception:  # it cannot take the data at all: `require_trainable` reports it
        return []
    present = torch.ones(2, len(labels), dtype=torch.bool)
    present[1, 1:] = torch.arange(1, len(labels)) < len(labels) - 1
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # an operation without a rule for stacks is slow, and warns
            together = _take_stacked_step(
                copy.deepcopy(module), layout, (_two_lanes(inputs), _two_lanes(labels)), present
            )
    except Exception as error:  # whatever a user's own module raises when it is stacked
        return [_in_words(error)]
    lanes = [[*gradients, *after.values()] for gradients, after in alone]
    expected = torch.stack([torch.cat([part.flatten() for part in lane if part is not None]) for lane in lanes])
    same = torch.allclose(together, expected, rtol=1e-6, atol=1e-9, equal_nan=True)
    return [] if same else ["its gradients in a stack are others than alone"]


def _in_words(error: Exception) -> str:
    """Explains why a module cannot be stacked, replacing PyTorch's own wording."""
    reasons = {
        "data-dependent control flow": "it branches on the numbers in a tensor",
        ".item()": "it reads a number out of a tensor (.item())",
    }
    found = [reason for words, reason in reasons.items() if words in str(error)]
    return found[0] if found else f"in a stack it raises {in_short(error)}"


def _after_step(
    module: LightningModule, layout: ParameterLayout, batch: Batch
) -> tuple[Sequence[Tensor | None], dict[str, Tensor]]:
    """Computes the gradients of a copy of the module, and its buffers after the step."""
    module = copy.deepcopy(module)
    gradients = _gradients(module, layout, batch)
    return gradients, {slot.name: module.get_buffer(slot.name) for slot in layout.slots if slot.is_buffer}


def _gradients(module: LightningModule, layout: ParameterLayout, batch: Batch) -> Sequence[Tensor | None]:
    """Computes the gradient of the mean loss for each trainable parameter; None if the loss does not depend on it."""
    parameters = [module.get_parameter(slot.name) for slot in layout.slots if not slot.is_buffer]
    return torch.autograd.grad(losses_of(module, batch).mean(), parameters, allow_unused=True)


def _take_stacked_step(module: LightningModule, layout: ParameterLayout, batch: Batch, present: Tensor) -> Tensor:
    """Computes the gradients of each lane's mean loss, and the buffers afterwards `[2, d]`."""
    trained = [module.get_parameter(slot.name) for slot in layout.slots if not slot.is_buffer]
    constant = [module.get_buffer(slot.name) for slot in layout.slots if slot.is_buffer]
    optimizer = module.configure_optimizers()
    if not isinstance(optimizer, Optimizer):
        raise TypeError("`needs_trainer` has refused this module already")
    steps = Steps(with_plain_cells(module), layout, FunctionalOptimizer.of(optimizer, trained))
    parameters, buffers = (tuple(_two_lanes(tensor.detach()) for tensor in part) for part in (trained, constant))
    gradients, _, after = steps.gradients(parameters, buffers, batch, present, torch.zeros(2, dtype=torch.int64))
    return torch.cat([tensor.reshape(2, -1) for tensor in (*gradients, *after)], dim=1)


def _two_lanes(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor])
