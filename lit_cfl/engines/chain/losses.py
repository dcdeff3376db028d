"""Computes the losses of a stack of mini-batches, and their gradients by the outputs."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from lit_cfl.engines.chain.parts import Loss, sigmoid


def targets_of(loss: Loss, labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Brings labels into the form that `losses_and_slopes` reads: int64 `[N, 1]`, or numbers `[N, outputs]`."""
    flat = labels.reshape(len(labels), -1)
    return flat if loss.kind == "cross-entropy" else flat.to(dtype)


def losses_and_slopes(loss: Loss, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the losses `[..., B]`, and the gradient of each example's loss by its outputs `[..., B, outputs]`.

    Args:
        outputs: `[..., B, outputs]`; they may be overwritten.
        targets: see `targets_of`, `[..., B, 1]` or `[..., B, outputs]`.
    """
    if loss.kind == "cross-entropy":
        logs = outputs.log_softmax(-1)
        losses = logs.gather(-1, targets).neg_().squeeze(-1)
        slopes = logs.exp_().scatter_add_(-1, targets, torch.full_like(losses, -1.0).unsqueeze(-1))
        return (losses, slopes) if loss.factor == 1 else (losses * loss.factor, slopes.mul_(loss.factor))
    if loss.kind == "squared error":
        errors = outputs - targets
        return errors.square().sum(-1) * loss.factor, errors.mul_(2 * loss.factor)
    losses = binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(-1)
    return losses * loss.factor, (sigmoid(outputs) - targets).mul_(loss.factor)
