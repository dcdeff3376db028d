"""Finds behaviour of a LightningModule that only the way `trainer` supports.

The checks run on temporary copies of the module.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from lightning import LightningModule
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from lit_cfl.engines.batch_norm import BatchNorm, has_batch_norm
from lit_cfl.engines.check_module import schedulers_in
from lit_cfl.engines.dropout import set_key
from lit_cfl.engines.optimizers import unsupported_options
from lit_cfl.engines.step_dependence import Compute, find_dependence_on_history, find_reads_of_progress
from lit_cfl.engines.task_protocol import Batch, losses_of
from lit_cfl.errors import InputError
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks.base import Task

T = TypeVar("T")
_FAST_OPTIMIZERS = (SGD, Adam, AdamW)
_STEP_HOOKS = (
    "backward",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)


def reasons_for_trainer(module: LightningModule, layout: ParameterLayout, batch: Batch) -> list[str]:
    """Lists why only `trainer` can fit this module; empty if its losses and one plain optimizer suffice.

    Args:
        batch: A few examples on the CPU.
    """
    found = find_unsupported(module)
    if found:
        return found
    optimizer = module.configure_optimizers()
    if isinstance(optimizer, Optimizer) and (options := unsupported_options(optimizer)):
        return [f"the optimizer's option {name}" for name in options]
    for name, layer in module.named_modules():
        # the count of batches is not part of a row, and one module trains all clients
        if isinstance(layer, BatchNorm) and layer.momentum is None:
            found.append(f"{type(layer).__name__} with momentum None, which counts batches ({name})")
    if found:
        return found
    with torch.random.fork_rng(devices=[]):  # a module may draw random numbers
        return _compare_with_trainer(*to_double(module, batch), layout)


def find_unsupported(module: LightningModule) -> list[str]:
    """Lists features of a module that only `trainer` supports, such as training hooks or several optimizers."""
    names = [name for name in dir(LightningModule) if _is_training_hook(name)]
    reasons = [f"hook {name}" for name in names if getattr(type(module), name) is not getattr(LightningModule, name)]
    if not module.automatic_optimization:
        reasons.append("manual optimization")
    try:
        configured = module.configure_optimizers()
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"configure_optimizers of {type(module).__name__} failed: {error}; fix its options") from error
    except Exception as error:  # such as a read of self.trainer, which does not exist yet
        return [*reasons, f"configure_optimizers raises {type(error).__name__} without a Trainer"]
    if not isinstance(configured, Optimizer):
        others = [f"the scheduler {type(scheduler).__name__}" for scheduler in schedulers_in(configured)]
        reasons += others or ["configure_optimizers does not return one plain optimizer"]
    elif type(configured) not in _FAST_OPTIMIZERS:
        reasons.append(f"optimizer {type(configured).__name__}")
    else:
        held = {id(parameter) for group in configured.param_groups for parameter in group["params"]}
        trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        absent = [name for name in trained if id(module.get_parameter(name)) not in held]
        reasons += [f"the optimizer does not train {absent[0]}"] if absent else []
    return reasons


def _is_training_hook(name: str) -> bool:
    others = ("validation", "test", "predict", "checkpoint", "gpu")
    return name in _STEP_HOOKS or (name.startswith("on_") and not any(other in name for other in others))


def _compare_with_trainer(module: LightningModule, batch: Batch, layout: ParameterLayout) -> list[str]:
    """Lists what a plain loop over `losses` would omit or do differently from a Trainer."""
    inputs, labels = batch
    parts = [batch, (inputs[: len(labels) - 1 or 1], labels[: len(labels) - 1 or 1])]
    losses: dict[str, Compute] = {"losses": lambda own, part, number: losses_of(own, part).mean()}
    losses |= {"training_step": _loss_of_step} if _has_own_step(module) else {}
    for what, compute in losses.items():
        if found := find_reads_of_progress(module, batch, compute, what):
            return found
    try:
        gradients, after = run_step(module, layout, batch)
        torch.manual_seed(1)
        others, _ = run_step(module, layout, batch)
    except Exception:  # the module cannot take the data: `require_trainable` reports that
        return []
    if found := _compare_training_step(module, batch):
        return found
    for what, compute in losses.items():
        if found := find_dependence_on_history(module, layout, parts, compute, what):
            return found
    for slot, gradient, other in zip(layout.slots, gradients, others, strict=False):  # parameters come first
        if gradient is None or other is None:  # an optimizer skips such a parameter, even its weight decay
            return [f"the parameter {slot.name} takes no part in the losses"]
        if not torch.equal(gradient.nan_to_num(), other.nan_to_num()):
            return ["it draws random numbers, other than by nn.Dropout"]
    normalised = tuple(f"{name}." for name, layer in module.named_modules() if isinstance(layer, BatchNorm))
    changed = [name for name, tensor in after.items() if not torch.equal(tensor, module.get_buffer(name))]
    found = [name for name in changed if not name.startswith(normalised)]
    return [f"the buffer {name} changes in training" for name in found[:1]] or _find_coupling(module, batch)


def _compare_training_step(module: LightningModule, batch: Batch) -> list[str]:
    """Returns why a `training_step` needs `trainer`, as a list of at most one reason."""
    if not _has_own_step(module):
        return []
    expected = _without_a_trace(module, lambda own: losses_of(own, batch).mean())
    try:
        loss = _without_a_trace(module, lambda own: _loss_of_step(own, batch, 0))
    except Exception as error:  # a user's module may raise anything
        return [f"training_step raises {type(error).__name__} without a Trainer"]
    same = loss is not None and loss.shape == () and torch.allclose(loss.double(), expected, rtol=1e-5)
    return [] if same else ["training_step returns a loss other than the mean of losses"]


def _has_own_step(module: LightningModule) -> bool:
    """Returns whether a module overrides `training_step`."""
    return type(module).training_step not in (LightningModule.training_step, Task.training_step)


def _loss_of_step(module: LightningModule, batch: Batch, number: int) -> Tensor | None:
    """Computes the loss that `training_step` returns for this batch; None if it returns no loss."""
    several = len(inspect.signature(module.training_step).parameters) > 1
    returned = module.training_step(batch, number) if several else module.training_step(batch)
    loss = returned.get("loss") if isinstance(returned, Mapping) else returned
    return loss if isinstance(loss, Tensor) else None


def _without_a_trace(module: LightningModule, compute: Callable[[LightningModule], T]) -> T:
    """Runs a computation on a copy of a module, with the same random numbers each time."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # `log` warns without a Trainer
        torch.manual_seed(0)
        return compute(copy.deepcopy(module))


def _find_coupling(module: LightningModule, batch: Batch) -> list[str]:
    """Returns why an example's loss depends on its mini-batch, as a list of at most one reason.

    Modules with BatchNorm are not checked.
    """
    if len(batch[1]) < 2 or has_batch_norm(module):
        return []
    module = copy.deepcopy(module)
    set_key(module, 0)
    with torch.no_grad():
        alone = losses_of(module, (batch[0][:1], batch[1][:1]))
        together = losses_of(module, batch)[:1]
    same = torch.allclose(alone, together, rtol=1e-6, atol=1e-9, equal_nan=True)
    return [] if same else ["the loss of an example depends on the other examples in its mini-batch"]


def to_double(module: LightningModule, batch: Batch) -> tuple[LightningModule, Batch]:
    """Copies a module to the CPU in double precision, and converts floating-point inputs likewise."""
    inputs = batch[0].double() if batch[0].is_floating_point() else batch[0]
    return copy.deepcopy(module).cpu().double(), (inputs, batch[1])


def run_step(
    module: LightningModule, layout: ParameterLayout, batch: Batch
) -> tuple[Sequence[Tensor | None], dict[str, Tensor]]:
    """Computes the gradients of the mean loss with a copy of the module, and the copy's buffers after the step.

    A gradient is None if the loss does not depend on its parameter.
    """
    module = copy.deepcopy(module)
    parameters = [module.get_parameter(slot.name) for slot in layout.slots if not slot.is_buffer]
    gradients = torch.autograd.grad(losses_of(module, batch).mean(), parameters, allow_unused=True)
    return gradients, {slot.name: module.get_buffer(slot.name) for slot in layout.slots if slot.is_buffer}
