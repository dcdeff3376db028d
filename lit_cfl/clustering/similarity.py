"""Cosines and distances of rows."""

import warnings
from typing import Literal, get_args

import torch
from torch import Tensor

from lit_cfl.clustering.products import (
    TILE,
    Rows,
    add_gram,
    chunks_of,
    column_blocks,
    gram,
    mirror,
    require_finite,
    row_tiles,
    zeros_of_pairs,
)
from lit_cfl.errors import Notice, require_word

Metric = Literal["l1", "l2", "cosine"]
"""A distance of rows; `cosine` is 1 - cosine."""

_SAME = 1e-14  # squared distances below this share of the rows' squared norms are rounding errors


def cosine_similarity(updates: Rows) -> Tensor:
    """Computes the cosine of all pairs of updates (CFL; FedGroup, Eq. 6; LayerCFL, Eq. 6).

    Args:
        updates: Updates `[n, d]`, or their chunks.

    Returns:
        `[n, n]` in [-1, 1], symmetric, 1 on the diagonal; the whole row of a zero update is 0.

    Raises:
        InputError: an update that is not finite.
    """
    return cosines(gram(updates)).to(chunks_of(updates)[0].dtype)


def cosines(products: Tensor) -> Tensor:
    """Computes cosines from a Gram matrix `[n, n]`: exactly 1 on the diagonal, but 0 for zero rows."""
    norms = products.diagonal().sqrt()
    require_finite(norms)
    similarity = divide_by_lengths(products, norms[:, None] * norms)
    return similarity.fill_diagonal_(1) * (norms > 0)[:, None] * (norms > 0)


def direction_cosines(updates: Rows, directions: Tensor) -> Tensor:
    """Computes the cosines of updates with clusters' directions.

    Args:
        updates: Updates `[n, d]`, or their chunks.
        directions: Directions of the clusters `[clusters, d]`.

    Returns:
        `[n, clusters]` in [-1, 1]; 0 for a zero update or direction.

    Raises:
        InputError: an update or a direction that is not finite.
    """
    return torch.cat([_direction_cosines(tile, directions) for tile in row_tiles(updates)])


def _direction_cosines(updates: Tensor, directions: Tensor) -> Tensor:
    n = len(updates)
    products = torch.zeros(n, len(directions), dtype=torch.float64)
    squares = torch.zeros(n + len(directions), dtype=torch.float64)
    for block in column_blocks([updates, directions]):
        products.addmm_(block[:n], block[n:].T)
        squares += block.square().sum(1)
    norms = squares.sqrt()
    require_finite(norms[:n])
    require_finite(norms[n:], "direction")
    return divide_by_lengths(products, norms[:n, None] * norms[n:]).to(updates.dtype)


def divide_by_lengths(products: Tensor, lengths: Tensor) -> Tensor:
    """Divides inner products by products of norms; the result is in [-1, 1], and 0 if a norm is 0."""
    return torch.where(lengths > 0, products / lengths, 0.0).clamp_(-1, 1)


def distances(rows: Rows, metric: Metric) -> Tensor:
    """Computes the distances of all pairs of rows, such as clients' updates or weights.

    Args:
        rows: Rows `[n, d]`, or their chunks.
        metric: Distance: `l1` and `l2` are the norms of the difference, `cosine` is 1 - cosine, in [0, 2]. `l1` is much
            slower, as it is not a matrix product.

    Returns:
        `[n, n]`, symmetric, 0 on the diagonal. A zero row has cosine distance 1 to all others.

    Raises:
        InputError: unknown metric.
    """
    require_word("metric", metric, get_args(Metric))
    if metric == "cosine":
        found = 1 - cosines(gram(rows))
    else:
        found = _euclidean(rows) if metric == "l2" else _manhattan(rows)
    return found.fill_diagonal_(0).to(chunks_of(rows)[0].dtype)


def cross_distances(rows: Rows, others: Tensor, metric: Metric) -> Tensor:
    """Computes the distance of each row from a few other rows, such as cluster centres.

    Args:
        rows: Rows `[n, d]`, or their chunks.
        others: Other rows `[K, d]`.
        metric: Distance, see `distances`.

    Returns:
        `[n, K]`. A zero row has cosine distance 1 to all.

    Raises:
        InputError: unknown metric.
    """
    require_word("metric", metric, get_args(Metric))
    if metric == "cosine":
        return 1 - direction_cosines(rows, others)
    return torch.cat([_cross_distances(tile, others, 1 if metric == "l1" else 2) for tile in row_tiles(rows)])


def _cross_distances(rows: Tensor, others: Tensor, power: int) -> Tensor:
    n = len(rows)
    total = torch.zeros(n, len(others), dtype=torch.float64)
    for block in column_blocks([rows, others]):
        total += _pairwise(block[:n], block[n:], power) ** power
    return (total ** (1 / power)).to(rows.dtype)


def _manhattan(rows: Rows) -> Tensor:
    total = zeros_of_pairs(sum(map(len, chunks_of(rows))))
    for block in column_blocks(rows):
        for start in range(0, len(total), TILE):
            total[start : start + TILE, start:] += _pairwise(block[start : start + TILE], block[start:], 1)
    return mirror(total)


def _euclidean(rows: Rows) -> Tensor:
    products = zeros_of_pairs(sum(map(len, chunks_of(rows))))
    for block in column_blocks(rows):
        add_gram(products, block - block.mean(0))  # centred: models close together keep their precision
    squares = products.diagonal()
    lengths = squares[:, None] + squares
    squared = lengths - 2 * mirror(products)
    return torch.where(squared > _SAME * lengths, squared, 0.0).sqrt()


def warn_if_equal(updates: Tensor) -> None:
    """Notifies the user if all updates `[n, d]` to be clustered are equal."""
    if len(updates) < 2 or not all(torch.equal(row, updates[0]) for row in updates[1:]):  # ends early
        return
    zero = " to zero" if not updates[0].any() else ""
    warnings.warn(
        f"the updates of all {len(updates)} clients are equal{zero}, so clusters based on them are meaningless; check "
        "the learning rate, and whether all clients have the same data",
        Notice,
        stacklevel=3,
    )


def _pairwise(rows: Tensor, others: Tensor, power: int) -> Tensor:
    found: Tensor = torch.cdist(rows, others, p=power, compute_mode="donot_use_mm_for_euclid_dist")
    return found
