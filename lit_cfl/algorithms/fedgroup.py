"""FedGroup: cluster clients once by the directions of their first updates, then run FedAvg in each cluster.

arXiv:2010.06870, Algorithms 2 and 3, Equations 6 to 9.

Where this differs from the paper:
* a cluster's first model is the mean of its members' pre-trained models, and its direction the mean of their updates,
  as in the published code; Algorithm 3, line 16 averages the updates and line 17 subtracts w_0 (C6).
* clusters start from that mean; Algorithm 2, line 2 says w_0 (C7).
* pre-training has a separate budget (`pretrain`), 1 epoch as in the text; Algorithm 3 calls the full local training
  (C8). It does not count as the first epoch of the client's round.
* the inter-cluster mix divides by its weights, as in the published code: `mix` (C5). Clusters that have lost all their
  members (by FlexCFL's migration) take no part in it.
* a zero update has cosine 0 with all others, and a K-means centre without members moves to the farthest client; the
  published code gives nan, and mixes up the clusters' numbers.
* the clients to cluster are drawn among those with training data, and a client that diverges stays cold.
* the global model is the mean of the clusters' models, and is only scored (C34). "EMD" in Algorithm 3 is EDC (C9).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import Mix, Weights, mean_by_cluster, mix_clusters
from lit_cfl.algorithms.automatic_clusters import ClusterNumberOptions, NumClusters, known_number
from lit_cfl.algorithms.base import Algorithm, Assignment, Info, Similarity, clients_with_data, require_clients
from lit_cfl.algorithms.cluster_steps import closest_by_update, cold, train_clusters
from lit_cfl.clustering import agglomerate, assign, cosine_similarity, direction_cosines, edc_embedding, kmeans, madc
from lit_cfl.clustering.similarity import warn_if_equal
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget, Fitted, LocalWork
from lit_cfl.options import FROM_1, NOT_NEGATIVE, bounded


@dataclass(frozen=True, eq=False)
class FedGroupState:
    """Group models, and the update directions by which clients without a group are placed."""

    models: Tensor  # [m, d]
    initial: Tensor  # w_0 [d]
    directions: Tensor  # [m, parameters], frozen after the group cold start
    index: Tensor  # [clients], -1 = cold (no group yet)
    founders: Tensor  # ids of the clients that took part in the group cold start
    inertia: float  # within-cluster sum of squares of the founders' embedding


@dataclass(frozen=True)
class FedGroup(ClusterNumberOptions, Algorithm):
    """One model per cluster; clusters come from the directions of pre-training updates.

    Args:
        num_clusters: Number of clusters m, 1 or more, or `auto`: decided before the pre-training, from the clients'
            first updates.
        pretrain_scale: Factor alpha: min(alpha * m, clients) clients are pre-trained and clustered. The others
            join the cluster with the nearest direction later.
        measure: Similarity measure: `edc` (K-means++ on decomposed cosines) or `madc` (complete linkage).
        pretrain: Budget of the pre-training.
        eta_g: Rate of the inter-cluster mix, 0 or more; 0 = none, as in the paper's tables.
        mix: Rule of the mix: `normalised` (code) or `sum` (paper).
        weights: Weights of the clients in a cluster's mean: their number of `examples` (paper), or `equal`.
    """

    paper: ClassVar[str] = (
        "Duan, Liu, Ji, Liu, Liang, Chen, Tan. FedGroup: Efficient Federated Learning via Decomposed Similarity-Based "
        "Clustering. IEEE ISPA 2021. arXiv:2010.06870"
    )
    num_clusters: NumClusters = bounded(3, FROM_1)
    pretrain_scale: int = bounded(20, FROM_1)
    measure: Literal["edc", "madc"] = "edc"
    pretrain: Budget = Budget(1, "epochs")
    eta_g: float = bounded(0.0, NOT_NEGATIVE)
    mix: Mix = "normalised"
    weights: Weights = "examples"
    state_type: ClassVar[type] = FedGroupState
    score_columns: ClassVar[tuple[str, ...]] = ("clusters/inertia",)
    closeness: ClassVar[str] = "cosine of the client's first update with the cluster's direction"

    @property
    def known_clusters(self) -> int:
        """The number of clusters m; 1 until it has been chosen."""
        return known_number(self.num_clusters)

    @property
    def prox(self) -> float:
        """Factor of the proximal term that pulls local models towards their start; 0 = no such term."""
        return 0.0

    def check(self, work: LocalWork) -> None:
        able = len(clients_with_data(work))
        require_clients(self.known_clusters, able)
        founders = min(able, self.num_founders)
        if self.measure == "madc" and founders < 3:
            raise InputError(
                "measure madc compares two clients by their similarities to all others, so it needs at least 3 "
                f"clients in pre-training, but there are {founders} (num_clusters {self.num_clusters} times "
                f"pretrain_scale {self.pretrain_scale}, {able} at most); raise pretrain_scale, or use measure edc"
            )

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[FedGroupState, Info]:
        number, counted = self.choose_number(work, rng)
        state, info = replace(self, num_clusters=number).group_cold_start(work, rng)
        return state, info.plus(counted)

    def group_cold_start(self, work: LocalWork, rng: torch.Generator) -> tuple[FedGroupState, Info]:
        """Runs the group cold start (Algorithm 3): clusters some clients by their pre-training updates."""
        w0 = work.initial(0)
        founders = self._founders(work, rng)  # line 2
        fitted = self._pretrain(w0, founders, work)  # lines 4-5
        models = fitted.collect()
        founders = founders[fitted.trained]
        require_clients(self.known_clusters, len(founders))
        updates = (models - w0)[:, : work.layout.num_parameters]  # line 6
        warn_if_equal(updates)
        similarity = cosine_similarity(updates)  # line 8
        embedding = edc_embedding(updates, self.known_clusters)  # lines 12-13
        labels = self.cluster_founders(similarity, embedding, rng)
        state = FedGroupState(
            models=mean_by_cluster(models, labels),  # line 16
            initial=w0,
            directions=mean_by_cluster(updates, labels),  # line 17
            index=assign(torch.full((len(work.num_examples),), -1), founders, labels),
            founders=founders,
            inertia=float((embedding - mean_by_cluster(embedding, labels)[labels]).square().sum()),
        )
        info = Info(fitted.loss, len(fitted.trained), len(founders), fitted.skipped)
        return state, replace(info, similarity=Similarity(founders, similarity))

    def cluster_founders(self, similarity: Tensor, embedding: Tensor, rng: torch.Generator) -> Tensor:
        """Clusters the pre-trained clients by their cosines `[n, n]` or embedding `[n, m]`: labels int64 `[n]`."""
        if self.measure == "madc":
            return agglomerate(madc(similarity), linkage="complete", num_clusters=self.known_clusters)  # lines 9-10
        return kmeans(embedding, self.known_clusters, rng)  # line 14

    def _founders(self, work: LocalWork, rng: torch.Generator) -> Tensor:
        able = clients_with_data(work)
        require_clients(self.known_clusters, len(able))
        order = torch.rand(len(work.num_examples), generator=rng)[able].argsort()
        return able[order[: self.num_founders]].sort().values

    @property
    def num_founders(self) -> int:
        """Number of clients to pre-train; all of them, if there are fewer."""
        return self.known_clusters * self.pretrain_scale

    def _pretrain(self, w0: Tensor, clients: Tensor, work: LocalWork) -> Fitted:
        start = w0[None]
        return work.fit(start, clients, purpose="pretrain", prox=self.prox, centers=start, budget=self.pretrain)

    def round(
        self, state: FedGroupState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedGroupState, Info]:
        """Runs a round (Algorithm 2), after the cold start of clients without a group."""
        state, placed = self.place(state, cold(state, cohort), work, rng)
        used = state.index[state.index >= 0].unique()

        def mix(models: Tensor) -> Tensor:  # line 10
            mixed = mix_clusters(models[used], self.eta_g, self.mix, work.layout.num_parameters)
            return models.index_copy(0, used, mixed)

        state, info = train_clusters(state, cohort, work, self.weights, prox=self.prox, mix=mix)  # lines 7 and 13
        info = replace(info, up=info.up + (len(used) if self.eta_g else 0))
        scores = info.scores | {"clusters/inertia": state.inertia}
        return state, replace(info, scores=scores).plus(placed)

    def place(
        self, state: FedGroupState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedGroupState, Info]:
        """Runs the client cold start: places clients by their first updates."""
        labels, info = self.nearest(state, clients, work)
        return replace(state, index=assign(state.index, clients, labels)), info

    def nearest(self, state: FedGroupState, clients: Tensor, work: LocalWork) -> tuple[Tensor, Info]:
        """Finds the direction most similar to each client's first update (Eq. 9), int64 `[n]`; -1 without an update."""
        fitted = self._pretrain(state.initial, clients, work)
        return closest_by_update(fitted, state.initial, state.directions, direction_cosines)

    def serve(self, state: FedGroupState, clients: Tensor) -> Assignment:
        used = state.index[state.index >= 0].unique()
        extra = {"global": state.models[used].mean(0)} if len(used) else {}
        return replace(super().serve(state, clients), extra=extra)
