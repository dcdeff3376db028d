"""Ditto: a personal model per client, regularised towards the global model that FedAvg trains.

arXiv:2012.04221, Algorithm 1.

Where this differs from the paper:
* the personal model trains after the global one, on different mini-batches; the published code takes both steps on the
  same mini-batch. Its centre w_t is frozen either way, so neither depends on the other.
* clients are drawn by the run's rule and averaged by their number of examples; the published code draws them in
  proportion to it and takes the simple mean (`weights: equal`).
* the personal budget is the run's (`personal`: another); the published code takes 2 iterations.
* a newcomer trains its personal model once from the global one; the paper has no newcomers.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, client_weights
from lit_cfl.algorithms.base import Algorithm, Assignment, Info
from lit_cfl.algorithms.cluster_steps import average_in_clusters
from lit_cfl.algorithms.personal_models import clients_without_model, look_up_models, starting_models, with_trained
from lit_cfl.local_work import Budget, Fitted, LocalWork
from lit_cfl.options import NOT_NEGATIVE, bounded


@dataclass(frozen=True, eq=False)
class DittoState:
    """The global model, and the personal models of the clients that have trained."""

    models: Tensor  # w [1, d]
    initial: Tensor  # w_0 [d], which every personal model starts from
    # v_k [d] by client; stored in files if all of them would take more than half of the memory
    personal: dict[int, Tensor]


@dataclass(frozen=True)
class Ditto(Algorithm):
    """Trains a personal model per client, pulled towards the global one; each client is its own cluster.

    Args:
        lambda_: Pull towards the global model: lambda/2 * |v - w_t|^2 is added to each client's personal loss. 0 or
            more; 0 is local training.
        weights: Weights of the clients in the global mean: their number of `examples`, or `equal` (published code).
        personal: Budget of the personal model in a round; none = the run's.
    """

    paper: ClassVar[str] = (
        "Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021. "
        "arXiv:2012.04221"
    )
    lambda_: float = bounded(1.0, NOT_NEGATIVE)
    weights: Weights = "examples"
    personal: Budget | None = None
    state_type = DittoState

    @property
    def reason_without_personal(self) -> str:
        return "each client has a whole model of its own"

    @property
    def models_per_client(self) -> int:
        return 2  # the global and the personal model

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[DittoState, Info]:
        w0 = work.initial(0)
        return DittoState(w0[None], w0, {}), Info()

    def round(
        self, state: DittoState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[DittoState, Info]:
        everyone = torch.zeros(len(cohort), dtype=torch.int64)
        weights = client_weights(work.num_examples[cohort], self.weights)
        fitted = work.fit(state.models, cohort)  # line 5
        models, info = average_in_clusters(fitted, state.models, everyone, weights, work)  # line 8
        own, personal = self._personalise(state, cohort, work)  # line 6
        info = replace(info, loss=own.loss, skipped=int((~(fitted.trained & own.trained)).sum()))
        return replace(state, models=models, personal=personal), info

    def place(
        self, state: DittoState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[DittoState, Info]:
        """Trains personal models for clients without one, starting from the global model and pulled towards it."""
        new = clients_without_model(state.personal, clients)
        own, personal = self._personalise(replace(state, initial=state.models[0]), new, work)
        return replace(state, personal=personal), Info(own.loss, down=len(new), skipped=own.skipped)

    def _personalise(self, state: DittoState, clients: Tensor, work: LocalWork) -> tuple[Fitted, dict[int, Tensor]]:
        models, start = starting_models(state.personal, clients, state.initial)
        pull: dict[str, Any] = {"prox": self.lambda_, "centers": state.models}
        fitted = work.fit(models, clients, start, purpose="personal", budget=self.personal, **pull)
        return fitted, with_trained(state.personal, fitted, clients, work)

    def serve(self, state: DittoState, clients: Tensor) -> Assignment:
        models, index = look_up_models(state.personal, clients, state.models)
        return Assignment(models, index, {"global": state.models[0]})
