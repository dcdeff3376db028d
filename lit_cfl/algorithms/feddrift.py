"""FedDrift: clients whose loss jumps under every model start a new model; similar models are merged.

arXiv:2206.00799, Algorithms 1 (FedDrift-Eager) and 2 (FedDrift), and the published code.

Where this differs from the paper:
* the paper's time steps bring new data and last as many rounds as the training of a model needs. Here clients have the
  data of the round, and a time step is `step_rounds` rounds: at its start clients test their loss and choose, and
  models merge.
* clients keep no data of past time steps. Training and the comparison of clusters use only the present data. A cluster
  that no client chooses keeps its model for a concept that may recur, but is neither compared nor merged.
* all clients in training test and choose at the start of a time step, as in the paper. The cohort trains, and in the
  first time step of a new model also all of its clients.
* the loss is the task's on training examples. The published code compares accuracies.
* models start from w_0, and a new one from the client's best model, as in the published code.
* `start: clients` is what the published code runs as FedDrift; there, new models overwrite those of the first clients,
  here they do not. With `one` all clients share the first model.
* clusters merge strictly below `merge_delta`; the published code also merges at this distance. The merged model is
  weighted by the examples that have chosen each cluster, counted once per time step; the code counts clients, which are
  of equal size.
* the number of models is not limited; the published code always has a limit.
* clients without data keep their cluster, or stay without one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, mean_by_cluster
from lit_cfl.algorithms.base import Algorithm, Info, clients_with_data, require_clients
from lit_cfl.algorithms.cluster_steps import cold, train_clusters
from lit_cfl.algorithms.migration import MIGRATIONS, SHIFT_SCORES
from lit_cfl.clustering import agglomerate, assign, clusters_of, merge_distances
from lit_cfl.errors import InputError
from lit_cfl.local_work import LocalWork
from lit_cfl.options import FROM_1, NOT_NEGATIVE, bounded

_APART = 1e30  # distance of clusters with a loss that is not finite


@dataclass(frozen=True, eq=False)
class FedDriftState:
    """Cluster models, the clients' clusters, and the clients' losses at the last time step."""

    models: Tensor  # w_m [M, d]
    index: Tensor  # [clients], -1 = no cluster yet
    losses: Tensor  # each client's loss under its best model at the last time step, float64 [clients]; nan = unknown
    sizes: Tensor  # number of examples that chose each cluster, summed over the time steps, int64 [M]
    new: Tensor  # True for clusters made at the start of this time step, bool [M]


@dataclass(frozen=True)
class FedDrift(Algorithm):
    """Creates a cluster when a client's loss jumps, and merges clusters whose models fit each other's clients.

    Args:
        delta: Threshold of a drift: the loss of a client under its best model has risen by more than this since the
            last time step. 0 or more, in the unit of the task's loss.
        merge_delta: Distance below which clusters merge, where the distance is the larger rise in loss of their models
            on each other's clients; null = delta.
        step_rounds: Rounds in a time step, 1 or more.
        start: Models of the first time step: one for each of the `clients`, which then merge (what the published code
            runs), or `one` for all.
        eager: One new model for all clients that detect a drift at the same time, and no mergers: FedDrift-Eager.
        weights: Weights of the clients in a cluster's mean: their number of `examples`, or `equal`.
    """

    paper: ClassVar[str] = (
        "Jothimurugesan, Hsieh, Wang, Joshi, Gibbons. Federated Learning under Distributed Concept Drift. "
        "AISTATS 2023. arXiv:2206.00799"
    )
    delta: float = bounded(1.0, NOT_NEGATIVE)
    merge_delta: float | None = bounded(None, NOT_NEGATIVE)
    step_rounds: int = bounded(5, FROM_1)
    start: Literal["clients", "one"] = "clients"
    eager: bool = False
    weights: Weights = "examples"
    state_type = FedDriftState
    score_columns = SHIFT_SCORES
    tables: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "migrations": (*MIGRATIONS["migrations"], "detected"),
        "mergers": ("clusters", "distance", "merged"),
    }
    closeness = "minus the training loss of the cluster's model"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eager and (self.start == "clients" or self.merge_delta is not None):
            raise InputError(
                f"eager is true, but start is {self.start} and merge_delta is {self.merge_delta}: FedDrift-Eager "
                "never merges clusters; set start to one, and leave out merge_delta"
            )

    def check(self, work: LocalWork) -> None:
        require_clients(1, len(clients_with_data(work)))

    def needs_all(self, round: int) -> bool:
        return self.start == "clients" and round < self.step_rounds  # each client's model is new

    def first_clustering_round(self) -> int:
        return self.step_rounds

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[FedDriftState, Info]:
        w0, able, alone = work.initial(0), clients_with_data(work), self.start == "clients"
        who = able if alone else work.population
        numbers = torch.arange(len(who)) if alone else torch.zeros_like(who)
        index = assign(torch.full((len(work.num_examples),), -1), who, numbers)
        losses = torch.full(index.shape, torch.nan, dtype=torch.float64)
        losses[able] = work.losses(w0[None], able)[:, 0].double()
        number = int(numbers.max()) + 1
        sizes, new = torch.zeros(number, dtype=torch.int64), torch.full((number,), alone)
        state = FedDriftState(w0.repeat(number, 1), index, losses, sizes, new)
        return _record_choices(state, able, index[able], work), Info()

    def round(
        self, state: FedDriftState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedDriftState, Info]:
        begins = work.round > 0 and work.round % self.step_rounds == 0
        state, step = self.begin_time_step(state, work) if begins else (state, Info())
        state, placed = self.place(state, cold(state, cohort), work, rng)
        cohort = torch.cat([cohort, _clients_of_new_models(state, work)]).unique()
        state, info = train_clusters(state, cohort, work, self.weights)
        return state, info.plus(placed).plus(step)

    def begin_time_step(self, state: FedDriftState, work: LocalWork) -> tuple[FedDriftState, Info]:
        """Lets every client with data choose its best model or detect a drift; then merges clusters.

        Numbers of clusters in `migrations` are those before the mergers.
        """
        able = clients_with_data(work)
        losses = work.losses(state.models, able).double().nan_to_num(torch.inf)  # [n, M]
        least, best = losses.min(1)  # ties: the lowest cluster number
        missing = least.new_full((len(work.num_examples) - len(state.losses),), torch.nan)
        earlier = torch.cat([state.losses, missing])
        drifts = least - earlier[able] > self.delta  # Algorithm 1: drift detection
        sources = best[drifts][:1] if self.eager else best[drifts]
        labels = best.masked_scatter(drifts, len(state.models) + torch.arange(len(sources)).expand(int(drifts.sum())))
        before = clusters_of(state.index, able)
        state = _append_models(replace(state, losses=earlier.index_copy(0, able, least)), state.models[sources])
        state = _record_choices(state, able, labels, work)
        moved = before >= 0
        rows = torch.stack([able, before, labels, drifts.long()], dim=1)[moved & (drifts | (labels != before))]
        tables: dict[str, list[dict[str, Any]]] = {
            "migrations": [dict(zip(self.tables["migrations"], row, strict=True)) for row in rows.tolist()]
        }
        if not self.eager:
            stays = ~drifts
            state, tables["mergers"] = self._merge(state, losses[stays], best[stays], work.num_examples[able[stays]])
        scores = (float(drifts.sum()), float((labels != before)[moved].sum()))
        info = Info(down=losses.numel(), scores=dict(zip(SHIFT_SCORES, scores, strict=True)), tables=tables)
        return state, replace(info, bytes_up=4 * losses.numel())

    def _merge(
        self, state: FedDriftState, losses: Tensor, labels: Tensor, num_examples: Tensor
    ) -> tuple[FedDriftState, list[dict[str, Any]]]:
        """Merges clusters hierarchically while the minimum distance is below `merge_delta` (Algorithm 2).

        Also returns the rows of `mergers.csv`: all mergers up to one cluster, including those at larger distances.

        Args:
            losses: Losses of clients in clusters that are not new, under each earlier model `[n, M]`.
            labels: Cluster of each client, int64 `[n]`.
            num_examples: Examples of each client, int64 `[n]`.
        """
        chosen, place = labels.unique(return_inverse=True)
        if len(chosen) < 2:
            return state, []
        found = cluster_distances(mean_by_cluster(losses[:, chosen], place, num_examples.double()))
        threshold = self.delta if self.merge_delta is None else self.merge_delta
        merged = agglomerate(found, linkage="complete", threshold=threshold)  # numbered by lowest member
        rows: list[dict[str, Any]] = [
            {
                "clusters": len(chosen) - 1 - k,
                "distance": distance if distance < _APART else None,
                "merged": int(distance < threshold),
            }
            for k, distance in enumerate(merge_distances(found, linkage="complete").tolist())
        ]
        return merge_clusters(state, chosen, merged), rows

    def place(
        self, state: FedDriftState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedDriftState, Info]:
        """Gives clients with data the model with the minimum training loss, ignoring new models unless all are new."""
        known = (state.new if state.new.all() else ~state.new).nonzero().flatten()
        able = work.num_examples[clients] > 0
        found = work.losses(state.models[known], clients[able])
        losses = found.new_full((len(clients), len(state.models)), torch.nan)
        losses[able] = losses[able].index_copy(1, known, found)
        labels = torch.where(able, losses.nan_to_num(torch.inf).argmin(1), -1)
        info = Info(down=found.numel(), skipped=int((~able).sum()), closeness=-losses)
        return replace(state, index=assign(state.index, clients, labels)), info


def cluster_distances(losses: Tensor) -> Tensor:
    """Computes the distance of each pair of clusters: the larger rise in loss of their models on each other's clients.

    D(i, j) = max(L(i, j) - L(i, i), L(j, i) - L(j, j), 0).

    Args:
        losses: Mean loss of each cluster's clients (rows) under each cluster's model (columns) `[K, K]`: L(i, j), of
            model i on cluster j, is in row j and column i.

    Returns:
        float64 `[K, K]`; very large if a loss is not finite.
    """
    rise = losses.double() - losses.double().diagonal()
    rise = rise.nan_to_num(nan=_APART, posinf=_APART, neginf=_APART).clamp(min=0, max=_APART)
    return torch.maximum(rise, rise.T).fill_diagonal_(0)


def merge_clusters(state: FedDriftState, clusters: Tensor, groups: Tensor) -> FedDriftState:
    """Merges the clusters that belong to the same group; `clusters` (ascending) and `groups` are int64 `[n]`.

    A merged cluster has the place of its lowest number, and all clusters are numbered again in this order. Its model is
    the mean of the merged ones, weighted by the examples that have chosen each.
    """
    lowest = torch.full((int(groups.max()) + 1,), len(state.models)).scatter_reduce(0, groups, clusters, "amin")
    into = torch.arange(len(state.models)).index_copy(0, clusters, lowest[groups])  # all others stay alone
    kept, renamed = into.unique(return_inverse=True)
    several = torch.bincount(renamed)[:, None] > 1
    return replace(
        state,
        models=torch.where(several, mean_by_cluster(state.models, renamed, state.sizes), state.models[kept]),
        index=torch.where(state.index >= 0, renamed[state.index.clamp(min=0)], -1),
        sizes=torch.zeros_like(kept).index_add(0, renamed, state.sizes),
        new=state.new[kept],
    )


def _append_models(state: FedDriftState, models: Tensor) -> FedDriftState:
    """Adds new clusters with these models `[m, d]`, which no client has chosen yet; all others are no longer new."""
    return replace(
        state,
        models=torch.cat([state.models, models]),
        sizes=torch.cat([state.sizes, state.sizes.new_zeros(len(models))]),
        new=torch.arange(len(state.models) + len(models)) >= len(state.models),
    )


def _record_choices(state: FedDriftState, clients: Tensor, labels: Tensor, work: LocalWork) -> FedDriftState:
    """Records the clusters that these clients have chosen; both are int64 `[n]`."""
    return replace(
        state,
        index=assign(state.index, clients, labels),
        sizes=state.sizes.index_add(0, labels, work.num_examples[clients]),
    )


def _clients_of_new_models(state: FedDriftState, work: LocalWork) -> Tensor:
    """Finds the clients of new models, int64 `[n]`, which train in every round of this time step."""
    able = clients_with_data(work)
    labels = clusters_of(state.index, able)
    return able[(labels >= 0) & state.new[labels.clamp(min=0)]]
