"""PACFL: cluster clients once by the angles between the subspaces of their data, then run FedAvg in each cluster.

arXiv:2209.10526, Algorithm 1, Equations 2 and 3; newcomers as in its Algorithm 3.

Where this differs from the paper:
* `angles: sum` is the sum of the principal angles. Equation 3 adds the angles of the i-th vectors of two clients, which
  depends on the order and the signs of singular vectors. The published code has neither equation: it takes the
  smallest angle between a vector of one client and a vector of the other, and keeps the signs, which are arbitrary;
  here angles are between lines. It compares subspaces of all examples (MIX-4), or one per label side by side.
* linkage `average` of the published code is usually called `weighted`: both parts of a cluster have the same weight,
  whatever their numbers of clients. Here `average` is the mean over clients. The published code also merges clusters
  whose distance equals the threshold.
* a client with fewer examples than p sends fewer vectors.
* a newcomer joins the cluster at the smallest distance by the same linkage (`weighted`: by its mean distance from the
  clients). The paper clusters all clients again, which may change the clusters of clients that have trained.
* a client keeps its cluster if its data shift.
"""

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights
from lit_cfl.algorithms.base import Algorithm, Info, Similarity, clients_with_data, require_clients
from lit_cfl.algorithms.cluster_steps import cold, train_clusters
from lit_cfl.clustering import agglomerate, assign
from lit_cfl.clustering.subspaces import Angles, left_singular_vectors, pad_bases, subspace_angles
from lit_cfl.errors import Notice, count_noun
from lit_cfl.local_work import LocalWork
from lit_cfl.options import FROM_1, NOT_NEGATIVE, bounded


@dataclass(frozen=True, eq=False)
class PACFLState:
    """Cluster models, and the subspaces of the clustered clients."""

    models: Tensor  # [K, d]
    index: Tensor  # [clients], -1 = not clustered yet
    bases: Tensor  # singular vectors of the clustered clients [n, m, inputs], padded with rows of zeros
    labels: Tensor  # clusters of the clustered clients, int64 [n]


@dataclass(frozen=True)
class PACFL(Algorithm):
    """One clustering before training, by principal angles between the clients' data.

    Args:
        num_vectors: Number p of singular vectors that a client sends, 1 or more.
        angles: Distance of two clients: the `smallest` principal angle (Eq. 2), or the `sum` of the principal angles
            (Eq. 3).
        threshold: Threshold beta in degrees, 0 or more: clusters at or above it stay apart.
        linkage: Distance of two clusters: `average`, `weighted` (published code), `single` or `complete`.
        weights: Weights of the clients in a cluster's mean: their number of `examples`, or `equal`.
    """

    paper: ClassVar[str] = (
        "Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin. Efficient Distribution Similarity Identification in "
        "Clustered Federated Learning via Principal Angles between Client Data Subspaces. AAAI 2023. arXiv:2209.10526"
    )
    num_vectors: int = bounded(3, FROM_1)
    angles: Angles = "smallest"
    threshold: float = bounded(10.0, NOT_NEGATIVE)
    linkage: Literal["average", "weighted", "single", "complete"] = "average"
    weights: Weights = "examples"
    state_type: ClassVar[type] = PACFLState
    closeness: ClassVar[str] = "minus the angle in degrees between the client's subspace and those of the cluster"

    def check(self, work: LocalWork) -> None:
        require_clients(1, len(clients_with_data(work)))

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[PACFLState, Info]:
        clients = clients_with_data(work)
        require_clients(1, len(clients))
        bases = self._bases(work, clients)  # lines 3-4
        angles = self.angles_between(bases, bases).fill_diagonal_(0)  # line 6
        angles = (angles + angles.T) / 2  # makes the matrix exactly symmetric
        labels = agglomerate(angles, linkage=self.linkage, threshold=self.threshold)  # line 7
        self._note_extremes(angles, int(labels.max()) + 1)
        state = PACFLState(
            models=work.initial(0).repeat(int(labels.max()) + 1, 1),  # line 8
            index=assign(torch.full((len(work.num_examples),), -1), clients, labels),
            bases=bases,
            labels=labels,
        )
        # for figures, sums of angles are divided by the number of vectors
        most = bases.shape[1] if self.angles == "sum" else 1
        return state, Info(similarity=Similarity(clients, (angles / most).deg2rad().cos()))

    def _note_extremes(self, angles: Tensor, clusters: int) -> None:
        """Warns if all clients form one cluster, or most of them a cluster of their own."""
        clients = len(angles)
        if clients > 1 and clusters == 1:
            say, wide = "lower it to get several", f"{float(angles.max()):.3g} degrees at most"
        elif clusters > clients / 2 > 1:
            nearest = (angles + torch.eye(clients) * 2 * angles.max()).amin(1).median()
            say, wide = "raise it to get fewer", f"{float(nearest):.3g} degrees to the nearest, in the median"
        else:
            return
        warnings.warn(
            f"PACFL has {count_noun(clusters, 'cluster')} of {clients} clients: angles between clients are {wide}, and "
            f"threshold is {self.threshold:g}; {say}",
            Notice,
            stacklevel=3,
        )

    def _bases(self, work: LocalWork, clients: Tensor) -> Tensor:
        """Asks clients for the singular vectors `[n, m, inputs]` of their data."""
        found = work.map(self.vectors_of, clients)
        return pad_bases([basis for basis in found if isinstance(basis, Tensor)])

    def vectors_of(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Computes the vectors that represent a client: the first singular vectors of its examples, `[m, inputs]`.

        Args:
            inputs: The client's inputs `[n_i, ...]`.
            labels: Their labels, not used here.
        """
        return left_singular_vectors(inputs, self.num_vectors)

    def angles_between(self, bases: Tensor, others: Tensor) -> Tensor:
        """Computes the distances of clients in degrees, float64 `[n, k]`.

        Args:
            bases: Vectors of the clients `[n, m, inputs]`, padded with rows of zeros.
            others: Vectors of the clients with which they are compared `[k, l, inputs]`.
        """
        return subspace_angles(bases, others, self.angles)

    def round(
        self, state: PACFLState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[PACFLState, Info]:
        state, placed = self.place(state, cold(state, cohort), work, rng)
        state, info = train_clusters(state, cohort, work, self.weights)  # lines 13-16
        return state, info.plus(placed)

    def place(
        self, state: PACFLState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[PACFLState, Info]:
        """Assigns clients to the cluster with the smallest distance from their subspaces, without training."""
        able = clients[work.num_examples[clients] > 0]
        skipped = len(clients) - len(able)
        if not len(able):
            return state, Info(skipped=skipped)
        angles = self.angles_between(self._bases(work, able), state.bases)
        distances = self._to_clusters(angles, state.labels)
        index = assign(state.index, able, distances.argmin(1))
        closeness = torch.full((len(clients), distances.shape[1]), torch.nan, dtype=distances.dtype)
        closeness[work.num_examples[clients] > 0] = -distances
        return replace(state, index=index), Info(skipped=skipped, closeness=closeness)

    def place_unlabelled(
        self, state: PACFLState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[PACFLState, Info]:
        return self.place(state, clients, work, rng)

    def _to_clusters(self, angles: Tensor, labels: Tensor) -> Tensor:
        """Computes each client's linkage distance from each cluster `[clients, K]`, from the angles `[clients, n]`."""
        reduce = {"single": "amin", "complete": "amax"}.get(self.linkage, "mean")
        found = angles.new_zeros(len(angles), int(labels.max()) + 1)
        return found.scatter_reduce_(1, labels.expand(len(angles), -1), angles, reduce, include_self=False)
