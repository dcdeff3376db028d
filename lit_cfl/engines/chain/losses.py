"""Losses of a stack of mini-batches, and their gradients with respect to the outputs."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from lit_cfl.engines.chain.parts import Loss, sigmoid

_MANY = 32  # number of labels below which separate operations are up to three times as fast as softmax on a CPU


def targets_of(loss: Loss, labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts labels to the form that `compute_losses` reads: int64 `[N, 1]`, or numbers `[N, outputs]`."""
    flat = labels.reshape(len(labels), -1)
    return flat if loss.kind == "cross-entropy" else flat.to(dtype)


def compute_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Computes the losses `[..., B, 1]` of outputs `[..., B, outputs]`; `targets_of` makes the targets."""
    if loss.kind == "cross-entropy":
        losses = _log_totals(outputs).sub_(outputs.gather(-1, targets))
    elif loss.kind == "squared error":
        losses = (outputs - targets).square_().sum(-1, keepdim=True)
    else:
        losses = binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(-1, keepdim=True)
    return losses if loss.factor == 1 else losses * loss.factor


def prepare_targets(loss: Loss, targets: Tensor, shares: Tensor, outputs: int) -> Tensor:
    """Prepares the targets of several steps at once for `compute_slopes`.

    Args:
        targets, shares: See `compute_slopes`.
        outputs: Number of the net's outputs.

    Returns:
        for few classes each example's weight at its class, 0 elsewhere, `[..., B, outputs]`; otherwise the targets.
    """
    if loss.kind != "cross-entropy" or outputs >= _MANY or targets.device.type != "cpu":
        return targets
    return shares.new_zeros(*targets.shape[:-1], outputs).scatter_(-1, targets, shares * loss.factor)


def compute_slopes(loss: Loss, outputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
    """Computes the gradient of a weighted sum of the losses with respect to the outputs, `[..., B, outputs]`.

    Args:
        outputs, targets: See `compute_losses`; the targets may be those of `prepare_targets`.
        shares: Weight of each example in the sum `[..., B, 1]`.
    """
    shares = shares if loss.factor == 1 else shares * loss.factor
    if loss.kind == "cross-entropy":
        found = _shared_softmax(outputs, shares)
        return found.sub_(targets) if targets.is_floating_point() else found.scatter_add_(-1, targets, -shares)
    if loss.kind == "squared error":
        return (outputs - targets).mul_(2 * shares)
    return (sigmoid(outputs) - targets).mul_(shares)


def _log_totals(outputs: Tensor) -> Tensor:
    """Computes the log-sum-exp over each example's outputs: `[..., B, 1]`."""
    if outputs.shape[-1] >= _MANY:
        return outputs.logsumexp(-1, keepdim=True)
    largest = outputs.amax(-1, keepdim=True)
    return (outputs - largest).exp_().sum(-1, keepdim=True).log_().add_(largest)


def _shared_softmax(outputs: Tensor, shares: Tensor) -> Tensor:
    """Computes each example's softmax, multiplied by the example's weight."""
    if outputs.shape[-1] >= _MANY:
        return outputs.softmax(-1).mul_(shares)
    found = (outputs - outputs.amax(-1, keepdim=True)).exp_()
    return found.mul_(shares / found.sum(-1, keepdim=True))
