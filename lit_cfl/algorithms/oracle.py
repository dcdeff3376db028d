"""Oracle: FedAvg inside the true clusters, an upper bound for the benefit of clustering.

The idealized algorithm of arXiv:2206.00799, which has oracle knowledge of the true clusters at each time step.

Where this differs from the paper:
* clusters are those from which the data were made (`true_clusters`), one for each client; the paper's change over time.
* a true cluster without clients in training has the model w_0.
* data in which a client's true cluster is unknown are refused, for example after a partial swap.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights
from lit_cfl.algorithms.base import Algorithm, Info
from lit_cfl.algorithms.cluster_steps import train_clusters
from lit_cfl.clustering import assign
from lit_cfl.errors import InputError
from lit_cfl.local_work import LocalWork


@dataclass(frozen=True, eq=False)
class OracleState:
    """One model per true cluster, and the row of each client's model."""

    models: Tensor  # [K, d], one for each true cluster
    clusters: Tensor  # true cluster of each model, int64 [K]
    initial: Tensor  # w_0 [d]
    index: Tensor  # row of each client's model [clients], -1 = not needed yet


@dataclass(frozen=True)
class Oracle(Algorithm):
    """FedAvg inside the true clusters: an upper bound, not a method.

    Args:
        weights: Weights of the clients in a cluster's mean: their number of `examples`, or `equal`.
    """

    paper: ClassVar[str] = (
        "Jothimurugesan, Hsieh, Wang, Joshi, Gibbons. Federated Learning under Distributed Concept Drift. "
        "AISTATS 2023. arXiv:2206.00799"
    )
    weights: Weights = "examples"
    state_type = OracleState
    sees_truth = True
    caveat = (
        "Oracle is shown the true clusters, which no method knows: an upper bound of what FedAvg gains by clusters; a "
        "method can exceed it by chance, or by other or more local work"
    )

    def check(self, work: LocalWork) -> None:
        _true_clusters(work, work.population)

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[OracleState, Info]:
        w0, none = work.initial(0), torch.empty(0, dtype=torch.int64)
        state = OracleState(w0[None][:0], none, w0, torch.full((len(work.num_examples),), -1))
        return _place(state, work.population, work), Info()

    def round(
        self, state: OracleState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[OracleState, Info]:
        state = _place(state, work.population, work)  # repeated, since data shift may have changed the true clusters
        return train_clusters(state, cohort, work, self.weights)

    def place(
        self, state: OracleState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[OracleState, Info]:
        return _place(state, clients, work), Info(down=len(clients))


def _place(state: OracleState, clients: Tensor, work: LocalWork) -> OracleState:
    """Gives clients the models of their true clusters; a new cluster starts from w_0."""
    truth = _true_clusters(work, clients)
    new = truth.unique()
    new = new[~torch.isin(new, state.clusters)]
    models = torch.cat([state.models, state.initial.expand(len(new), -1)])
    clusters = torch.cat([state.clusters, new])
    order = clusters.argsort()
    rows = order[torch.searchsorted(clusters[order], truth)]
    return replace(state, models=models, clusters=clusters, index=assign(state.index, clients, rows))


def _true_clusters(work: LocalWork, clients: Tensor) -> Tensor:
    """Returns the true clusters of these clients, int64 `[n]`. Raises InputError if one is unknown."""
    truth = work.true_clusters[clients]
    unknown = clients[truth < 0]
    if len(unknown):
        raise InputError(
            f"Oracle trains within the true clusters, but {len(unknown)} of {len(clients)} clients have no known true "
            f"cluster (such as client {int(unknown[0])}); give data with true clusters, such as rotations or a column "
            "`cluster` of ArrayData, or leave out Oracle"
        )
    return truth
