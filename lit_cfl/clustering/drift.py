"""The change of clients' labels, and the test of whether it is above a threshold (FlexCFL's migration, C4)."""

from fractions import Fraction

import torch
from torch import Tensor


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


def exceeds(numerators: Tensor, denominators: Tensor, threshold: float) -> Tensor:
    """Finds the clients whose change is strictly above the threshold, bool `[n]` (FlexCFL, Algorithm 2, line 5).

    Args:
        threshold: Threshold, 0 or more. Decimals are taken as written (up to a denominator of 10^6), so that a client
            exactly at the threshold does not fire.
    """
    if threshold == float("inf"):
        return torch.zeros(len(numerators), dtype=torch.bool)
    limit = Fraction(threshold).limit_denominator(10**6)
    return numerators * limit.denominator > limit.numerator * denominators
