"""Computes the losses of a stack of mini-batches, and their gradients by the outputs."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from lit_cfl.engines.chain.parts import Loss, sigmoid


def targets_of(loss: Loss, labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Brings labels into the form that `losses_and_slopes` reads: int64 `[N, 1]`, or numbers `[N, outputs]`."""
    flat = labels.reshape(len(labels), -1)
    return flat if loss.kind == "cross-entropy" else flat.to(dtype)


def losses_and_slopes(loss: Loss, outputs: Tensor, targets: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the losses `[..., B, 1]`, and the gradient by the outputs of their weighted sum `[..., B, outputs]`.

    Args:
        outputs: `[..., B, outputs]`; they may be overwritten.
        targets: see `targets_of`, `[..., B, 1]` or `[..., B, outputs]`.
        shares: weight of each example in the sum `[..., B, 1]`.
    """
    shares = shares if loss.factor == 1 else shares * loss.factor
    if loss.kind == "cross-entropy":
        losses, slopes = _cross_entropy(outputs, targets, shares)
    elif loss.kind == "squared error":
        errors = outputs - targets
        losses, slopes = errors.square().sum(-1, keepdim=True), errors.mul_(2 * shares)
    else:
        losses = binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(-1, keepdim=True)
        slopes = (sigmoid(outputs) - targets).mul_(shares)
    return losses if loss.factor == 1 else losses * loss.factor, slopes


def _cross_entropy(outputs: Tensor, targets: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own takes twice as long on a CPU for few labels."""
    outputs = outputs - outputs.amax(-1, keepdim=True)
    right = outputs.gather(-1, targets)
    shifted = outputs.exp_()
    totals = shifted.sum(-1, keepdim=True)
    slopes = shifted.mul_(shares / totals).scatter_add_(-1, targets, -shares)
    return totals.log_().sub_(right), slopes
