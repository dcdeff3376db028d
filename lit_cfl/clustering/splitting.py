"""CFL's split of a cluster in two, and measures of how well clusters are separated (Sattler; LayerCFL)."""

import math
from typing import Literal

import torch
from torch import Tensor

from lit_cfl.clustering.merging import cut_tree, merge_tree, require_symmetric
from lit_cfl.errors import InputError

_ROUNDING = 1e-6


def bipartition(similarity: Tensor, linkage: Literal["single", "complete"] = "single") -> Tensor:
    """Splits clients in two so that the maximum similarity across is minimal (CFL, optimal bipartition).

    Args:
        similarity: Similarities `[n, n]`, symmetric, n of at least 2.
        linkage: Linkage on the negative similarity: `single`, which is exactly optimal (paper), or `complete`, which
            need not be (published code) (C29).

    Returns:
        labels int64 `[n]`, 0 or 1: 0 is the part with the lowest index. Ties are broken in the same way at every call.

    Raises:
        InputError: fewer than two clients, a matrix that is not `[n, n]`, finite and symmetric, or an unknown linkage.
    """
    if len(similarity) < 2:
        raise InputError(f"{len(similarity)} clients cannot be split in two; give at least 2")
    return cut_tree(merge_tree(-similarity, linkage), len(similarity) - 2)


def separation_gap(similarity: Tensor, labels: Tensor) -> float:
    """Computes the minimum similarity within a cluster minus the maximum across; above 0 = separated (LayerCFL's Gap).

    Args:
        similarity: Similarities `[n, n]`, symmetric; negative distances give LayerCFL's Gap of l2 distances.
        labels: Clusters, int64 `[n]`.

    Returns:
        In [-2, 2] for cosines; nan if no cluster has a pair, or if there is only one cluster.

    Raises:
        InputError: a matrix that is not `[n, n]`, finite and symmetric.
    """
    require_symmetric(similarity)
    same = labels[:, None] == labels
    pairs = same & ~torch.eye(len(labels), dtype=torch.bool)
    if not pairs.any() or same.all():
        return math.nan
    return float(similarity[pairs].min()) - float(similarity[~same].max())


def separation_threshold(cross_similarity: float) -> float:
    """Computes the bound that gamma_max must stay below for a split to be right (CFL, Theorem 1).

    Args:
        cross_similarity: Largest cosine across the two parts, in [-1, 1].

    Returns:
        sqrt((1 - cross_similarity) / 2), in [0, 1].

    Raises:
        InputError: the value is not a cosine.
    """
    if not abs(cross_similarity) <= 1 + _ROUNDING:
        raise InputError(f"a cross similarity of {cross_similarity} is not a cosine; give a number in [-1, 1]")
    return math.sqrt((1 - min(cross_similarity, 1.0)) / 2)
