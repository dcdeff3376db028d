"""IFCA: keep k models; each client trains the one that fits its data best.

arXiv:2006.04088, Algorithm 1, option II (model averaging) or I (gradient averaging).

Where this differs from the paper:
* a model that no client chose is unchanged (line 13 would divide by zero), even if it is never chosen.
* a client without training data cannot estimate: it keeps its cluster, or has none; its weight is 0.
* option I scales the clients' whole updates by the group's share of the round. This is the paper's line 12 if a client
  takes one full-batch step; with more steps it is ours.
* a client uses the model that it chose when it last took part; the paper's own code estimates again before each test:
  `reassign_at_evaluation` (C13). The estimate uses training data, never test data as in that code.
* FlexCFL's code averages with wrong weights: `weights` (C1); and estimates by a loss that includes its L2 penalty:
  `assign_with_l2` (C11).
* migration (IFCA-MIG) is FlexCFL's addition: `migrate`. A client that migrates and is selected gets the models twice.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import ClusterWeights, client_weights, discrepancy, draw_order, mean_by_cluster
from lit_cfl.algorithms.automatic_clusters import ClusterNumberOptions, NumClusters
from lit_cfl.algorithms.base import (
    Algorithm,
    Assignment,
    Info,
    clients_with_data,
    require_clients,
)
from lit_cfl.algorithms.migration import MigrationOptions
from lit_cfl.clustering import assign, clusters_of
from lit_cfl.errors import InputError
from lit_cfl.local_work import Fitted, LocalWork


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
        weights: Weights of the clients in a cluster's mean: `equal` (paper), their number of `examples` (FedGroup's
            code), or `drawn_first`: only one drawn member counts (FlexCFL's code, a mistake; only to test C1).
        averaging: Averaging of `models` within each cluster (paper, option II), or of `gradients` (option I): a cluster
            moves by the sum of its members' weighted updates over the weight of everyone who trained in the round.
        reassign_at_evaluation: Let every client in training choose again at the end of each round, so that evaluation
            finds it with the model that now fits best (paper's code); costs k models down per client. Otherwise a
            client keeps its choice of the round in which it last took part (FlexCFL's tables) (C13).
        migrate: Let clients whose data drifted choose again before training (IFCA-MIG); costs k models down per client.
        shift_threshold: Distance above which a client migrates, 0 or more; null = 0.2 for labels (the share of the data
            that may change), and measured defaults for `loss` and `features`.
        shift_metric: Measure of the change: `total_variation`, `sorted_counts` (FlexCFL's code), `l1_counts` or
            `w1_label_axis` (C4) of labels; `loss`, its rise under the cluster's model, for clients in the round; or
            `features`, the distance of mean inputs.
        assign_with_l2: Choose by the loss with the task's L2 penalty, not by the plain loss (a mistake in FlexCFL's
            code; only to test C11).
    """

    paper: ClassVar[str] = (
        "Ghosh, Chung, Yin, Ramchandran. An Efficient Framework for Clustered Federated Learning. NeurIPS 2020. "
        "arXiv:2006.04088"
    )
    num_clusters: NumClusters = 3
    weights: ClusterWeights = "equal"
    averaging: Literal["models", "gradients"] = "models"
    reassign_at_evaluation: bool = False
    assign_with_l2: bool = field(default=False, kw_only=True)
    state_type = IFCAState
    cluster_options = ("num_clusters",)
    closeness = "minus the training loss of the cluster's model"

    def __post_init__(self) -> None:
        ClusterNumberOptions.__post_init__(self)
        MigrationOptions.__post_init__(self)
        if self.averaging == "gradients" and self.weights == "drawn_first":
            raise InputError(
                "weights 'drawn_first' cannot be used with averaging gradients: it reproduces a mistake in the "
                "averaging of models; set weights to equal or examples"
            )

    @property
    def reason_without_means(self) -> str | None:
        return "it averages gradients, not models" if self.averaging == "gradients" else None

    def check(self, work: LocalWork) -> None:
        require_clients(self.known_clusters, len(clients_with_data(work)))
        self.require_comparable(work)

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[IFCAState, Info]:
        decided, info = self.decide_number(work, rng)
        models = torch.stack([work.initial(number) for number in range(decided.known_clusters)])  # line 1
        nobody = torch.full((len(work.num_examples),), -1)
        return IFCAState(models, nobody, *self.first_reference(work)), info

    def round(self, state: IFCAState, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[IFCAState, Info]:
        state, migrated = self._migrate(state, cohort, work, lambda some: self.estimate_clusters(state, some, work))
        estimates, estimated = self.estimate_clusters(state, cohort, work)  # lines 3 and 6
        state = replace(state, index=assign(state.index, cohort, estimates))
        labels = clusters_of(state.index, cohort)  # a client without an estimate keeps its cluster
        # leaves out clients without a cluster
        asked, cohort, labels = len(cohort), cohort[labels >= 0], labels[labels >= 0]
        fitted = work.fit(state.models, cohort, labels)  # line 9
        models = self._average(fitted, state.models, cohort, labels, work, rng)  # line 12 or 13
        state, reassigned = self._reassign(replace(state, models=models), work)
        trained = int(fitted.trained.sum())
        scores = {"train/discrepancy": discrepancy(fitted, models, labels, work.layout.num_parameters)}
        info = Info(fitted.loss, up=trained, skipped=asked - trained, scores=scores)
        return state, info.plus(migrated).plus(estimated).plus(reassigned)

    def _average(
        self,
        fitted: Fitted,
        models: Tensor,
        clients: Tensor,
        labels: Tensor,
        work: LocalWork,
        rng: torch.Generator,
    ) -> Tensor:
        first = self.weights == "drawn_first"
        order = draw_order(clients, len(work.num_examples), rng) if first else None
        weights = client_weights(work.num_examples[clients], self.weights, labels, order)
        means = mean_by_cluster(fitted, labels, weights, into=models)
        if self.averaging == "models":
            return means
        heard = torch.zeros(len(models), dtype=torch.float64).index_add(0, labels, weights * fitted.trained)
        share = heard / heard.sum().clamp(min=torch.finfo(torch.float64).tiny)  # |group| / |S_t|, with equal weights
        return (models + share[:, None] * (means.double() - models)).to(models.dtype)

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
        found = work.losses(state.models, clients[able], penalised=self.assign_with_l2)  # [able, k]
        losses = found.new_full((len(clients), len(state.models)), float("nan"))
        losses[able] = found
        best = losses.nan_to_num(torch.inf).argmin(1)  # a diverged model fits no client
        return torch.where(able, best, -1), Info(down=len(clients) * len(state.models), closeness=-losses)

    def serve(self, state: IFCAState, clients: Tensor) -> Assignment:
        return Assignment(state.models, clusters_of(state.index, clients))
