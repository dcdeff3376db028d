"""The tree of splits that CFL and its kin keep, and how it grows. Pure functions.

A cluster is a number from 0 and a row of `models`. When it is split, the part with the lowest client id keeps the
number and each other part gets a new one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_cfl.aggregation import mean_by_cluster
from lit_cfl.clustering import assign


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
