"""What the engines ask of a LightningModule beside its training: the loss and the outcome of each example."""

from collections.abc import Callable
from typing import cast

from lightning import LightningModule
from torch import Tensor

from lit_cfl.errors import InputError

Batch = tuple[Tensor, Tensor]


def require_losses(module: LightningModule) -> None:
    """Raises InputError where the module lacks what evaluation needs."""
    if not hasattr(module, "losses"):
        name = type(module).__name__
        raise InputError(
            f"{name} has no `losses(batch) -> [batch]`, one number per example; add it (see docs/own_model.md)"
        )


def losses_of(module: LightningModule, batch: Batch) -> Tensor:
    """The loss of each example `[n]`."""
    return cast(Callable[[Batch], Tensor], module.losses)(batch)


def penalty_of(module: LightningModule) -> float:
    """What the module adds to the loss of every example in training; 0 where it has no `penalty`.

    A module with `penalty() -> 0-d tensor` adds it in `losses`, and leaves it out of the losses of its `outcomes`.
    """
    return float(cast(Callable[[], Tensor], module.penalty)()) if hasattr(module, "penalty") else 0.0


def score(module: LightningModule, batch: Batch) -> tuple[Tensor, Tensor]:
    """Loss of each example `[n]` and whether the prediction is right `[n]`.

    A module may define `outcomes(batch)` to give both from one pass, or where a prediction is not the argmax of
    its output.
    """
    if hasattr(module, "outcomes"):
        return cast(Callable[[Batch], tuple[Tensor, Tensor]], module.outcomes)(batch)
    return losses_of(module, batch), module(batch[0]).argmax(-1) == batch[1]
