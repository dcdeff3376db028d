"""FL+HC: FedAvg for some rounds, then one clustering by the clients' updates, then FedAvg in each cluster.

arXiv:2004.11791, Algorithm 1.

Where this differs from the paper:
* the paper's thresholds and its code could not be found: Euclidean distance, complete linkage, a cut at a number of
  clusters and 10 rounds of FedAvg are our defaults (published third-party code merges the least similar, or takes
  similarities for distances).
* every cluster starts from the joint model; the updates of the clustering round only serve to compare clients. With
  one cluster the run is FedAvg without that round.
* cohorts are drawn among all clients, as for every method here, not as a fraction of each cluster.
* a client that could not take part in the clustering (no data, or a newcomer) trains once from the joint model and
  joins the cluster whose mean update is nearest by the same distance.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, mean_by_cluster
from lit_cfl.algorithms.automatic_clusters import ClusterNumberOptions, NumClusters, known_number, number_from_updates
from lit_cfl.algorithms.base import Algorithm, Info, Similarity, clients_with_data, require_clients
from lit_cfl.algorithms.cluster_steps import closest_by_update, cold, train_clusters
from lit_cfl.clustering import agglomerate, assign, cosine_similarity, cross_distances, distances
from lit_cfl.clustering.similarity import warn_if_equal
from lit_cfl.errors import InputError
from lit_cfl.local_work import LocalWork
from lit_cfl.options import FROM_0, FROM_1, NOT_NEGATIVE, bounded


@dataclass(frozen=True, eq=False)
class FLHCState:
    """Cluster models, and the mean updates by which newcomers are placed in clusters."""

    models: Tensor  # [K, d], one before the clustering
    index: Tensor  # [clients]; all 0 before the clustering
    joint: Tensor  # the global model w at the time of the clustering [d]
    centroids: Tensor  # mean update of each cluster [K, parameters]; none before the clustering


@dataclass(frozen=True)
class FLHC(ClusterNumberOptions, Algorithm):
    """Clusters clients once, after some rounds of FedAvg.

    Args:
        warmup_rounds: Rounds of FedAvg before the clustering round, in which every client takes part; 0 or more.
        distance: Distance of two updates: `l1`, `l2` or `cosine`.
        linkage: Distance of two clusters: `single`, `complete`, `average`, or `ward` (only with `l2`).
        num_clusters: Number of clusters at which the tree is cut, 1 or more, or `auto`: decided from the updates that
            are clustered; none with `threshold`.
        threshold: Distance at which the tree is cut instead, 0 or more: clusters at or above it stay apart.
        weights: Weights of the clients in a cluster's mean: their number of `examples`, or `equal`.
    """

    paper: ClassVar[str] = (
        "Briggs, Fan, Andras. Federated Learning with Hierarchical Clustering of Local Updates to Improve Training on "
        "Non-IID Data. IJCNN 2020. arXiv:2004.11791"
    )
    warmup_rounds: int = bounded(10, FROM_0)
    distance: Literal["l1", "l2", "cosine"] = "l2"
    linkage: Literal["single", "complete", "average", "ward"] = "complete"
    num_clusters: NumClusters | None = bounded(3, FROM_1)
    threshold: float | None = bounded(None, NOT_NEGATIVE)
    weights: Weights = "examples"
    state_type = FLHCState
    closeness = "minus the distance of the client's update from the cluster's mean update"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.num_clusters is None) == (self.threshold is None):
            raise InputError(
                f"num_clusters is {self.num_clusters} and threshold {self.threshold}; give one of them, and null for "
                "the other"
            )
        if self.linkage == "ward" and self.distance != "l2":
            raise InputError(f"linkage ward needs distance l2, not {self.distance}; or choose another linkage")

    def check(self, work: LocalWork) -> None:
        require_clients(known_number(self.num_clusters), len(clients_with_data(work)))

    def needs_all(self, round: int) -> bool:
        return round == self.warmup_rounds

    def first_clustering_round(self) -> int:
        return self.warmup_rounds

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[FLHCState, Info]:
        w0 = work.initial(0)
        everyone = torch.zeros(len(work.num_examples), dtype=torch.int64)
        return FLHCState(w0[None], everyone, w0, torch.empty(0, work.layout.num_parameters, dtype=w0.dtype)), Info()

    def round(self, state: FLHCState, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[FLHCState, Info]:
        if work.round == self.warmup_rounds:
            return self._cluster(state, cohort, work, rng)
        state, placed = self.place(state, cold(state, cohort), work, rng)
        state, info = train_clusters(state, cohort, work, self.weights)
        return state, info.plus(placed)

    def _cluster(
        self, state: FLHCState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FLHCState, Info]:
        joint, cohort = state.models[0], cohort.sort().values
        require_clients(known_number(self.num_clusters), int((work.num_examples[cohort] > 0).sum()))
        fitted = work.fit(state.models, cohort)
        rows, clients = fitted.collect(), cohort[fitted.trained]
        updates = rows.sub_(joint)[:, : work.layout.num_parameters]  # in place, since the rows may be in a large file
        require_clients(known_number(self.num_clusters), len(clients))
        warn_if_equal(updates)
        number = self.num_clusters
        if number == "auto":
            number = number_from_updates(type(self).__name__, updates, self.max_clusters, rng)
        labels = agglomerate(
            distances(updates, self.distance),
            linkage=self.linkage,
            num_clusters=number,
            threshold=self.threshold,
        )
        centroids = mean_by_cluster(updates, labels)
        assignment = assign(torch.full_like(state.index, -1), clients, labels)
        similarity = Similarity(clients, cosine_similarity(updates))
        info = Info(fitted.loss, len(cohort), len(clients), fitted.skipped, similarity=similarity)
        return FLHCState(joint.repeat(len(centroids), 1), assignment, joint, centroids), info

    def place(self, state: FLHCState, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[FLHCState, Info]:
        if not len(state.centroids):  # before the clustering, only the joint model exists
            return replace(state, index=assign(state.index, clients, torch.zeros_like(clients))), Info()
        fitted = work.fit(state.joint[None], clients, purpose="place")
        labels, info = closest_by_update(
            fitted, state.joint, state.centroids, lambda rows, means: -cross_distances(rows, means, self.distance)
        )
        return replace(state, index=assign(state.index, clients, labels)), replace(info, down=len(clients))
