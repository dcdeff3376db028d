"""Distances between a client's current and earlier labels (FlexCFL's migration, C4)."""

from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from lit_cfl.errors import InputError

ShiftMetric = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A distance of label counts now and before, float64 `[n, C]`: its numerators and denominators `[n]`."""


def total_variation(now: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Computes (1/2) sum |p_k - q_k| of the labels' shares, in [0, 1]: 0 if both are empty, and 1 if one is."""
    size_now, size_before = now.sum(1), before.sum(1)
    moved = (now * size_before[:, None] - before * size_now[:, None]).abs().sum(1)
    both, one = size_now * size_before, (size_now > 0) != (size_before > 0)
    return torch.where(both > 0, moved, one.double()), torch.where(both > 0, 2 * both, 1.0)


def label_shift_distance(counts_now: Tensor, counts_before: Tensor, metric: ShiftMetric = total_variation) -> Tensor:
    """Computes for each client the distance between its current and earlier label counts.

    Args:
        counts_now: Examples of each label `[n, C]`, integers or floats, not negative.
        counts_before: Earlier examples of each label `[n, C]`.
        metric: Distance.

    Returns:
        float64 `[n]`.

    Raises:
        InputError: different shapes, or negative counts.
    """
    _check(counts_now, counts_before)
    moved, out_of = metric(counts_now.double(), counts_before.double())
    return moved / out_of


def find_drifted(
    counts_now: Tensor, counts_before: Tensor, threshold: float, metric: ShiftMetric = total_variation
) -> Tensor:
    """Finds the clients whose labels moved by strictly more than the threshold (FlexCFL, Algorithm 2, line 5).

    Args:
        counts_now: Examples of each label `[n, C]`.
        counts_before: Examples of each label at the last accepted state `[n, C]`.
        threshold: Threshold, 0 or more: the share of data that may change (paper: 0.2). Decimals are taken as written
            (up to a denominator of 10^6), so that a client exactly at the threshold does not fire.
        metric: Distance that is compared with the threshold.

    Returns:
        bool `[n]`.

    Raises:
        InputError: as in `label_shift_distance`; or a negative threshold.
    """
    if not threshold >= 0:
        raise InputError(f"threshold {threshold} is not a distance; give 0 or more")
    _check(counts_now, counts_before)
    moved, out_of = metric(counts_now.double(), counts_before.double())
    if threshold == float("inf"):
        return torch.zeros(len(moved), dtype=torch.bool)
    limit = Fraction(threshold).limit_denominator(10**6)
    return moved * limit.denominator > limit.numerator * out_of  # whole numbers: exact below 2^53


def _check(now: Tensor, before: Tensor) -> None:
    if now.ndim != 2 or now.shape != before.shape:
        raise InputError(
            f"counts have the shapes {list(now.shape)} and {list(before.shape)}; give both the same shape [n, C]"
        )
    if bool((now < 0).any()) or bool((before < 0).any()):
        raise InputError(f"a count is {float(torch.minimum(now, before).min())}; give counts of 0 or more")
