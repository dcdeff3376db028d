"""FedProx: FedAvg with a proximal term that keeps clients near their start, and with stragglers that do less work.

arXiv:1812.06127, Algorithm 2 and Section 5.2.

Where this differs from the paper:
* stragglers are off by default, as in the papers of clustered federated learning.
* a straggler trains 1 to E - 1 epochs (1 if E = 1), as in the released code; the paper says up to E.
* clients are drawn uniformly and averaged by their number of examples, as in the released code; the paper's text draws
  them in proportion to it and takes the simple mean (`weights: equal` takes that mean).
"""

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.algorithms.fedavg import FedAvg
from lit_cfl.errors import Notice, count_noun
from lit_cfl.local_work import Budget, Fitted, LocalWork, per_client
from lit_cfl.options import NOT_NEGATIVE, SHARE, bounded


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term against client drift.

    Args:
        weights: Weights of the clients in the mean: their number of `examples`, or `equal`.
        mu: Proximal factor: mu/2 * |w - w_t|^2 is added to each client's loss; 0 is FedAvg. The papers use 1 (Sent140:
            0.01).
        stragglers: Share of each cohort that cannot do all its work, 0 to 1; the paper tries 0, 0.5 and 0.9.
        straggler_work: Work of a straggler: a `partial` number of epochs (FedProx), or the server `drop`s the client
            (the paper's FedAvg).
    """

    paper: ClassVar[str] = (
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020. "
        "arXiv:1812.06127"
    )
    mu: float = bounded(1.0, NOT_NEGATIVE)
    stragglers: float = bounded(0.0, SHARE)
    straggler_work: Literal["partial", "drop"] = "partial"

    def train(self, models: Tensor, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Fitted:
        return work.fit(models, cohort, prox=self.mu, centers=models, budget=self.budget(cohort, work, rng))

    def budget(self, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Budget | None:
        """Draws the cohort's stragglers, and returns the clients' budgets; None = the run's budget for all."""
        if self.stragglers == 0:
            return None
        whole = per_client(work.budget.length, cohort)
        # drawn for all client ids, so that the draws do not depend on the order of the cohort
        everyone = torch.rand(2, len(work.num_examples), generator=rng)
        turn, share = everyone[:, cohort]
        partial = 1 + (share * (whole - 1)).long() if self.straggler_work == "partial" else torch.zeros_like(whole)
        number = round(self.stragglers * len(cohort))
        if not number and work.round == 0 and len(cohort):
            warnings.warn(
                f"stragglers is {self.stragglers:g}, which of {count_noun(len(cohort), 'client')} is rounded to no "
                "client; raise stragglers or cohort_size",
                Notice,
                stacklevel=3,
            )
        slow = turn.argsort().argsort() < number
        return replace(work.budget, length=torch.where(slow, partial, whole))
