"""FLUX: cluster clients once by descriptors of their data; a newcomer without labels is matched by its features.

Fenoglio, Li, Barbiero, Lane, Langheinrich, Gjoreski. FLUX: Efficient Descriptor-Driven Clustered Federated Learning
under Arbitrary Distribution Shifts. NeurIPS 2025. arXiv:2511.22305; constants are from the published code, with its
descriptors `Px_label_long` and its clustering 4.

Where this differs from the paper and its code:
* the latent features are the inputs of the net's last layer; in the code, of LeNet-5's first fully connected layer
  or of ResNet-9's last layer.
* clients are clustered after `warmup_rounds` rounds; the code waits until the mean validation accuracy gains less than
  0.06 in a round, but at least 3 rounds and at most 80 % of them.
* the largest latent feature, which bounds the random points from which the axes are computed, is that of the clients'
  training data in the clustering round; in the code, of their validation data in the round before.
* every client with data sends its descriptor in that round, even if it is not in the cohort.
* if the nearest distances have no knee, their maximum is the radius, so that equal clients form one cluster; the code
  ends with an error.
* of two equal nearest distances, those of mutual neighbours, the second can always be the knee; in the code rounding
  decides.
* moments that differ between clients by rounding only are scaled to 0; the code scales these errors to [0, 1].
* a newcomer with labels is matched by its whole descriptor; the code only matches newcomers without labels.
* no noise for differential privacy is added, and clusters do not follow data that shift (the code's `flux_dynamic`).
"""

import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from lit_cfl.aggregation import Weights, mean_by_cluster
from lit_cfl.algorithms.automatic_clusters import NumClusters, known_number
from lit_cfl.algorithms.base import Algorithm, Info, Similarity, clients_with_data, require_clients
from lit_cfl.algorithms.cluster_steps import cold, train_clusters
from lit_cfl.clustering import assign, cosine_similarity, cross_distances, kmeans
from lit_cfl.clustering.density import cluster_by_density
from lit_cfl.clustering.descriptors import block_range, describe, principal_axes
from lit_cfl.errors import InputError, Notice
from lit_cfl.local_work import LocalWork
from lit_cfl.nets.last_layer import latent_features
from lit_cfl.options import ABOVE_0, FROM_0, FROM_1, bounded

_FEW = 10  # examples of a label below which its moments are uncertain (docs/algorithms/flux.md)


@dataclass(frozen=True, eq=False)
class FLUXState:
    """Cluster models, and the axes and scales of the clients' descriptors."""

    models: Tensor  # [K, d], one before the clustering
    index: Tensor  # [clients]; all 0 before the clustering
    joint: Tensor  # the model whose latent features are described [d]
    center: Tensor  # origin of the descriptors' axes in the latent space [features]; none before the clustering
    axes: Tensor  # [features, r]
    low: Tensor  # lowest value of each block of the descriptors [blocks, 1]
    width: Tensor  # range of each block [blocks, 1]
    centroids: Tensor  # mean scaled descriptor of each cluster [K, blocks, r]; none before the clustering


@dataclass(frozen=True)
class FLUX(Algorithm):
    """One clustering, by means and standard deviations of latent features; finds the number of clusters.

    Args:
        warmup_rounds: Rounds of FedAvg before the round in which clients are clustered; 0 or more.
        components: Number of axes r onto which latent features are projected, 1 or more; null = the number of labels
            (10 if there are no classes).
        radius_scale: Factor of DBSCAN's radius, which follows from the nearest distances of the clients' descriptors;
            above 0, and larger = fewer clusters.
        num_clusters: Number of clusters for K-means, 1 or more; or `auto`: DBSCAN finds the number.
        weights: Weights of the clients in a cluster's mean: their number of `examples`, or `equal`.
    """

    paper: ClassVar[str] = (
        "Fenoglio, Li, Barbiero, Lane, Langheinrich, Gjoreski. FLUX: Efficient Descriptor-Driven Clustered Federated "
        "Learning under Arbitrary Distribution Shifts. NeurIPS 2025. arXiv:2511.22305"
    )
    warmup_rounds: int = bounded(3, FROM_0)
    components: int | None = bounded(None, FROM_1)
    radius_scale: float = bounded(1.0, ABOVE_0)
    num_clusters: NumClusters = bounded("auto", FROM_1)
    weights: Weights = "examples"
    state_type = FLUXState
    closeness = "minus the distance of the client's descriptor from the cluster's mean descriptor"

    def check(self, work: LocalWork) -> None:
        require_clients(known_number(self.num_clusters), len(clients_with_data(work)))

    def first_clustering_round(self) -> int:
        return self.warmup_rounds

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[FLUXState, Info]:
        w0, none = work.initial(0), torch.empty(0, dtype=torch.float64)
        everyone = torch.zeros(len(work.num_examples), dtype=torch.int64)
        return FLUXState(w0[None], everyone, w0, none, none, none, none, none), Info()

    def round(self, state: FLUXState, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[FLUXState, Info]:
        clustered = Info()
        if work.round == self.warmup_rounds:
            state, clustered = self._cluster(state, work, rng)
        state, placed = self.place(state, cold(state, cohort), work, rng)
        state, info = train_clusters(state, cohort, work, self.weights)
        down = 0 if clustered.down else info.down  # clusters start from the model that all clients just received
        return state, replace(info, down=down).plus(placed).plus(clustered)

    def _cluster(self, state: FLUXState, work: LocalWork, rng: torch.Generator) -> tuple[FLUXState, Info]:
        """Clusters the clients with data by their descriptors."""
        joint, clients = state.models[0], clients_with_data(work)
        require_clients(known_number(self.num_clusters), len(clients))
        ranges = torch.stack([row for row in work.map(feature_range, clients, joint) if isinstance(row, Tensor)])
        _require_finite(ranges, clients)
        num_labels = work.label_counts.shape[1]
        components = self.components or num_labels or 10
        points = 1.02 * ranges[:, 1].max() * torch.rand(200, int(ranges[0, 0]), generator=rng, dtype=torch.float64)
        center, axes = principal_axes(points, components)
        state = replace(state, joint=joint, center=center, axes=axes)
        rows = self._descriptors(state, clients, work, num_labels)[0]
        low, width = block_range(rows)
        points = ((rows - low) / width).flatten(1)
        if self.num_clusters == "auto":
            labels = cluster_by_density(points, self.radius_scale)
            _note_number(labels, work.label_counts[clients])
        else:
            labels = kmeans(points, self.num_clusters, rng)
        centroids = mean_by_cluster(points, labels)
        state = replace(
            state,
            models=joint.repeat(len(centroids), 1),
            index=assign(torch.full_like(state.index, -1), clients, labels),
            low=low,
            width=width,
            centroids=centroids.unflatten(1, rows.shape[1:]),
        )
        similarity = Similarity(clients, cosine_similarity(points - points.mean(0)))
        return state, Info(down=len(clients), similarity=similarity)

    def _descriptors(
        self, state: FLUXState, clients: Tensor, work: LocalWork, num_labels: int
    ) -> tuple[Tensor, Tensor]:
        """Asks clients for descriptors; returns them `[m, blocks, r]`, and which clients sent one, bool `[n]`."""
        function = partial(describe_client, center=state.center, axes=state.axes, num_labels=num_labels)
        found = work.map(function, clients, state.joint)
        rows = [row.double() for row in found if isinstance(row, Tensor)]
        able = torch.tensor([isinstance(row, Tensor) for row in found], dtype=torch.bool)
        described = torch.stack(rows) if rows else state.centroids[:0]
        _require_finite(described, clients[able])
        return described, able

    def place(self, state: FLUXState, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[FLUXState, Info]:
        return self._join_nearest(state, clients, work, work.label_counts.shape[1])

    def place_unlabelled(
        self, state: FLUXState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FLUXState, Info]:
        return self._join_nearest(state, clients, work, 0)

    def _join_nearest(
        self, state: FLUXState, clients: Tensor, work: LocalWork, num_labels: int
    ) -> tuple[FLUXState, Info]:
        """Assigns each client to the cluster with the nearest mean descriptor."""
        if not len(state.centroids):  # before the clustering, only the joint model exists
            return replace(state, index=assign(state.index, clients, torch.zeros_like(clients))), Info()
        rows, able = self._descriptors(state, clients, work, num_labels)
        sent = 2 + 2 * num_labels
        points = ((rows[:, :sent] - state.low[:sent]) / state.width[:sent]).flatten(1)
        closeness = torch.full((len(clients), len(state.centroids)), torch.nan, dtype=torch.float64)
        closeness[able] = -cross_distances(points, state.centroids[:, :sent].flatten(1), "l2")
        labels = torch.where(able, closeness.argmax(1), -1)
        info = Info(down=int(able.sum()), skipped=int((~able).sum()), closeness=closeness)
        return replace(state, index=assign(state.index, clients, labels)), info


def _note_number(labels: Tensor, label_counts: Tensor) -> None:
    """Notes if there is one cluster, or if some have one client, for which few examples of a label are a reason.

    Args:
        labels: Cluster of each client, int64 `[n]`.
        label_counts: Examples of each label, int64 `[n, labels]`.
    """
    sizes, n = torch.bincount(labels), len(labels)
    lone, few = int((sizes == 1).sum()), int(((label_counts > 0) & (label_counts < _FEW)).any(1).sum())
    if len(sizes) == 1:
        found = (
            f"1 cluster: the descriptors of the {n} clients form one dense group, so all clients share a model, as in "
            "FedAvg; to divide them, lower radius_scale"
        )
    else:
        why = f"; {few} of {n} clients have fewer than {_FEW} examples of a label, whose moments are uncertain"
        found = (
            f"{len(sizes)} clusters, {lone} of them of one client{why * bool(few)}; to join them, raise radius_scale, "
            "or give num_clusters"
        )
    if lone or len(sizes) == 1:
        warnings.warn(f"num_clusters: auto of FLUX chose {found}", Notice, stacklevel=4)


def _require_finite(rows: Tensor, clients: Tensor) -> None:
    """Raises InputError if a client's row of feature statistics `[n, ...]` is not finite."""
    wrong = clients[~rows.flatten(1).isfinite().all(1)]
    if len(wrong):
        raise InputError(
            f"the latent features of client {int(wrong[0])} are not finite: the joint model diverged; lower the "
            "learning rate"
        )


def feature_range(inputs: Tensor, labels: Tensor, module: nn.Module) -> Tensor:
    """Computes the number of latent features, and their largest value over the client's examples: float64 `[2]`."""
    features = latent_features(module, inputs)
    return torch.tensor([features.shape[1], float(features.max())], dtype=torch.float64)


def describe_client(
    inputs: Tensor, labels: Tensor, module: nn.Module, *, center: Tensor, axes: Tensor, num_labels: int
) -> Tensor:
    """Computes mean and standard deviation of a client's projected latent features, overall and per label.

    Args:
        center: Origin of the axes `[features]`.
        axes: Axes `[features, r]`.
        num_labels: Number of labels to describe; 0 = describe only all examples together.

    Returns:
        `[2 + 2 num_labels, r]`, in the order of `describe`.
    """
    features = latent_features(module, inputs)
    points = (features.double() - center.to(features.device)) @ axes.to(features.device)
    return describe(points, labels, num_labels).to(torch.promote_types(features.dtype, torch.float32))
