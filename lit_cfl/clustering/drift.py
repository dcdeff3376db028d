"""The change of clients' labels, and the test of whether it is above a threshold (FlexCFL's migration, C4)."""

from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from lit_cfl.errors import InputError

ShiftMetric = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A distance of label counts now and before `[n, C]`: its numerators and denominators, float64 `[n]`."""


def total_variation(now: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Computes (1/2) sum |p_k - q_k| of the labels' shares, in [0, 1]: 0 if both are empty, and 1 if one is.

    Args:
        now: Examples of each label `[n, C]`, not negative.
        before: Earlier examples of each label `[n, C]`.

    Returns:
        Its numerators and denominators, float64 `[n]`: whole numbers, so exact below 2^53.
    """
    now, before = now.double(), before.double()
    size_now, size_before = now.sum(1), before.sum(1)
    moved = (now * size_before[:, None] - before * size_now[:, None]).abs().sum(1)
    both, one = size_now * size_before, (size_now > 0) != (size_before > 0)
    return torch.where(both > 0, moved, one.double()), torch.where(both > 0, 2 * both, 1.0)


def label_shift_distance(now: Tensor, before: Tensor, metric: ShiftMetric = total_variation) -> Tensor:
    """Computes for each client the distance between its current and earlier label counts, float64 `[n]`.

    Args:
        now: Examples of each label `[n, C]`, integers or floats, not negative.
        before: Earlier examples of each label `[n, C]`.
        metric: Distance.

    Raises:
        InputError: different shapes, or negative counts.
    """
    _require_counts(now, before)
    numerators, denominators = metric(now, before)
    return numerators / denominators


def find_drifted(now: Tensor, before: Tensor, threshold: float, metric: ShiftMetric = total_variation) -> Tensor:
    """Finds the clients whose labels changed by strictly more than the threshold (FlexCFL, Algorithm 2, line 5).

    Args:
        now: Examples of each label `[n, C]`.
        before: Examples of each label when the client was last placed `[n, C]`.
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
    _require_counts(now, before)
    numerators, denominators = metric(now, before)
    if threshold == float("inf"):
        return torch.zeros(len(now), dtype=torch.bool)
    limit = Fraction(threshold).limit_denominator(10**6)
    return numerators * limit.denominator > limit.numerator * denominators


def _require_counts(now: Tensor, before: Tensor) -> None:
    if now.ndim != 2 or now.shape != before.shape:
        raise InputError(
            f"counts have the shapes {list(now.shape)} and {list(before.shape)}; give both the same shape [n, C]"
        )
    if bool((now < 0).any()) or bool((before < 0).any()):
        raise InputError(f"a count is {float(torch.minimum(now, before).min())}; give counts of 0 or more")
