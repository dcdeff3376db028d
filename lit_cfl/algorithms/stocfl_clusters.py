"""StoCFL's clusters: the server's state, and how clusters are created, extended and merged. Pure functions.

A cluster is a number from 0 and a row of each tensor. It keeps its number as long as it exists; merged clusters get the
lowest of their numbers, and the others become free for new clusters.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lit_cfl.clustering import assign, direction_cosines
from lit_cfl.clustering.products import ROWS_AT_ONCE

_BINS = 40  # number of bins of the histogram of cosines
_AT_ONCE = 2**22  # number of cosines between clients and clusters that are computed at once
_MOST_KEPT = 2**24  # maximum number of cosines that `nearest_cluster` also returns


@dataclass(frozen=True, eq=False)
class StoCFLState:
    """The global model, cluster models, and the representations of clients and clusters."""

    anchor: Tensor  # psi [d], which is omega_0 and never trained
    omega: Tensor  # [d]
    models: Tensor  # theta [C, d]
    sums: Tensor  # sum of the members' Psi [C, s]
    counts: Tensor  # number of Psi in each sum, int64 [C]; 0 = the cluster number is free
    index: Tensor  # [clients], -1 = never observed, which is a cluster by itself
    sketch_seed: int


def create_clusters(state: StoCFLState, models: Tensor) -> tuple[StoCFLState, Tensor]:
    """Creates clusters with these thetas `[n, d]` and no clients; also returns their numbers `[n]`, ascending."""
    size, free = len(state.counts), (state.counts == 0).nonzero().flatten()
    numbers = torch.cat([free, size + torch.arange(len(models))])[: len(models)]
    missing = int((numbers >= size).sum())

    def longer(rows: Tensor) -> Tensor:
        return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])

    grown = longer(state.models).index_copy(0, numbers, models)
    return replace(state, models=grown, sums=longer(state.sums), counts=longer(state.counts)), numbers


def add_members(state: StoCFLState, clients: Tensor, psi: Tensor, clusters: Tensor) -> StoCFLState:
    """Adds clients `[n]` with their Psi `[n, s]` to clusters `[n]`."""
    return replace(
        state,
        sums=state.sums.index_add(0, clusters, psi),
        counts=state.counts.index_add(0, clusters, torch.ones_like(clusters)),
        index=assign(state.index, clients, clusters),
    )


def merge_clusters(state: StoCFLState, clusters: Tensor, groups: Tensor) -> tuple[StoCFLState, Tensor]:
    """Merges clusters `[n]` by group `[n]`; returns the state and, for each group, the lowest number of its clusters.

    Merged clusters have the theta of the largest (ties: the lowest number) (C24).
    """
    numbers = _lowest(clusters, groups)
    if len(numbers) == len(clusters):
        return state, numbers  # nothing merges
    sizes, into = state.counts[clusters], numbers[groups]
    order = sizes.argsort(descending=True, stable=True)
    larger = clusters[order[_lowest(order.argsort(), groups)]]
    renamed = torch.arange(len(state.counts)).index_copy(0, clusters, into)
    merged = replace(
        state,
        models=state.models.index_copy(0, numbers, state.models[larger]),
        sums=state.sums.index_fill(0, clusters, 0).index_add(0, into, state.sums[clusters]),
        counts=state.counts.index_fill(0, clusters, 0).index_add(0, into, sizes),
        index=torch.where(state.index >= 0, renamed[state.index.clamp(min=0)], -1),
    )
    return merged, numbers


def _lowest(values: Tensor, groups: Tensor) -> Tensor:
    """Finds the lowest value of each group, int64 `[groups]`; groups are numbered from 0 without gaps."""
    number = int(groups.max()) + 1 if len(groups) else 0
    return values.new_zeros(number).scatter_reduce(0, groups, values, "amin", include_self=False)


def nearest_cluster(state: StoCFLState, psi: Tensor, *, keep: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """Finds the cluster nearest to each Psi `[n, s]`, in blocks of clients, to bound the memory.

    Args:
        keep: Return the cosines, too, unless there are more than 16 million.

    Returns:
        The largest cosine of each client `[n]`, the number of that cluster or -1 `[n]`, ties: the lowest, and the
        cosines `[n, C]` (-inf: a number that is free) or None.
    """
    free, keep = state.counts == 0, keep and len(psi) * len(state.counts) <= _MOST_KEPT
    kept, found = [], []
    for some in psi.split(ROWS_AT_ONCE * max(1, _AT_ONCE // (ROWS_AT_ONCE * (1 + len(free))))):
        cosines = direction_cosines(some, state.sums).masked_fill_(free, -torch.inf)
        nobody = cosines.new_full((len(some), 1), -torch.inf)
        found.append(torch.cat([nobody, cosines], dim=1).max(1))
        kept += [cosines] if keep else []
    best, nearest = (torch.cat(part) for part in zip(*found, strict=True))
    return best, nearest - 1, torch.cat(kept) if keep else None


def reorder_rows(rows: Tensor, found: Tensor, clients: Tensor) -> Tensor:
    """Reorders rows of the clients `found` (ids ascending) into the order of `clients`; nan for missing clients."""
    reordered = rows.new_full((len(clients), rows.shape[1]), float("nan"))
    there = torch.isin(clients, found)
    return reordered.masked_scatter(there[:, None], rows[torch.searchsorted(found, clients[there])])


def objective(state: StoCFLState) -> float:
    """Computes Eq. 2, the sum of the cosines of all pairs of clusters."""
    norms = state.sums.norm(dim=1, keepdim=True)
    directions = torch.where(norms > 0, state.sums / norms, 0.0).double()
    return float(directions.sum(0).square().sum() - directions.square().sum()) / 2


def cosine_histogram(similarity: Tensor) -> list[dict[str, Any]]:
    """Counts the pairs of clusters whose cosine, of `[n, n]`, lies in each bin; leaves out empty bins."""
    pairs = similarity[torch.ones_like(similarity, dtype=torch.bool).triu(1)].double()
    counts = torch.histc(pairs, _BINS, -1, 1).int().tolist()
    edges = [round(2 * k / _BINS - 1, 3) for k in range(_BINS + 1)]
    return [{"low": edges[k], "high": edges[k + 1], "pairs": count} for k, count in enumerate(counts) if count]
