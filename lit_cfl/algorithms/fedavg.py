"""FedAvg: one model for all clients, the weighted mean of their local models.

arXiv:1602.05629, Algorithm 1.

Where this differs from the paper:
* the weights are n_i / sum of n over the clients of the round, as in the released code of FedProx and
  FedGroup, not over all clients: otherwise a small cohort would shrink the model.
* a client without training data has weight 0; a round in which no client trains leaves the model unchanged.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, client_weights
from lit_cfl.algorithms.base import Algorithm, Assignment, Info
from lit_cfl.algorithms.cluster_steps import average_in_clusters
from lit_cfl.local_work import Fitted, LocalWork


@dataclass(frozen=True, eq=False)
class FedAvgState:
    """The global model."""

    models: Tensor  # [1, d]


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging: the baseline without clusters.

    Args:
        weights: Weights of the clients in the mean: their number of `examples` (paper), or `equal`.
    """

    paper: ClassVar[str] = (
        "McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data. AISTATS 2017. arXiv:1602.05629"
    )
    weights: Weights = "examples"
    state_type = FedAvgState

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[FedAvgState, Info]:
        return FedAvgState(work.initial(0)[None]), Info()

    def round(
        self, state: FedAvgState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedAvgState, Info]:
        everyone = torch.zeros(len(cohort), dtype=torch.int64)
        weights = client_weights(work.num_examples[cohort], self.weights)
        fitted = self.train(state.models, cohort, work, rng)
        models, info = average_in_clusters(fitted, state.models, everyone, weights, work)
        return FedAvgState(models), info

    def train(self, models: Tensor, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Fitted:
        """Trains the clients `[n]` of a round from the global model `[1, d]`, for variants to override."""
        return work.fit(models, cohort)

    def place(
        self, state: FedAvgState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedAvgState, Info]:
        return state, Info(down=len(clients))  # everyone uses the one model

    def place_unlabelled(
        self, state: FedAvgState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedAvgState, Info]:
        return self.place(state, clients, work, rng)

    def serve(self, state: FedAvgState, clients: Tensor) -> Assignment:
        return Assignment(state.models, torch.zeros(len(clients), dtype=torch.int64))
