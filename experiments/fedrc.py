"""FedRC: FedEM that divides responsibilities by each model's share of the label.

Two models that differ only in their label shares explain an example equally well after that division, so that clusters
form where the same inputs have different labels (concept shift), and not where labels or inputs differ.

arXiv:2301.12379, Algorithm 1: gamma of example (x, y) and model k is proportional to omega_ik exp(-loss_k) / P_k(y);
omega_ik is the client's mean of gamma, P_k(y) the share of label y among all examples, weighted by gamma.

Where this differs from the paper and from its published code (`FedRC` in client.py, github.com/LINs-lab/FedRC):
* P_k(y) uses each client's last round of participation. The published code uses all clients; if all participate in
  every round, as in experiments/docs/flux_table.md, both are the same.
* before the first round P_k(y) is uniform, as in the code: the first E-step is FedEM's.
* the published code can remove models that explain little, in a line that is commented out; ours never does.
* a mini-batch divides its weighted losses by its number of examples, as in the code and in our FedEM.
* a client trains its models on the same mini-batches; the code draws separate ones for each model.
* the code's SGD has weight decay 0.0005 and keeps its momentum from round to round.
* the labels are read by `work.map`, whose bytes count as traffic: n_i numbers, although M x L sums would suffice.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_cfl.aggregation import client_weights, discrepancy, mean_by_cluster
from lit_cfl.algorithms import FedEM, Info
from lit_cfl.local_work import LocalWork

_WORST = 1e30  # loss of an example under a diverged model: finite, so that the other models explain the example
_SMALLEST = 1e-8  # lower bound of a label's sum of responsibilities, as in the published code


@dataclass(frozen=True, eq=False)
class FedRCState:
    """Component models, and the mixture weights and label counts of the clients."""

    models: Tensor  # theta [M, d]
    weights: Tensor  # omega of each client, float64 [clients, M]; zeros = never selected
    counts: Tensor  # sum of responsibilities of each client, model and label, float64 [clients, M, L]


@dataclass(frozen=True)
class FedRC(FedEM):
    """FedRC: each client uses a mixture of M models, which should differ only in P(y | x)."""

    paper: ClassVar[str] = (
        "Guo, Tang, Lin. FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust "
        "Clustering. ICML 2024. arXiv:2301.12379"
    )
    state_type: ClassVar[Any] = FedRCState

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[Any, Info]:
        state, info = super().init(work, rng)
        counts = torch.zeros(*state.weights.shape, work.label_counts.shape[1], dtype=torch.float64)
        return FedRCState(state.models, state.weights, counts), info

    def round(self, state: Any, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[Any, Info]:
        able, count = cohort[work.num_examples[cohort] > 0], len(state.models)
        owners, labels = _list_owners_and_labels(able, work)
        losses = work.example_losses(state.models, able) + compute_label_shares(state.counts).log()[:, labels]
        shares = responsibilities(_or_equal(state.weights[able]), losses, owners)  # E-step
        weights = mean_shares(shares, owners, len(able))  # M-step: omega
        sums = sum_by_label(shares, owners * state.counts.shape[2] + labels, len(able), state.counts.shape[2])
        index, everyone = torch.arange(count).repeat_interleave(len(able)), able.repeat(count)
        fitted = work.fit(state.models, everyone, index, weights=shares.flatten())  # M-step: theta
        examples = client_weights(work.num_examples[everyone], "examples")
        models = mean_by_cluster(fitted, index, examples, into=state.models)
        info = Info(
            count * fitted.loss,
            down=count * len(cohort),
            up=int(fitted.trained.sum()),
            skipped=len(cohort) - int(fitted.trained.view(count, -1).all(0).sum()),
            scores={"train/discrepancy": discrepancy(fitted, models, index, work.layout.num_parameters)},
        )
        table, counts = state.weights.index_copy(0, able, weights), state.counts.index_copy(0, able, sums)
        return FedRCState(models, table, counts), info

    def place(self, state: Any, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[Any, Info]:
        """Estimates the clients' mixture weights under fixed models and label shares."""
        able = clients[work.num_examples[clients] > 0]
        owners, labels = _list_owners_and_labels(able, work)
        losses = work.example_losses(state.models, able) + compute_label_shares(state.counts).log()[:, labels]
        weights = _or_equal(state.weights.new_zeros(len(able), len(state.models)))
        for _ in range(self.newcomer_steps):
            weights = mean_shares(responsibilities(weights, losses, owners), owners, len(able))
        info = Info(down=len(clients) * len(state.models), skipped=len(clients) - len(able))
        missing = max(0, int(clients.max()) + 1 - len(state.weights)) if len(clients) else 0
        table = torch.cat([state.weights, state.weights.new_zeros(missing, len(state.models))])
        counts = torch.cat([state.counts, state.counts.new_zeros(missing, *state.counts.shape[1:])])
        return replace(state, weights=table.index_copy(0, able, weights), counts=counts), info


def responsibilities(weights: Tensor, losses: Tensor, owners: Tensor) -> Tensor:
    """Computes the responsibility of each model for each example `[M, N]`: omega exp(-loss), normalised over models.

    Args:
        weights: Weights omega of each client `[clients, M]`.
        losses: Loss of each example under each model `[M, N]`.
        owners: Client of each example, int64 `[N]`.
    """
    finite = losses.nan_to_num(nan=_WORST, posinf=_WORST)
    return (weights.log()[owners].T - finite).softmax(0)


def mean_shares(shares: Tensor, owners: Tensor, clients: int) -> Tensor:
    """Computes the weights of each client `[clients, M]`: the means of its examples' responsibilities `[M, N]`."""
    sums = shares.new_zeros(clients, len(shares)).index_add_(0, owners, shares.T)
    return sums / torch.bincount(owners, minlength=clients)[:, None]


def compute_label_shares(counts: Tensor) -> Tensor:
    """Computes P_k(y) `[M, L]` from sums `[clients, M, L]`; uniform if all sums are 0."""
    sums = counts.sum(0).clamp(min=_SMALLEST)
    return sums / sums.sum(1, keepdim=True)


def sum_by_label(shares: Tensor, cells: Tensor, clients: int, num_labels: int) -> Tensor:
    """Sums responsibilities `[M, N]` to `[clients, M, L]`, by client, model and label.

    Args:
        cells: owner * L + label of each example, int64 `[N]`.
    """
    flat = shares.new_zeros(clients * num_labels, len(shares)).index_add_(0, cells, shares.T)
    return flat.view(clients, num_labels, len(shares)).transpose(1, 2).contiguous()


def _list_owners_and_labels(clients: Tensor, work: LocalWork) -> tuple[Tensor, Tensor]:
    """Returns the owner and the label of each example `[N]`, in the order of `example_losses`."""
    owners = torch.arange(len(clients)).repeat_interleave(work.num_examples[clients])
    labels = [found for found in work.map(_select_labels, clients) if isinstance(found, Tensor)]
    return owners, torch.cat(labels) if labels else torch.empty(0, dtype=torch.int64)


def _select_labels(inputs: Tensor, labels: Tensor) -> Tensor:
    return labels


def _or_equal(weights: Tensor) -> Tensor:
    return torch.where(weights.sum(1, keepdim=True) > 0, weights, 1 / weights.shape[1])
