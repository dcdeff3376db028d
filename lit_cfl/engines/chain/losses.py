"""Computes the losses of a stack of mini-batches, and their gradients by the outputs."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from lit_cfl.engines.chain.parts import Loss, sigmoid


def targets_of(loss: Loss, labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Brings labels into the form that `losses_and_slopes` reads: int64 `[N, 1]`, or numbers `[N, outputs]`."""
    flat = labels.reshape(len(labels), -1)
    return flat if loss.kind == "cross-entropy" else flat.to(dtype)


def compute_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Computes the losses `[..., B, 1]` of outputs `[..., B, outputs]`; for targets see `targets_of`."""
    if loss.kind == "cross-entropy":
        losses = outputs.log_softmax(-1).gather(-1, targets).neg_()
    elif loss.kind == "squared error":
        losses = (outputs - targets).square_().sum(-1, keepdim=True)
    else:
        losses = binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(-1, keepdim=True)
    return losses if loss.factor == 1 else losses * loss.factor


def compute_slopes(loss: Loss, outputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
    """Computes the gradient by the outputs of a weighted sum of the losses, `[..., B, outputs]`.

    Args:
        outputs, targets: see `compute_losses`.
        shares: weight of each example in the sum `[..., B, 1]`.
    """
    shares = shares if loss.factor == 1 else shares * loss.factor
    if loss.kind == "cross-entropy":
        return outputs.softmax(-1).mul_(shares).scatter_add_(-1, targets, -shares)
    if loss.kind == "squared error":
        return (outputs - targets).mul_(2 * shares)
    return (sigmoid(outputs) - targets).mul_(shares)
