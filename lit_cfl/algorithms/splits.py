"""The tree of splits that CFL and its kin keep, how it grows, and what it grows by. Pure functions.

A cluster is a number from 0 and a row of `models`. When it is split, the part with the lowest client id keeps the
number and each other part gets a new one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lit_cfl.aggregation import mean_by_cluster
from lit_cfl.clustering import assign, clusters_of


@dataclass(frozen=True, eq=False)
class SplitState:
    models: Tensor  # [K, d]
    index: Tensor  # [clients], -1 = none
    parent: Tensor  # the cluster that each was split from, int64 [K], -1 = none
    starts: Tensor  # of each split: the model that its clients trained from [S, d]
    layers: list[list[str]]  # of each split: the layers that it compared
    part_split: Tensor  # of each part of a split: the split, int64 [P]
    part_cluster: Tensor  # of each part: the cluster that it became, int64 [P]
    part_means: Tensor  # of each part: mean of what was compared, in all layers [P, parameters]


@dataclass(frozen=True, eq=False)
class Still:
    """A cluster that stands still.

    Args:
        number: of the cluster.
        clients: ids of those that trained int64 `[n]`, ascending; 3 or more.
        updates: theirs `[n, parameters]`.
        start: the model that they trained from `[d]`.
        v: the largest norm of an update.
    """

    number: int
    clients: Tensor
    updates: Tensor
    start: Tensor
    v: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """What the clients of such a cluster look like beside each other.

    Args:
        features: what was compared, in all layers `[n, parameters]`.
        layers: those that were looked at.
        similarity: `[n, n]` in [-1, 1], larger is more alike.
        scores: of each layer, where layers were chosen by them: names to numbers.
    """

    features: Tensor
    layers: list[str]
    similarity: Tensor
    scores: dict[str, dict[str, float]] = field(default_factory=dict)


def unsplit(model: Tensor, population: Tensor, num_parameters: int) -> SplitState:
    """One cluster of the whole population (ids int64), which has this model `[d]`."""
    none = torch.empty(0, dtype=torch.int64)
    return SplitState(
        models=model[None],
        index=assign(none, population, torch.zeros_like(population)),
        parent=torch.tensor([-1]),
        starts=model.new_empty(0, len(model)),
        layers=[],
        part_split=none,
        part_cluster=none,
        part_means=model.new_empty(0, num_parameters),
    )


def divided(
    state: SplitState,
    cluster: int,
    clients: Tensor,
    parts: Tensor,
    *,
    start: Tensor,
    features: Tensor,
    layers: list[str],
) -> SplitState:
    """The state in which a cluster is split; all its parts go on from its model.

    Args:
        clients: ids of the members that were compared, int64 `[n]`, ascending.
        parts: of each of them, int64 `[n]`, numbered from 0 by lowest member.
        start: the model they trained from `[d]`.
        features: what was compared, in all layers `[n, parameters]`.
        layers: those that the split went by.
    """
    more = int(parts.max())
    numbers = torch.cat([torch.tensor([cluster]), len(state.models) + torch.arange(more)])
    return replace(
        state,
        models=torch.cat([state.models, state.models[cluster].expand(more, -1)]),
        index=assign(state.index, clients, numbers[parts]),
        parent=torch.cat([state.parent, torch.full((more,), cluster)]),
        starts=torch.cat([state.starts, start[None]]),
        layers=[*state.layers, layers],
        part_split=torch.cat([state.part_split, torch.full((more + 1,), len(state.starts))]),
        part_cluster=torch.cat([state.part_cluster, numbers]),
        part_means=torch.cat([state.part_means, mean_by_cluster(features, parts)]),
    )


def by_cluster(index: Tensor, clients: Tensor) -> Tensor:
    """The clients `[n]` ordered by cluster and id, so that the rows of a cluster are a view of all rows."""
    clients = clients.sort().values
    return clients[clusters_of(index, clients).argsort(stable=True)]


def slices_of(labels: Tensor) -> Iterator[tuple[int, slice]]:
    """Each cluster of ascending labels `[n]`, and where it stands."""
    clusters, sizes = labels.unique_consecutive(return_counts=True)
    ends = sizes.cumsum(0)
    for cluster, start, end in zip(clusters.tolist(), (ends - sizes).tolist(), ends.tolist(), strict=True):
        yield cluster, slice(start, end)


def into_updates(rows: Tensor, models: Tensor, labels: Tensor) -> Tensor:
    """Local models `[n, d]` minus those they started from, `models[labels]`: in place, for they may fill a disk."""
    for row, label in zip(rows, labels.tolist(), strict=True):
        row -= models[label]
    return rows


def largest_norms(updates: Tensor, labels: Tensor, num_clusters: int) -> Tensor:
    """v of each cluster `[K]`: the largest norm of a member's update; nan without members."""
    nobody = updates.new_full((num_clusters,), torch.nan)
    if not len(updates):
        return nobody
    norms = torch.stack([row.norm() for row in updates])  # row by row: no copy of a file's rows
    return nobody.scatter_reduce(0, labels, norms, "amax", include_self=False)


def with_columns(rows: Tensor, columns: Tensor) -> Tensor:
    """These columns (int64, ascending) of the rows `[n, d]`: a view where they lie side by side, as a layer's do."""
    first, end = int(columns[0]), int(columns[-1]) + 1
    return rows[:, first:end] if end - first == len(columns) else rows[:, columns]


def scaled_similarity(distances: Tensor) -> Tensor:
    """Distances `[n, n]` as similarities in [-1, 1], whatever their scale: 1 - 2 * distance / the largest one."""
    return 1 - 2 * distances / distances.max().clamp(min=torch.finfo(distances.dtype).tiny)
