"""Finds behaviour of a LightningModule beyond `losses` and one plain optimizer, which only `trainer` supports."""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from lightning import LightningModule
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from lit_cfl.engines.check_module import schedulers_in
from lit_cfl.engines.task_protocol import Batch, losses_of
from lit_cfl.errors import InputError
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


def needs_trainer(module: LightningModule) -> list[str]:
    """Lists why only `trainer` can fit this module; empty if a fast engine could.

    Fast engines train from `losses(batch)` and the optimizer of `configure_optimizers` alone, so any other training
    hook, a scheduler, several optimizers or optimisation by hand would be lost on them.
    """
    names = [name for name in dir(LightningModule) if _is_training_hook(name)]
    reasons = [f"hook {name}" for name in names if getattr(type(module), name) is not getattr(LightningModule, name)]
    if not module.automatic_optimization:
        reasons.append("optimisation by hand")
    try:
        configured = module.configure_optimizers()
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"configure_optimizers of {type(module).__name__} failed: {error}; fix its options") from error
    except Exception as error:  # such as a read of self.trainer, which is not there yet
        return [*reasons, f"configure_optimizers raises {type(error).__name__} without a Trainer"]
    if not isinstance(configured, Optimizer):
        others = [f"the scheduler {type(scheduler).__name__}" for scheduler in schedulers_in(configured)]
        reasons += others or ["configure_optimizers gives more than one plain optimizer"]
    elif type(configured) not in _FAST_OPTIMIZERS:
        reasons.append(f"optimizer {type(configured).__name__}")
    return reasons


def other_training_step(module: LightningModule, batch: Batch) -> list[str]:
    """Lists why `training_step` needs `trainer`; empty if it returns the mean of `losses`, or is missing.

    Args:
        module: whose `losses` can take the batch.
    """
    if not has_own_step(module):
        return []
    expected = _without_a_trace(module, lambda own: losses_of(own, batch).mean())
    try:
        loss = _without_a_trace(module, lambda own: loss_of_step(own, batch, 0))
    except Exception as error:  # whatever a user's own module raises
        return [f"training_step raises {type(error).__name__} without a Trainer"]
    same = loss is not None and loss.shape == () and torch.allclose(loss.double(), expected, rtol=1e-5)
    return [] if same else ["training_step gives another loss than the mean of losses"]


def has_own_step(module: LightningModule) -> bool:
    """Returns whether a module overrides `training_step`."""
    return type(module).training_step not in (LightningModule.training_step, Task.training_step)


def loss_of_step(module: LightningModule, batch: Batch, number: int) -> Tensor | None:
    """Computes the loss that `training_step` returns for this batch; None if it returns none."""
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


def _is_training_hook(name: str) -> bool:
    others = ("validation", "test", "predict", "checkpoint", "gpu")
    return name in _STEP_HOOKS or (name.startswith("on_") and not any(other in name for other in others))
