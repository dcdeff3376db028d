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
* all parts of a split go on from the cluster's mean of that round; in the published code each part already goes on from
  its own mean.
* a client that could not train in the round of a split stays with the part that keeps the cluster's number.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, client_weights, discrepancy, mean_by_cluster
from lit_cfl.algorithms.base import Algorithm, Assignment, Info, Similarity, require_not_negative
from lit_cfl.algorithms.closest_cluster import closest_by_update
from lit_cfl.algorithms.splits import (
    Comparison,
    SplitState,
    Still,
    by_cluster,
    divided,
    into_updates,
    largest_norms,
    slices_of,
    unsplit,
    with_columns,
)
from lit_cfl.clustering import (
    assign,
    bipartition,
    clusters_of,
    cosine_similarity,
    direction_cosines,
    separation_threshold,
)
from lit_cfl.errors import InputError
from lit_cfl.local_work import Fitted, LocalWork


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
    weights: Weights = "examples"
    criterion_weights: Weights = "examples"
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
        """FedAvg in every cluster (Algorithm 2), then the splits (Algorithm 3)."""
        cohort = by_cluster(state.index, cohort)
        labels = clusters_of(state.index, cohort)
        fitted = work.fit(state.models, cohort, labels)
        local = fitted.collect()
        clients, own = cohort[fitted.trained], labels[fitted.trained]
        updates = into_updates(local, state.models, own)
        moves, criterion = self._means(updates, own, work.num_examples[clients], torch.zeros_like(state.models))
        after = replace(state, models=state.models + moves)
        updates, u = updates[:, : work.layout.num_parameters], criterion[:, : work.layout.num_parameters].norm(dim=1)
        v = largest_norms(updates, own, len(u))
        compared = []
        for cluster, mine in slices_of(own):
            if work.round < self.warmup_rounds or not u[cluster] < self.eps1 or mine.stop - mine.start <= 2:
                continue
            still = Still(cluster, clients[mine], updates[mine], state.models[cluster], float(v[cluster]))
            found = self._compare(still, work)
            if found is not None:
                compared.append((still, found))
                after = self._split(after, still, found)
        return after, self._info(after, fitted, labels, torch.where(v.isnan(), v, u), v, compared)

    def _means(self, updates: Tensor, labels: Tensor, sizes: Tensor, into: Tensor) -> tuple[Tensor, Tensor]:
        """The mean updates of the clusters `[K, d]`, for the models and for u."""
        means = {
            kind: mean_by_cluster(updates, labels, client_weights(sizes, kind), into=into)
            for kind in {self.weights, self.criterion_weights}
        }
        return means[self.weights], means[self.criterion_weights]

    def _compare(self, still: Still, work: LocalWork) -> Comparison | None:
        """The members beside each other, or None where they do not pull apart."""
        return Comparison(still.updates, ["*"], cosine_similarity(still.updates)) if still.v > self.eps2 else None

    def _split(self, state: SplitState, still: Still, found: Comparison) -> SplitState:
        parts = self._parts(found.similarity)
        if parts is None:
            return state
        return divided(
            state, still.number, still.clients, parts, start=still.start, features=found.features, layers=found.layers
        )

    def _parts(self, similarity: Tensor) -> Tensor | None:
        """The bipartition, if Theorem 1 allows it: labels `[n]`."""
        parts = bipartition(similarity, self.linkage)
        across = float(similarity[parts == 0][:, parts == 1].max())
        allowed = self.gamma_max is None or self.gamma_max < separation_threshold(across)
        return parts if allowed else None

    def _info(
        self,
        after: SplitState,
        fitted: Fitted,
        labels: Tensor,
        u: Tensor,
        v: Tensor,
        compared: list[tuple[Still, Comparison]],
    ) -> Info:
        new = u.new_full((len(after.models) - len(u),), torch.nan)
        return Info(
            loss=fitted.loss,
            down=len(labels),
            up=int(fitted.trained.sum()),
            skipped=fitted.skipped,
            scores={"train/discrepancy": discrepancy(fitted, after.models, labels)},
            similarity=next((Similarity(still.clients, found.similarity) for still, found in compared), None),
            clusters={"parent": after.parent, "u": torch.cat([u, new]), "v": torch.cat([v, new])},
            tables=self._tables(compared),
        )

    def _tables(self, compared: list[tuple[Still, Comparison]]) -> dict[str, list[dict[str, Any]]]:
        return {}

    def place(
        self, state: SplitState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[SplitState, Info]:
        """Down the tree: at each split of their cluster, clients train from its start and go to the part they match."""
        at = torch.zeros(len(clients), dtype=torch.int64)
        down = up = 0
        for split in range(len(state.starts)):
            numbers = state.part_cluster[state.part_split == split]
            here = (at == numbers[0]).nonzero().flatten()  # the first part has the number of the cluster split
            parts, info = self._matched(state, split, clients[here], work)
            at[here] = torch.where(parts >= 0, numbers[parts], -1)
            down, up = down + len(here), up + info.up
        return replace(state, index=assign(state.index, clients, at)), Info(down=down, up=up)

    def _matched(self, state: SplitState, split: int, clients: Tensor, work: LocalWork) -> tuple[Tensor, Info]:
        """The part of a split that each client matches, int64 `[n]`; -1 if it did not train."""
        start, columns = state.starts[split], work.layout.columns(state.layers[split])

        def closeness(updates: Tensor, means: Tensor) -> Tensor:
            features = self._features(updates, start)
            return self._closeness(with_columns(features, columns), with_columns(means, columns))

        fitted = work.fit(start[None], clients, purpose="place")
        return closest_by_update(fitted, start, state.part_means[state.part_split == split], closeness)

    def _features(self, updates: Tensor, start: Tensor) -> Tensor:
        """What is compared, of clients that trained from `start` `[d]`: `[n, parameters]`."""
        return updates

    def _closeness(self, features: Tensor, means: Tensor) -> Tensor:
        return direction_cosines(features, means)

    def serve(self, state: SplitState, clients: Tensor) -> Assignment:
        return Assignment(state.models, clusters_of(state.index, clients))
