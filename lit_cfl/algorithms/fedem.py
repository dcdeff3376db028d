"""FedEM: each client's data are a mixture of M distributions, and the clients train one model per distribution by EM.

arXiv:2108.10252, Algorithm 1 (client-server).

Where this differs from the paper:
* the weighted losses of a mini-batch are divided by its number of examples, as in the published code, not by the sum of
  weights.
* means have the weights n_i / sum of n over the clients of the round, as in FedAvg; the published code sums over all
  clients, and uses the models from before the round for those that were not drawn.
* the models of a client train on the same mini-batches; the published code draws different ones for each model.
* a penalty that the task adds to the loss (`kernel_l2`) is not multiplied by the responsibilities.
* a client without training data has no mixture weights; a round in which no client trains leaves the models unchanged.
* a newcomer takes `newcomer_steps` EM steps, from equal weights and with fixed models; the published code takes one
  step at each evaluation.
* the paper gives M; `num_clusters: auto` is ours (docs/automatic_clusters.md).
"""

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lit_cfl.algorithms.automatic_clusters import ClusterNumberOptions, NumClusters, known_number
from lit_cfl.algorithms.base import Algorithm, Assignment, Info, clients_with_data, require_clients
from lit_cfl.algorithms.cluster_steps import average_in_clusters
from lit_cfl.clustering.number_of_clusters import number_of_clusters
from lit_cfl.clustering.number_of_components import number_of_components
from lit_cfl.errors import Notice, count_noun
from lit_cfl.local_work import LocalWork
from lit_cfl.options import FROM_1, bounded

# maximum number of clients from which M is estimated: comparing all pairs of more clients takes too long
_DECIDING = 1000
_WORST = 1e30  # loss of an example under a diverged model: finite, so that the other models explain the example


@dataclass(frozen=True, eq=False)
class FedEMState:
    """Component models, and the mixture weights of the clients."""

    models: Tensor  # theta [M, d]
    weights: Tensor  # pi of each client, float64 [clients, M]; zeros = never selected


@dataclass(frozen=True)
class FedEM(ClusterNumberOptions, Algorithm):
    """Federated EM: a client uses a mixture of M models, with individual weights.

    Args:
        num_clusters: M, the number of models, 1 or more; 1 is FedAvg; or `auto`: decided before the first round, from
            the clients' first updates.
        newcomer_steps: EM steps by which a newcomer estimates its weights, with fixed models, 1 or more.
    """

    paper: ClassVar[str] = (
        "Marfoq, Neglia, Bellet, Kameni, Vidal. Federated Multi-Task Learning under a Mixture of Distributions. "
        "NeurIPS 2021. arXiv:2108.10252"
    )
    num_clusters: NumClusters = bounded(3, FROM_1)
    newcomer_steps: int = bounded(10, FROM_1)
    state_type = FedEMState
    closeness = "weight of the cluster's model in the client's mixture"
    mixes_models = True

    @property
    def reason_without_personal(self) -> str:
        return "a client trains several models, but keeps only one set of layers"

    @property
    def models_per_client(self) -> int:
        return known_number(self.num_clusters)

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[FedEMState, Info]:
        number, info = self._choose_number(work, rng)
        models = torch.stack([work.initial(m) for m in range(number)])
        return FedEMState(models, torch.zeros(len(work.num_examples), len(models), dtype=torch.float64)), info

    def _choose_number(self, work: LocalWork, rng: torch.Generator) -> tuple[int, Info]:
        """Chooses M if it is `auto`: the larger of the numbers of clusters and of mixture components.

        Clients in training with two or more examples, at most 1,000 drawn at random, train twice from w_0, once on each
        half of their examples.

        Raises:
            InputError: no client could train.
        """
        if self.num_clusters != "auto":
            return self.num_clusters, Info()
        clients, w0 = clients_with_data(work), work.initial(0)
        clients = clients[work.num_examples[clients] > 1]
        clients = clients[torch.randperm(len(clients), generator=rng)[:_DECIDING].sort().values]
        require_clients(1, len(clients))
        first = torch.cat([torch.randperm(n, generator=rng) % 2 for n in work.num_examples[clients].tolist()]).double()
        fitted = work.fit(w0[None], clients.repeat(2), weights=torch.cat([first, 1 - first]), purpose="count")
        rows = fitted.collect().sub_(w0)[:, : work.layout.num_parameters]  # in place, as they may be in a large file
        both = fitted.trained.view(2, -1).all(0)
        halves = rows[both.repeat(2)[fitted.trained]].view(2, int(both.sum()), -1)
        require_clients(1, int(both.sum()))
        components = number_of_components(halves, work.label_counts[clients[both]], self.max_clusters)
        clusters = number_of_clusters(halves.sum(0), self.max_clusters, rng)
        found = f"{count_noun(components, 'mixture component')} and {count_noun(clusters, 'cluster')}"
        warnings.warn(
            f"num_clusters: auto of FedEM chose {count_noun(max(components, clusters), 'model')}: the updates of "
            f"{len(halves[0])} clients have {found}, and FedEM takes the larger number",
            Notice,
            stacklevel=2,
        )
        info = Info(2 * fitted.loss, len(clients), len(rows), int((~both).sum()))
        return max(components, clusters), info

    def round(
        self, state: FedEMState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedEMState, Info]:
        able, count = cohort[work.num_examples[cohort] > 0], len(state.models)
        before = _equal_if_unknown(_look_up(state.weights, able))
        shares = responsibilities(before, work.example_losses(state.models, able), _owners(able, work))  # E-step
        weights = mean_shares(shares, _owners(able, work), len(able))  # M-step: pi
        labels, everyone = torch.arange(count).repeat_interleave(len(able)), able.repeat(count)
        fitted = work.fit(state.models, everyone, labels, weights=shares.flatten())  # M-step: LocalSolver
        sizes = work.num_examples[everyone]
        models, info = average_in_clusters(fitted, state.models, labels, sizes, work)  # line 14
        info = replace(
            info,
            loss=count * info.loss,  # the losses under the models, weighted by responsibilities, which sum to 1
            down=count * len(cohort),
            skipped=len(cohort) - int(fitted.trained.view(count, -1).all(0).sum()),
        )
        return FedEMState(models, _write_rows(state.weights, able, weights)), info

    def place(
        self, state: FedEMState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedEMState, Info]:
        """Estimates the clients' mixture weights under fixed models; clients without data keep theirs."""
        able = work.num_examples[clients] > 0
        placed, owners = clients[able], _owners(clients[able], work)
        losses = work.example_losses(state.models, placed)
        weights = _equal_if_unknown(torch.zeros(len(placed), len(state.models), dtype=torch.float64))
        for _ in range(self.newcomer_steps):
            weights = mean_shares(responsibilities(weights, losses, owners), owners, len(placed))
        closeness = torch.full((len(clients), len(state.models)), torch.nan, dtype=torch.float64)
        closeness[able] = weights
        info = Info(down=len(clients) * len(state.models), skipped=int((~able).sum()), closeness=closeness)
        return replace(state, weights=_write_rows(state.weights, placed, weights)), info

    def serve(self, state: FedEMState, clients: Tensor) -> Assignment:
        return Assignment.of_mixtures(state.models, _look_up(state.weights, clients))


def responsibilities(weights: Tensor, losses: Tensor, owners: Tensor) -> Tensor:
    """Computes the responsibility of each model for each example: pi_m exp(-loss_m), normalised over the models.

    Args:
        weights: Weights pi of each client `[n, M]`.
        losses: Loss of each example under each model `[M, N]`.
        owners: Client of each example, int64 `[N]`.

    Returns:
        `[M, N]`; those of an example sum to 1.
    """
    finite = losses.nan_to_num(nan=_WORST, posinf=_WORST)
    return (weights.log()[owners].T - finite).softmax(0)


def mean_shares(shares: Tensor, owners: Tensor, clients: int) -> Tensor:
    """Computes the weights of each client `[n, M]`: the means of its examples' responsibilities `[M, N]`."""
    sums = shares.new_zeros(clients, len(shares)).index_add_(0, owners, shares.T)
    return sums / torch.bincount(owners, minlength=clients)[:, None]


def _owners(clients: Tensor, work: LocalWork) -> Tensor:
    return torch.arange(len(clients)).repeat_interleave(work.num_examples[clients])


def _equal_if_unknown(weights: Tensor) -> Tensor:
    """Gives equal weights to clients whose weights `[n, M]` are all 0, which means unknown."""
    return torch.where(weights.sum(1, keepdim=True) > 0, weights, 1 / weights.shape[1])


def _look_up(weights: Tensor, clients: Tensor) -> Tensor:
    """Looks up the weights of clients `[n, M]`; 0 for clients that are not in the table."""
    known = clients < len(weights)
    return torch.where(known[:, None], weights[clients.clamp(max=len(weights) - 1)], 0.0)


def _write_rows(weights: Tensor, clients: Tensor, rows: Tensor) -> Tensor:
    """Writes rows into a table, which grows for new clients."""
    missing = int(clients.max()) + 1 - len(weights) if len(clients) else 0
    grown = torch.cat([weights, weights.new_zeros(max(missing, 0), weights.shape[1])])
    return grown.index_copy(0, clients, rows)
