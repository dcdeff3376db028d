"""Distances between a client's current and earlier labels (FlexCFL's migration, C4)."""

from fractions import Fraction
from typing import Literal, get_args

import torch
from torch import Tensor

from lit_cfl.errors import InputError, require_word

ShiftMetric = Literal["sorted_counts", "l1_counts", "total_variation", "w1_label_axis"]
"""How the change of a client's labels is measured; see `label_shift_distance`."""


def label_shift_distance(counts_now: Tensor, counts_before: Tensor, metric: ShiftMetric) -> Tensor:
    """Computes for each client the distance between its current and earlier label counts.

    Args:
        counts_now: Examples of each label `[n, C]`, integers or floats, not negative.
        counts_before: Earlier examples of each label `[n, C]`.
        metric: Distance: `sorted_counts` = (1/C) sum |sort(a)_k - sort(b)_k| (published code, which ignores which
            labels they are); `l1_counts` = (1/C) sum |a_k - b_k|; `total_variation` = (1/2) sum |p_k - q_k| of the
            shares, in [0, 1]; `w1_label_axis` = Wasserstein-1 of the shares with labels as places, in [0, C - 1].

    Returns:
        float64 `[n]`. For metrics of shares: 0 if both are empty, and the maximum if one is.

    Raises:
        InputError: unknown metric, different shapes, or negative counts.
    """
    moved, out_of = _as_fraction(counts_now, counts_before, metric)
    return moved / out_of


def find_drifted(
    counts_now: Tensor, counts_before: Tensor, num_examples: Tensor, threshold: float, metric: ShiftMetric
) -> Tensor:
    """Finds the clients whose labels moved by strictly more than the threshold (FlexCFL, Algorithm 2, line 5).

    Args:
        counts_now: Examples of each label `[n, C]`.
        counts_before: Examples of each label at the last accepted state `[n, C]`.
        num_examples: Examples n_i at the start `[n]`; metrics of counts fire above threshold * n_i / C.
        threshold: Threshold, 0 or more: the share of data that may change (paper: 0.2). Decimals are taken as written
            (up to a denominator of 10^6), so that a client exactly at the threshold does not fire.
        metric: Distance, see `label_shift_distance`; metrics of shares fire above the threshold itself.

    Returns:
        bool `[n]`.

    Raises:
        InputError: as in `label_shift_distance`; a negative threshold; or a wrong number of sizes.
    """
    if not threshold >= 0:
        raise InputError(f"threshold {threshold} is not a distance; give 0 or more")
    if len(num_examples) != len(counts_now):
        raise InputError(
            f"there are {len(num_examples)} sizes for the counts of {len(counts_now)} clients; give one size per client"
        )
    moved, out_of = _as_fraction(counts_now, counts_before, metric)
    if metric in ("sorted_counts", "l1_counts"):
        out_of = num_examples.double()  # compares distance > threshold * n_i / C after multiplying by C
    if threshold == float("inf"):
        return torch.zeros(len(moved), dtype=torch.bool)
    limit = Fraction(threshold).limit_denominator(10**6)
    return moved * limit.denominator > limit.numerator * out_of  # whole numbers: exact below 2^53


def _as_fraction(now: Tensor, before: Tensor, metric: ShiftMetric) -> tuple[Tensor, Tensor]:
    """Computes the distance as numerator and denominator `[n]`, exact in float64 if the counts are integers."""
    _check(now, before, metric)
    now, before = now.double(), before.double()
    if metric == "sorted_counts":
        now, before = now.sort(1).values, before.sort(1).values
    if metric in ("sorted_counts", "l1_counts"):
        moved = (now - before).abs().sum(1)
        return moved, torch.full_like(moved, now.shape[1])
    size_now, size_before = now.sum(1, keepdim=True), before.sum(1, keepdim=True)
    difference = now * size_before - before * size_now
    if metric == "w1_label_axis":
        moved, scale, greatest = difference.cumsum(1).abs().sum(1), 1, now.shape[1] - 1
    else:
        moved, scale, greatest = difference.abs().sum(1), 2, 1
    product = (size_now * size_before).squeeze(1)
    one_empty = (size_now > 0) != (size_before > 0)
    moved = torch.where(product > 0, moved, torch.where(one_empty.squeeze(1), float(greatest), 0.0))
    return moved, torch.where(product > 0, scale * product, 1.0)


def _check(now: Tensor, before: Tensor, metric: ShiftMetric) -> None:
    require_word("shift_metric", metric, get_args(ShiftMetric))
    if now.ndim != 2 or now.shape != before.shape:
        raise InputError(
            f"counts have the shapes {list(now.shape)} and {list(before.shape)}; give both the same shape [n, C]"
        )
    if bool((now < 0).any()) or bool((before < 0).any()):
        raise InputError(f"a count is {float(torch.minimum(now, before).min())}; give counts of 0 or more")
