"""FLUX's descriptors of clients' data: mean and standard deviation of projected latent features."""

import torch
from torch import Tensor

NO_MOMENT = -1.0  # stands for the moments of a label with fewer than two examples
_ROUNDING = 1e-12  # a block whose range is at most this share of the largest value is constant


def principal_axes(points: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Computes the mean `[d]` of points `[n, d]` and their principal directions `[d, r]`, r <= `number`.

    Directions have length 1. Their sign is arbitrary; it is chosen so that the largest entry is positive.
    """
    center = points.mean(0)
    axes = torch.linalg.svd(points - center, full_matrices=False).Vh[:number]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return center, (axes * largest.sign()).T


def describe(points: Tensor, labels: Tensor, num_labels: int) -> Tensor:
    """Computes mean and standard deviation of all points, and of the points of each label.

    Args:
        points: Points `[n, r]`, n at least 1.
        labels: Labels, int64 `[n]`; or several per point, 0 to 1 `[n, num_labels]`: a point has those above 0.5.
        num_labels: Number of labels to describe; 0 = only all points together.

    Returns:
        blocks `[2 + 2 num_labels, r]`; `NO_MOMENT` for a label with fewer than two points.
    """
    several = labels.ndim > 1
    groups = [points[labels[:, k] > 0.5 if several else labels == k] for k in range(num_labels)]
    unknown = torch.full_like(points[0], NO_MOMENT)
    means = [group.mean(0) if len(group) > 1 else unknown for group in groups]
    deviations = [group.std(0, correction=0) if len(group) > 1 else unknown for group in groups]
    return torch.stack([points.mean(0), points.std(0, correction=0), *means, *deviations])


def block_range(descriptors: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the lowest value and the range of each block `[blocks, 1]` over the clients' descriptors `[n, blocks, r]`.

    The width of a block that is the same everywhere is 1, so that scaling makes it 0.
    """
    low, high = descriptors.amin((0, 2)), descriptors.amax((0, 2))
    width, rounding = high - low, _ROUNDING * descriptors.abs().max()
    return low[:, None], torch.where(width > rounding, width, 1.0)[:, None]
