"""FeSEM: cluster clients by their local models, as in K-means, while the clusters' models are trained.

arXiv:2005.01026, Equation 3 and Algorithm 1 (stochastic expectation maximisation).

Where this differs from the paper:
* only the clients of a round take the E-step; a client's model is the one that it trained last, and the server keeps
  it, as in FlexCFL's code. So the E-step costs no traffic, but memory for one model per client.
* a round is E-step, training, M-step, as in FlexCFL's code, and the M-step is over the clients of the round. In the
  paper's Algorithm 1 the M-step, over all clients, comes before the training: a client's model is compared with the
  model from which it started, and counts in its new cluster's mean before anyone trains.
* a client that never trained joins a random cluster. In FlexCFL's code all such clients have the same model, and so
  join the same cluster; in FedRC's and FLUX's code the client trains all models, and joins the one with the minimum
  loss: `start_partition` (C14). We keep only that choice from this training.
* distances are over all parameters as in FlexCFL; FeSEM's code uses the last layer (C15), starts from K-means, and
  weights by examples.
* FlexCFL's code averages with wrong weights (C1).
* a cluster without selected members is unchanged; the paper's mean would be over no clients.
* neither paper nor code defines newcomers. Our rule: a newcomer trains once from the mean of the clusters that have
  members, and joins the nearest one.
* migration (FeSEM-MIG) is FlexCFL's addition: `migrate`. The rule does not depend on data, so models stay the same.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights
from lit_cfl.algorithms.automatic_clusters import ClusterNumberOptions, NumClusters, known_number
from lit_cfl.algorithms.base import Algorithm, Info, clients_with_data, require_clients
from lit_cfl.algorithms.cluster_steps import cold, train_clusters
from lit_cfl.algorithms.migration import MigrationOptions
from lit_cfl.algorithms.personal_models import keep_trained
from lit_cfl.clustering import assign
from lit_cfl.local_work import LocalWork
from lit_cfl.options import FROM_1, bounded


@dataclass(frozen=True, eq=False)
class FeSEMState:
    """Cluster models, and the clients' clusters and last local models."""

    models: Tensor  # C [K, d]
    index: Tensor  # [clients], -1 = never selected
    last: dict[int, Tensor]  # W_i: parameters of the model that client i trained last
    reference: Tensor  # migration's reference data [clients, columns]; empty without `migrate`
    sizes: Tensor  # n_i at the start [clients]; empty without `migrate`


@dataclass(frozen=True)
class FeSEM(ClusterNumberOptions, MigrationOptions, Algorithm):
    """Federated expectation maximisation: a client joins the cluster whose model is nearest to its last local model.

    Args:
        num_clusters: Number of clusters K, 1 or more, or `auto`: decided before the first round, from the clients'
            first updates.
        weights: Weights of the clients in a cluster's mean: `equal` (paper), or their number of `examples` (FeSEM's
            code).
        start_partition: First cluster of a client that never trained: a `random` one (paper), or the one with the
            minimum `loss` on its data after it has trained all models, as in FedRC's and FLUX's code (C14).
    """

    paper: ClassVar[str] = "Xie, Long, Shen, Zhou, Wang, Jiang. Multi-Center Federated Learning. 2020. arXiv:2005.01026"
    num_clusters: NumClusters = bounded(3, FROM_1)
    weights: Weights = "equal"
    start_partition: Literal["random", "loss"] = field(default="random", kw_only=True)
    state_type = FeSEMState
    closeness = "minus the distance of the client's model from the cluster's"

    def check(self, work: LocalWork) -> None:
        require_clients(known_number(self.num_clusters), len(clients_with_data(work)))
        self.require_comparable(work)

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[FeSEMState, Info]:
        number, info = self.choose_number(work, rng)
        models = torch.stack([work.initial(k) for k in range(number)])
        nobody = torch.full((len(work.num_examples),), -1)
        return FeSEMState(models, nobody, {}, *self.first_reference(work)), info

    def round(
        self, state: FeSEMState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FeSEMState, Info]:
        state, migrated = self._migrate(state, cohort, work, lambda some: self.estimate_clusters(state, some, work))
        able = cohort[work.num_examples[cohort] > 0]
        state, started = self.assign_first(state, cold(state, able), work, rng)
        nearest, _ = self.estimate_clusters(state, able, work)  # E-step, for clients that have trained before
        last = dict(state.last)
        state = replace(state, index=assign(state.index, able, nearest), last=last)
        weights = self.weights_of(state, able, work, rng)
        own = slice(work.layout.num_parameters)
        state, info = train_clusters(  # W_i from C_k; M-step
            state, able, work, weights, prepare=lambda fitted: keep_trained(fitted, able, last, work, own)
        )
        info = replace(info, skipped=len(cohort) - info.up)
        return state, info.plus(migrated).plus(started)

    def weights_of(self, state: FeSEMState, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Weights | Tensor:
        """Returns the weights of the round's clients in their clusters' means: a rule, or one per client `[n]`."""
        return self.weights

    def assign_first(
        self, state: FeSEMState, new: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FeSEMState, Info]:
        """Assigns clients int64 `[m]` that never trained to their first cluster (C14)."""
        if self.start_partition == "random":
            drawn = torch.randint(len(state.models), (len(work.num_examples),), generator=rng)[new]
            return replace(state, index=assign(state.index, new, drawn)), Info()
        losses = torch.full((len(new), len(state.models)), torch.inf, dtype=torch.float64)
        for k, model in enumerate(state.models):
            for chunk in work.fit(model[None], new, purpose="start").chunks():
                for row in chunk.trained.nonzero().flatten().tolist():
                    at = chunk.start + row
                    losses[at, k] = work.losses(chunk.models[row][None], new[at : at + 1])[0, 0]
        labels = losses.nan_to_num(torch.inf).argmin(1)
        info = Info(down=len(new) * (len(state.models) - 1))  # the fit of this round counts the remaining model
        return replace(state, index=assign(state.index, new, labels)), info

    def estimate_clusters(self, state: FeSEMState, clients: Tensor, work: LocalWork) -> tuple[Tensor, Info]:
        """Finds the cluster nearest to each client's last model, over all parameters: the E-step (Equation 3).

        Args:
            clients: Ids of the clients, int64 `[n]`.

        Returns:
            Labels int64 `[n]`, ties: the lowest; -1 without such a model; and an Info with the closeness `[n, K]`,
            without traffic.
        """
        models = state.models[:, : work.layout.num_parameters]  # running statistics are not part of a distance
        apart = torch.full((len(clients), len(models)), torch.nan, dtype=torch.float64)
        for row, client in enumerate(clients.tolist()):
            if client in state.last:
                apart[row] = torch.linalg.vector_norm(models - state.last[client], dim=1, dtype=torch.float64)
        known = ~apart.isnan().all(1)
        return torch.where(known, apart.nan_to_num(torch.inf).argmin(1), -1), Info(closeness=-apart)

    def place(
        self, state: FeSEMState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FeSEMState, Info]:
        """Runs the E-step; clients without a local model first train once, from the mean model of the used clusters."""
        new = clients[torch.tensor([client not in state.last for client in clients.tolist()], dtype=torch.bool)]
        used = state.index[state.index >= 0].unique()
        middle = state.models[used if len(used) else slice(None)].mean(0, keepdim=True)
        last = dict(state.last)
        own = slice(work.layout.num_parameters)
        fitted = keep_trained(work.fit(middle, new, purpose="place"), new, last, work, own).read()
        state = replace(state, last=last)
        labels, info = self.estimate_clusters(state, clients, work)
        info = replace(info, loss=fitted.loss, down=len(new), up=int(fitted.trained.sum()), skipped=fitted.skipped)
        return replace(state, index=assign(state.index, clients, labels)), info
