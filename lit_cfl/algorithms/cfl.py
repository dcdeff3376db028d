"""CFL: one FedAvg for everybody, split in two wherever it stands still while its clients still pull apart.

Sattler, Müller, Samek. Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under Privacy
Constraints. IEEE TNNLS 2021. arXiv:1910.01991, Algorithms 2 and 3, Theorem 1.

Where this differs from the paper:
* the bipartition is exactly optimal; the published code's complete linkage need not be: `linkage` (C29).
* clients keep their ids through every split; the published notebook goes on with positions in the cluster and mixes
  them up from the second split on (C30).
* Theorem 1's test needs gamma_max, which cannot be observed: `gamma_max`, off by default, as in all code (C31).
* the published code takes simple means, in the criterion as well: `weights`, `criterion_weights` (C32).
* a cluster of one or two clients is never split, as in the published code; `warmup_rounds` are that code's, too.
* a newcomer walks down the tree of splits and goes at each to the part whose MEAN is most alike; the paper compares it
  with each member, whose updates we do not keep. Of a split, the server keeps the model before it and those means.
* a client without data at a split stays with the part that keeps the cluster's number.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import client_weights, discrepancy, mean_by_cluster
from lit_cfl.algorithms.base import Algorithm, Assignment, Info, Similarity, require_not_negative
from lit_cfl.algorithms.splits import SplitState, divided, unsplit
from lit_cfl.clustering import (
    assign,
    bipartition,
    clusters_of,
    cosine_similarity,
    direction_cosines,
    separation_threshold,
)
from lit_cfl.errors import InputError
from lit_cfl.local.work import Fitted, LocalWork


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a cluster's clients look like beside each other.

    Args:
        features: what was compared, in all layers `[n, parameters]`.
        layers: those that were looked at.
        similarity: `[n, n]`, larger is more alike.
        scores: of each layer, where layers were chosen by them: names to numbers.
    """

    features: Tensor
    layers: list[str]
    similarity: Tensor
    scores: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CFL(Algorithm):
    """Splits clusters by the signs of their clients' updates; every client takes part in every round.

    A cluster is split when the norm u of its mean update is below eps1 and the largest norm v of a client's update is
    above eps2. Both are in `clusters.csv`; rule of thumb: eps1 a tenth of the largest u, eps2 from eps1 to 10 eps1.

    Args:
        eps1: above 0.
        eps2: 0 or more.
        warmup_rounds: no split before so many rounds, 0 or more.
        gamma_max: split only if it is below sqrt((1 - a) / 2), with a the largest cosine across (Theorem 1), 0 to 1;
            None = never ask.
        linkage: `single` finds the optimal bipartition (paper), `complete` need not (code) (C29).
        weights: of the clients in a cluster's mean: their number of `examples` (paper), or `equal` (code).
        criterion_weights: the same for u (C32).
    """

    eps1: float = 0.4
    eps2: float = 1.6
    warmup_rounds: int = 20
    gamma_max: float | None = None
    linkage: Literal["single", "complete"] = "single"
    weights: Literal["examples", "equal"] = "examples"
    criterion_weights: Literal["examples", "equal"] = "examples"
    state_type: ClassVar[type] = SplitState

    def __post_init__(self) -> None:
        if not self.eps1 > 0:
            raise InputError(f"eps1 is {self.eps1}; no norm is below that: give a number above 0")
        require_not_negative(eps2=self.eps2, warmup_rounds=self.warmup_rounds)
        if self.gamma_max is not None and not 0 <= self.gamma_max <= 1:
            raise InputError(f"gamma_max is {self.gamma_max}; give 0 to 1, or null for no test")

    def needs_all(self, round: int) -> bool:
        return True

    def first_clustering_round(self) -> int:
        return self.warmup_rounds

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[SplitState, Info]:
        return unsplit(work.initial(0), work.population, work.layout.num_parameters), Info()

    def round(
        self, state: SplitState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[SplitState, Info]:
        """A round of Algorithm 3 in every cluster."""
        cohort = cohort[(clusters_of(state.index, cohort) >= 0) & (work.num_examples[cohort] > 0)]
        cohort = cohort[(clusters_of(state.index, cohort) * len(state.index) + cohort).argsort()]  # rows by cluster
        if not len(cohort):
            return state, Info()
        labels = clusters_of(state.index, cohort)
        fitted = work.fit(state.models, cohort, labels)
        updates = fitted.collect()
        clients, labels = cohort[fitted.trained], labels[fitted.trained]
        for row, label in zip(updates, labels.tolist(), strict=True):
            row -= state.models[label]  # in place: they may fill a disk
        sizes, nothing = work.num_examples[clients], torch.zeros_like(state.models)
        before, moves = state, mean_by_cluster(updates, labels, client_weights(sizes, self.weights), into=nothing)
        state = replace(state, models=state.models + moves)
        updates = updates[:, : work.layout.num_parameters]
        criterion = mean_by_cluster(
            updates, labels, client_weights(sizes, self.criterion_weights), into=nothing[:, : updates.shape[1]]
        )
        u, v = criterion.norm(dim=1), _largest_norms(updates, labels, len(nothing))
        compared: dict[int, Comparison] = {}
        for cluster, size in zip(*(found.tolist() for found in labels.unique(return_counts=True)), strict=True):
            if work.round < self.warmup_rounds or not u[cluster] < self.eps1 or size <= 2:
                continue
            first = int(torch.searchsorted(labels, cluster))
            mine, start = slice(first, first + size), before.models[cluster, : updates.shape[1]]
            looked = self._compare(updates[mine], start, float(v[cluster]), work)
            if looked is None:
                continue
            compared[cluster] = looked
            parts = self._parts(looked.similarity)
            if parts is not None:
                state = divided(
                    state, cluster, clients[mine], parts,
                    start=before.models[cluster], features=looked.features, layers=looked.layers,
                )  # fmt: skip
        return state, self._info(state, fitted, len(cohort), u, v, compared, clients, labels)

    def _compare(self, updates: Tensor, start: Tensor, v: float, work: LocalWork) -> Comparison | None:
        """The members of a cluster that stands still, or None where they do not pull apart."""
        return Comparison(updates, ["*"], cosine_similarity(updates)) if v > self.eps2 else None

    def _parts(self, similarity: Tensor) -> Tensor | None:
        """The optimal bipartition, if Theorem 1 allows it: labels `[n]`."""
        parts = bipartition(similarity, self.linkage)
        across = float(similarity[parts == 0][:, parts == 1].max())
        allowed = self.gamma_max is None or self.gamma_max < separation_threshold(across)
        return parts if allowed else None

    def _info(
        self, state: SplitState, fitted: Fitted, asked: int, u: Tensor, v: Tensor, compared: dict[int, Comparison],
        clients: Tensor, labels: Tensor,
    ) -> Info:  # fmt: skip
        new = u.new_full((len(state.models) - len(u),), float("nan"))
        first = next(iter(compared), None)
        return Info(
            loss=fitted.loss,
            down=asked,
            up=len(clients),
            skipped=fitted.skipped,
            scores={"train/discrepancy": discrepancy(fitted, state.models, labels)},
            similarity=None if first is None else Similarity(clients[labels == first], compared[first].similarity),
            clusters={"parent": state.parent, "u": torch.cat([u, new]), "v": torch.cat([v, new])},
            tables=self._tables(compared),
        )

    def _tables(self, compared: dict[int, Comparison]) -> dict[str, list[dict[str, Any]]]:
        return {}

    def place(
        self, state: SplitState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[SplitState, Info]:
        """Down the tree: at each split of their cluster, clients train from its start and go to the part they match."""
        at = torch.zeros(len(clients), dtype=torch.int64)
        down = up = 0
        for split, start in enumerate(state.starts):
            parts = state.part_split == split
            numbers, means = state.part_cluster[parts], state.part_means[parts]
            here = (at == numbers[0]).nonzero().flatten()
            columns = work.layout.columns(state.layers[split])
            fitted = work.fit(start[None], clients[here], purpose="place")
            for chunk in fitted.chunks():
                features = self._features((chunk.models - start)[:, : means.shape[1]], start[: means.shape[1]])
                closest = self._closeness(features[:, columns], means[:, columns]).argmax(1)  # ties: the older number
                mine = here[chunk.start : chunk.start + len(closest)]
                at[mine] = torch.where(chunk.trained, numbers[closest], -1)
            down, up = down + len(here), up + int(fitted.trained.sum())
        found = at >= 0
        return replace(state, index=assign(state.index, clients[found], at[found])), Info(down=down, up=up)

    def _features(self, updates: Tensor, start: Tensor) -> Tensor:
        """What is compared, of clients that trained from `start`: `[n, parameters]`."""
        return updates

    def _closeness(self, features: Tensor, means: Tensor) -> Tensor:
        return direction_cosines(features, means)

    def serve(self, state: SplitState, clients: Tensor) -> Assignment:
        return Assignment(state.models, clusters_of(state.index, clients))


def _largest_norms(updates: Tensor, labels: Tensor, num_clusters: int) -> Tensor:
    """The largest norm of an update in each cluster `[K]`; 0 without any."""
    norms = torch.stack([row.norm() for row in updates])
    return updates.new_zeros(num_clusters).scatter_reduce(0, labels, norms, "amax")
