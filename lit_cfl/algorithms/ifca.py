"""IFCA: keep k models; each client trains the one that fits its data best.

arXiv:2006.04088, Algorithm 1, option II (model averaging) or I (gradient averaging).

Where this differs from the paper:
* a model that no client chose is unchanged (line 13 would divide by zero), even if it is never chosen.
* a client without training data cannot estimate: it keeps its cluster, or has none; its weight is 0.
* option I scales the clients' whole updates by the group's share of the round. This is the paper's line 12 if a client
  takes one full-batch step; with more steps it is ours.
* a client uses the model that it chose when it last took part; the paper's own code estimates again before each test:
  `reassign_at_evaluation` (C13). The estimate uses training data, never test data as in that code.
* a newcomer chooses by its training loss; a model whose loss is not finite is chosen last.
* FlexCFL's code averages with wrong weights (C1), and estimates by a loss that includes its L2 penalty (C11).
* migration (IFCA-MIG) is FlexCFL's addition: `migrate`. It costs k models down for each client that chooses again; one
  that is selected, too, gets the models twice.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights
from lit_cfl.algorithms.automatic_clusters import ClusterNumberOptions, NumClusters, known_number
from lit_cfl.algorithms.base import Algorithm, Info, clients_with_data, require_clients
from lit_cfl.algorithms.cluster_steps import train_clusters
from lit_cfl.algorithms.migration import MigrationOptions
from lit_cfl.clustering import assign
from lit_cfl.local_work import Fitted, LocalWork
from lit_cfl.options import FROM_1, bounded


@dataclass(frozen=True, eq=False)
class IFCAState:
    """Cluster models, and the clients' clusters."""

    models: Tensor  # [k, d]
    index: Tensor  # [clients], -1 = never selected
    reference: Tensor  # migration's reference data [clients, columns]; empty without `migrate`
    sizes: Tensor  # n_i at the start [clients]; empty without `migrate`


@dataclass(frozen=True)
class IFCA(ClusterNumberOptions, MigrationOptions, Algorithm):
    """Iterative federated clustering: each selected client chooses among k models by its training loss.

    Args:
        num_clusters: Number of clusters k, 1 or more, or `auto`: decided before the first round, from the clients'
            first updates.
        weights: Weights of the clients in a cluster's mean: `equal` (paper), or their number of `examples` (FedGroup's
            code).
        averaging: Averaging of `models` within each cluster (paper, option II), or of `gradients` (option I): a cluster
            moves by the sum of its members' weighted updates over the weight of everyone who trained in the round.
        reassign_at_evaluation: Let every client in training choose again at the end of each round, so that evaluation
            finds it with the model that now fits best (paper's code); costs k models down per client. Otherwise a
            client keeps its choice of the round in which it last took part (FlexCFL's tables) (C13).
    """

    paper: ClassVar[str] = (
        "Ghosh, Chung, Yin, Ramchandran. An Efficient Framework for Clustered Federated Learning. NeurIPS 2020. "
        "arXiv:2006.04088"
    )
    num_clusters: NumClusters = bounded(3, FROM_1)
    weights: Weights = "equal"
    averaging: Literal["models", "gradients"] = "models"
    reassign_at_evaluation: bool = False
    state_type = IFCAState
    closeness = "minus the training loss of the cluster's model"

    @property
    def reason_without_means(self) -> str | None:
        return "it averages gradients, not models" if self.averaging == "gradients" else None

    def check(self, work: LocalWork) -> None:
        require_clients(known_number(self.num_clusters), len(clients_with_data(work)))
        self.require_comparable(work)

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[IFCAState, Info]:
        number, info = self.choose_number(work, rng)
        models = torch.stack([work.initial(k) for k in range(number)])  # line 1
        nobody = torch.full((len(work.num_examples),), -1)
        return IFCAState(models, nobody, *self.first_reference(work)), info

    def round(self, state: IFCAState, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[IFCAState, Info]:
        state, migrated = self._migrate(state, cohort, work, lambda some: self.estimate_clusters(state, some, work))
        estimates, estimated = self.estimate_clusters(state, cohort, work)  # lines 3 and 6
        state = replace(state, index=assign(state.index, cohort, estimates))  # no estimate: a client keeps its cluster
        weights = self.weights_of(state, cohort, work, rng)
        state, info = train_clusters(state, cohort, work, weights, prepare=self._prepare)  # lines 9, 12-13
        info = replace(info, down=0, skipped=len(cohort) - info.up)  # the models were sent for the estimate
        state, reassigned = self._reassign(state, work)
        return state, info.plus(migrated).plus(estimated).plus(reassigned)

    def _prepare(self, fitted: Fitted) -> None:
        if self.averaging == "gradients":
            fitted.hook = average_gradients

    def weights_of(self, state: IFCAState, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Weights | Tensor:
        """Returns the weights of the round's clients in their clusters' means: a rule, or one per client `[n]`."""
        return self.weights

    def _reassign(self, state: IFCAState, work: LocalWork) -> tuple[IFCAState, Info]:
        if not self.reassign_at_evaluation:
            return state, Info()
        labels, info = self.estimate_clusters(state, work.population, work)
        return replace(state, index=assign(state.index, work.population, labels)), info

    def place(self, state: IFCAState, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[IFCAState, Info]:
        """Gives clients their estimated clusters; clients without data keep their old ones, and count as skipped."""
        labels, info = self.estimate_clusters(state, clients, work)
        placed = replace(state, index=assign(state.index, clients, labels))
        return placed, replace(info, skipped=int((labels < 0).sum()))

    def estimate_clusters(self, state: IFCAState, clients: Tensor, work: LocalWork) -> tuple[Tensor, Info]:
        """Estimates each client's cluster: the model with the minimum training loss (line 6).

        Args:
            clients: Ids of the clients, int64 `[n]`.

        Returns:
            Labels int64 `[n]`, ties: the lowest; -1 without data; and an Info with the traffic, k models down per
            client. No client is asked to train, so none is skipped.
        """
        able = work.num_examples[clients] > 0
        found = self.losses_of(state.models, clients[able], work)  # [able, k]
        losses = found.new_full((len(clients), len(state.models)), float("nan"))
        losses[able] = found
        best = losses.nan_to_num(torch.inf).argmin(1)  # a diverged model fits no client
        return torch.where(able, best, -1), Info(down=len(clients) * len(state.models), closeness=-losses)

    def losses_of(self, models: Tensor, clients: Tensor, work: LocalWork) -> Tensor:
        """Computes the losses `[n, k]` by which clients choose, nan without data."""
        return work.losses(models, clients)


def average_gradients(models: Tensor, means: Tensor, weights: Tensor) -> Tensor:
    """Moves clusters by their members' weighted updates over the weight of everyone in the round (line 12, option I).

    Args:
        models: Models before the round `[k, d]`.
        means: Means of the members' local models `[k, d]`.
        weights: Sum of the members' weights `[k]`.
    """
    share = weights / weights.sum().clamp(min=torch.finfo(torch.float64).tiny)  # |group| / |S_t|, with equal weights
    return (models + share[:, None] * (means.double() - models)).to(models.dtype)
