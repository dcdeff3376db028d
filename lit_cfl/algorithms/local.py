"""Local: each client trains its own model without communication.

The baseline "Local" of arXiv:2108.10252, Table 2; its code is the method `local` of github.com/omarfoq/FedEM.

Where this differs from the paper:
* a client trains in the rounds in which it is drawn, as with all other algorithms, so that local work is the same; in
  the published code's scripts all clients train in all rounds.
* a newcomer trains once from w_0, for as long as clients train in a round; the paper has no newcomers.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm, Assignment, Info
from lit_cfl.algorithms.personal_models import clients_without_model, look_up_models, starting_models, with_trained
from lit_cfl.local_work import LocalWork


@dataclass(frozen=True, eq=False)
class LocalState:
    """The initial model, and the models of the clients that have trained."""

    initial: Tensor  # w_0 [d], which every model starts from
    personal: dict[int, Tensor]  # [d] by client


@dataclass(frozen=True)
class Local(Algorithm):
    """Local training only: the baseline without any communication."""

    paper: ClassVar[str] = (
        "Marfoq, Neglia, Bellet, Kameni, Vidal. Federated Multi-Task Learning under a Mixture of Distributions. "
        "NeurIPS 2021. arXiv:2108.10252"
    )
    state_type = LocalState

    @property
    def reason_without_means(self) -> str:
        return "clients do not communicate, so there is no mean"

    @property
    def reason_without_personal(self) -> str:
        return "all layers of a client are its own"

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[LocalState, Info]:
        return LocalState(work.initial(0), {}), Info()

    def round(
        self, state: LocalState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[LocalState, Info]:
        models, start = starting_models(state.personal, cohort, state.initial)
        fitted = work.fit(models, cohort, start)
        personal = with_trained(state.personal, fitted, cohort, work)
        return replace(state, personal=personal), Info(fitted.loss, skipped=fitted.skipped)

    def place(
        self, state: LocalState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[LocalState, Info]:
        """Trains a model for clients without one."""
        return self.round(state, clients_without_model(state.personal, clients), work, rng)

    def serve(self, state: LocalState, clients: Tensor) -> Assignment:
        return Assignment(*look_up_models(state.personal, clients, state.initial[None]))
