"""CFL's cluster splits: the round, the tree of splits on the server, and how newcomers walk down it.

CFL, LayerCFL and AdaCFL define what of the clients of a cluster is compared, how, and how they are divided. A cluster
is a number from 0 and a row of `models`. When it is split, the part with the lowest client id keeps the number, and
each other part gets a new one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, client_weights, discrepancy, mean_by_cluster
from lit_cfl.algorithms.base import Algorithm, Info, Similarity
from lit_cfl.algorithms.cluster_steps import closest_by_update
from lit_cfl.clustering import assign, clusters_of, cosine_similarity, direction_cosines
from lit_cfl.clustering.similarity import warn_if_equal
from lit_cfl.local_work import LocalWork
from lit_cfl.metric_names import Row
from lit_cfl.options import FROM_0, NOT_NEGATIVE, Bounds, bounded


@dataclass(frozen=True, eq=False)
class SplitState:
    """Cluster models, and the history of splits by which newcomers are placed."""

    models: Tensor  # theta [K, d]
    index: Tensor  # [clients], -1 = none
    parent: Tensor  # the cluster that each was split from, int64 [K], -1 = none
    starts: Tensor  # start model of each split [S, d]
    layers: list[list[str]]  # layers compared in each split
    part_split: Tensor  # split of each part, int64 [P]
    part_cluster: Tensor  # cluster made from each part, int64 [P]
    part_means: Tensor  # mean of the compared features of each part, in all layers [P, parameters]


@dataclass(frozen=True)
class SplittingAlgorithm(Algorithm, ABC):
    """An algorithm that starts with one cluster and splits it; every client takes part in every round.

    Args:
        eps1: Threshold above 0: a cluster is split when the norm u of its mean update is below it, and v is above eps2.
        eps2: Threshold of v, the largest norm of an update in the cluster; 0 or more.
        warmup_rounds: Rounds before the first split, 0 or more.
        weights: Weights of the clients in a cluster's mean: their number of `examples` (paper), or `equal` (code).
    """

    eps1: float = bounded(0.4, Bounds("a number above 0", lambda number: number > 0))
    eps2: float = bounded(1.6, NOT_NEGATIVE)
    warmup_rounds: int = bounded(20, FROM_0)
    weights: Weights = "examples"
    state_type: ClassVar[type] = SplitState

    @property
    def reason_without_means(self) -> str:
        return "a cluster is split when its mean update is small, so its model has to move by that mean"

    def needs_all(self, round: int) -> bool:
        return True

    def first_clustering_round(self) -> int:
        return self.warmup_rounds

    def explain_result(self, read_clusters: Callable[[], Sequence[Row]]) -> str | None:
        clusters = read_clusters()
        tested = [row for row in clusters if row["round"] > self.warmup_rounds and row.get("u") is not None]
        if not tested or any(row["cluster"] for row in clusters):
            return None
        small = [row for row in tested if row["u"] < self.eps1]
        if not small:
            least = min(row["u"] for row in tested)
            why = f"u, the norm of the mean update, never fell below eps1 ({self.eps1}); its minimum was {least:.3g}"
        elif (most := max(row["v"] for row in small)) <= self.eps2:
            why = (
                f"where u was below eps1, v, the largest norm of an update, reached {most:.3g}, and eps2 is {self.eps2}"
            )
        else:
            why = "u and v passed eps1 and eps2, but the clients' updates allowed no split"
        return f"{type(self).__name__} split no cluster: {why} (clusters.csv has u and v of each round)"

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[SplitState, Info]:
        theta, none = work.initial(0), torch.empty(0, dtype=torch.int64)
        state = SplitState(
            models=theta[None],
            index=assign(none, work.population, torch.zeros_like(work.population)),
            parent=torch.tensor([-1]),
            starts=theta.new_empty(0, len(theta)),
            layers=[],
            part_split=none,
            part_cluster=none,
            part_means=theta.new_empty(0, work.layout.num_parameters),
        )
        return state, Info()

    def features(self, updates: Tensor, start: Tensor) -> Tensor:
        """Returns what clients are compared by `[n, parameters]`: by default the updates.

        Args:
            updates: Updates `[n, parameters]`; may be changed in place, since they may be in a large file.
            start: Model from which the clients trained `[d]`.
        """
        return updates

    def choose_layers(self, features: Tensor, work: LocalWork) -> tuple[list[str], Sequence[Mapping[str, Any]]]:
        """Chooses the layers to compare, by default all; also returns rows for the algorithm's table."""
        return ["*"], ()

    def similarity(self, rows: Tensor) -> Tensor:
        """Compares all pairs of clients, by default by cosine: `[n, n]` in [-1, 1], larger is more alike."""
        return cosine_similarity(rows)

    def nearness(self, rows: Tensor, means: Tensor) -> Tensor:
        """Compares newcomers with the means of parts, by default by cosine: `[n, P]`, larger is closer."""
        return direction_cosines(rows, means)

    @abstractmethod
    def divide(self, similarity: Tensor) -> Tensor | None:
        """Divides clients by their similarity `[n, n]` into parts, int64 `[n]`; None = no split.

        Parts are numbered from 0, by lowest member.
        """

    def round(
        self, state: SplitState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[SplitState, Info]:
        """Runs FedAvg in every cluster (CFL, Algorithm 2), then the splits (Algorithm 3)."""
        cohort = sort_by_cluster(state.index, cohort)
        labels = clusters_of(state.index, cohort)
        fitted = work.fit(state.models, cohort, labels)
        local = fitted.collect()
        clients, own = cohort[fitted.trained], labels[fitted.trained]
        updates = subtract_starts(local, state.models, own)  # Delta_i
        weights = client_weights(work.num_examples[clients], self.weights)
        moves = mean_by_cluster(updates, own, weights, into=torch.zeros_like(state.models))  # sum of n_i / n Delta_i
        after = replace(state, models=state.models + moves)
        updates, moves = (rows[:, : work.layout.num_parameters] for rows in (updates, moves))
        v = largest_norms(updates, own, len(moves))  # max_i |Delta_i| (LayerCFL, Eq. 28)
        u = torch.where(v.isnan(), v, moves.norm(dim=1))  # |sum of n_i / n Delta_i| (Eq. 27)
        tables, shown = [], None
        for cluster, mine in slices_of(own):
            stationary = work.round >= self.warmup_rounds and u[cluster] < self.eps1
            if not stationary or not float(v[cluster]) > self.eps2 or mine.stop - mine.start <= 2:
                continue
            start = state.models[cluster]
            after, found, rows = self._split(after, cluster, clients[mine], updates[mine], start, work)
            tables += [{"cluster": cluster} | dict(row) for row in rows]
            shown = shown or found
        none = u.new_full((len(after.models) - len(u),), torch.nan)  # for new clusters
        info = Info(
            loss=fitted.loss,
            down=len(labels),
            up=int(fitted.trained.sum()),
            skipped=fitted.skipped,
            scores={"train/discrepancy": discrepancy(fitted, after.models, labels, work.layout.num_parameters)},
            similarity=shown,
            clusters={"parent": after.parent, "u": torch.cat([u, none]), "v": torch.cat([v, none])},
            tables=dict.fromkeys(self.tables, tables),
        )
        return after, info

    def _split(
        self, state: SplitState, cluster: int, clients: Tensor, updates: Tensor, start: Tensor, work: LocalWork
    ) -> tuple[SplitState, Similarity, Sequence[Mapping[str, Any]]]:
        """Compares the clients `[n]` of a cluster by their updates `[n, parameters]`, and splits it if they divide.

        Also returns their similarity, and rows for the algorithm's table.
        """
        warn_if_equal(updates)
        features = self.features(updates, start)
        layers, rows = self.choose_layers(features, work)
        similarity = self.similarity(select_columns(features, work.layout.columns(layers)))
        parts = self.divide(similarity)
        if parts is not None:
            state = split_cluster(state, cluster, clients, start, layers, features, parts)
        return state, Similarity(clients, similarity), rows

    def place(
        self, state: SplitState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[SplitState, Info]:
        """Walks clients down the tree: at each split they train from its start model and join the closest part."""
        at = torch.zeros(len(clients), dtype=torch.int64)
        down = up = 0
        for split, start in enumerate(state.starts):
            columns, of_split = work.layout.columns(state.layers[split]), state.part_split == split
            numbers = state.part_cluster[of_split]
            here = (at == numbers[0]).nonzero().flatten()  # the first part has the number of the split cluster

            def near(updates: Tensor, means: Tensor, start: Tensor = start, columns: Tensor = columns) -> Tensor:
                rows = select_columns(self.features(updates, start), columns)
                return self.nearness(rows, select_columns(means, columns))

            fitted = work.fit(start[None], clients[here], purpose="place")
            parts, info = closest_by_update(fitted, start, state.part_means[of_split], near)
            at[here] = torch.where(parts >= 0, numbers[parts], -1)
            down, up = down + len(here), up + info.up
        return replace(state, index=assign(state.index, clients, at)), Info(down=down, up=up)


def split_cluster(
    state: SplitState,
    cluster: int,
    clients: Tensor,
    start: Tensor,
    layers: list[str],
    features: Tensor,
    parts: Tensor,
) -> SplitState:
    """Splits a cluster; all its parts continue from its model.

    Args:
        state: State with the models after this round.
        cluster: Number of the cluster.
        clients: Ids of its clients that trained, int64 `[n]`.
        start: Model from which they trained `[d]`.
        layers: Layers by which they were compared.
        features: Vectors by which they were compared, for all layers `[n, parameters]`.
        parts: Part of each client, int64 `[n]`, numbered from 0 by lowest member.
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


def sort_by_cluster(assignment: Tensor, clients: Tensor) -> Tensor:
    """Orders the clients `[n]` by cluster and id, so that the rows of a cluster are contiguous."""
    clients = clients.sort().values
    return clients[clusters_of(assignment, clients).argsort(stable=True)]


def slices_of(labels: Tensor) -> Iterator[tuple[int, slice]]:
    """Yields each cluster and the slice of its rows, given ascending labels `[n]`."""
    clusters, sizes = labels.unique_consecutive(return_counts=True)
    ends = sizes.cumsum(0)
    for cluster, start, end in zip(clusters.tolist(), (ends - sizes).tolist(), ends.tolist(), strict=True):
        yield cluster, slice(start, end)


def subtract_starts(rows: Tensor, models: Tensor, labels: Tensor) -> Tensor:
    """Subtracts the start models `models[labels]` from local models `[n, d]` in place, since they may be in a file."""
    for row, label in zip(rows, labels.tolist(), strict=True):
        row -= models[label]
    return rows


def largest_norms(updates: Tensor, labels: Tensor, num_clusters: int) -> Tensor:
    """Computes the largest norm of the updates in each cluster `[K]`; nan for a cluster without updates."""
    nobody = updates.new_full((num_clusters,), torch.nan)
    if not len(updates):
        return nobody
    norms = torch.stack([row.norm() for row in updates])  # row by row, to avoid a copy of rows in a file
    return nobody.scatter_reduce(0, labels, norms, "amax", include_self=False)


def select_columns(rows: Tensor, columns: Tensor) -> Tensor:
    """Selects columns (int64, ascending) of rows `[n, d]`; a view if they are contiguous, as a layer's are."""
    first, end = int(columns[0]), int(columns[-1]) + 1
    return rows[:, first:end] if end - first == len(columns) else rows[:, columns]


def scale_to_similarity(distances: Tensor) -> Tensor:
    """Scales distances `[n, n]` to similarities in [-1, 1]: 1 - 2 * distance / largest distance."""
    return 1 - 2 * distances / distances.max().clamp(min=torch.finfo(distances.dtype).tiny)
