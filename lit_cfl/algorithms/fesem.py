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
* distances are over all parameters as in FlexCFL; FeSEM's code uses the last layer: `cluster_on` (C15). That code also
  starts from K-means, and weights by examples.
* FlexCFL's code averages with wrong weights: `weights` (C1).
* a cluster without selected members is unchanged; the paper's mean would be over no clients.
* neither paper nor code defines newcomers. Our rule: a newcomer trains once from the mean of the clusters that have
  members, and joins the nearest one.
* migration (FeSEM-MIG) is FlexCFL's addition: `migrate`. The rule does not depend on data, so models stay the same.
"""

from collections.abc import Iterator
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
from lit_cfl.local_work import Chunk, Fitted, LocalWork
from lit_cfl.memmap_rows import keep_row
from lit_cfl.parameters import ParameterLayout


@dataclass(frozen=True, eq=False)
class FeSEMState:
    """Cluster models, and the clients' clusters and last local models."""

    models: Tensor  # C [K, d]
    index: Tensor  # [clients], -1 = never selected
    last: dict[int, Tensor]  # W_i: the compared columns of the model that client i trained last
    initial: Tensor  # the compared columns of w_0
    reference: Tensor  # migration's reference data [clients, columns]; empty without `migrate`
    sizes: Tensor  # n_i at the start [clients]; empty without `migrate`


@dataclass(frozen=True)
class FeSEM(ClusterNumberOptions, MigrationOptions, Algorithm):
    """Federated expectation maximisation: a client joins the cluster whose model is nearest to its last local model.

    Args:
        num_clusters: Number of clusters K, 1 or more, or `auto`: decided before the first round, from the clients'
            first updates.
        cluster_on: Parameters that distances compare: `all` trainable ones (paper), or the kernel of the `last_layer`
            (FeSEM's code) (C15), which is the first tensor of the last layer with parameters.
        weights: Weights of the clients in a cluster's mean: `equal` (paper), their number of `examples` (FeSEM's code),
            or `drawn_first`: only one drawn member counts (FlexCFL's code, a mistake; only to test C1).
        migrate: Before training, assign clients whose data drifted to their nearest cluster (FeSEM-MIG).
        shift_threshold: Distance above which a client migrates, 0 or more; null = 0.2 for labels (the share of the data
            that may change), and measured defaults for `loss` and `features`.
        shift_metric: Measure of the change: `total_variation`, `sorted_counts` (FlexCFL's code), `l1_counts` or
            `w1_label_axis` (C4) of labels; `loss`, its rise under the cluster's model, for clients in the round; or
            `features`, the distance of mean inputs.
        start_partition: First cluster of a client that never trained: a `random` one (paper); the one with the minimum
            `loss` on its data after it has trained all models, as in FedRC's and FLUX's code; or the one nearest to the
            `same` model w_0 for all, which puts all clients into one cluster (a mistake in FlexCFL's code; only to test
            C14).
    """

    paper: ClassVar[str] = "Xie, Long, Shen, Zhou, Wang, Jiang. Multi-Center Federated Learning. 2020. arXiv:2005.01026"
    num_clusters: NumClusters = 3
    cluster_on: Literal["all", "last_layer"] = "all"
    weights: ClusterWeights = "equal"
    start_partition: Literal["random", "loss", "same"] = field(default="random", kw_only=True)
    state_type = FeSEMState
    cluster_options = ("num_clusters",)
    closeness = "minus the distance of the client's model from the cluster's"

    def __post_init__(self) -> None:
        ClusterNumberOptions.__post_init__(self)
        MigrationOptions.__post_init__(self)

    def check(self, work: LocalWork) -> None:
        require_clients(self.known_clusters, len(clients_with_data(work)))
        self.require_comparable(work)

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[FeSEMState, Info]:
        decided, info = self.decide_number(work, rng)
        models = torch.stack([work.initial(number) for number in range(decided.known_clusters)])
        reference, sizes = self.first_reference(work)
        state = FeSEMState(
            models=models,
            index=torch.full((len(work.num_examples),), -1),
            last={},
            initial=models[0, self._columns(work.layout)].clone(),
            reference=reference,
            sizes=sizes,
        )
        return state, info

    def round(
        self, state: FeSEMState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FeSEMState, Info]:
        state, migrated = self._migrate(state, cohort, work, lambda some: self.estimate_clusters(state, some, work))
        asked, cohort = len(cohort), cohort[work.num_examples[cohort] > 0]
        state, started = self._assign_first(state, cohort, work, rng)
        nearest, _ = self.estimate_clusters(state, cohort, work)  # E-step
        state = replace(state, index=assign(state.index, cohort, nearest))
        labels = clusters_of(state.index, cohort)
        last = dict(state.last)
        fitted = self._keep_rows(work.fit(state.models, cohort, labels), cohort, last, work)  # W_i from C_k
        first = self.weights == "drawn_first"
        order = draw_order(cohort, len(work.num_examples), rng) if first else None
        weights = client_weights(work.num_examples[cohort], self.weights, labels, order)
        models = mean_by_cluster(fitted, labels, weights, into=state.models)  # M-step
        trained = int(fitted.trained.sum())
        scores = {"train/discrepancy": discrepancy(fitted, models, labels, work.layout.num_parameters)}
        info = Info(fitted.loss, len(cohort), trained, asked - trained, scores)
        return replace(state, models=models, last=last), info.plus(migrated).plus(started)

    def _assign_first(
        self, state: FeSEMState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FeSEMState, Info]:
        """Assigns a first cluster to clients that have none yet (C14)."""
        new = clients[clusters_of(state.index, clients) < 0]
        if self.start_partition == "loss":
            found = self._trained_losses(state, new, work).argmin(1)
            info = Info(down=len(new) * (len(state.models) - 1))  # the fit of this round counts the remaining model
            return replace(state, index=assign(state.index, new, found)), info
        if self.start_partition == "same":
            nearest = self._distances(state.initial, state, work).argmin()
            drawn = nearest.expand(len(work.num_examples))
        else:
            drawn = torch.randint(len(state.models), (len(work.num_examples),), generator=rng)
        return replace(state, index=assign(state.index, new, drawn[new])), Info()

    def _trained_losses(self, state: FeSEMState, clients: Tensor, work: LocalWork) -> Tensor:
        """Computes clients' losses `[n, K]` under the models, each trained by the client first; inf if undefined."""
        found = torch.full((len(clients), len(state.models)), torch.inf, dtype=torch.float64)
        for k, model in enumerate(state.models):
            for chunk in work.fit(model[None], clients, purpose="start").chunks():
                for row in chunk.trained.nonzero().flatten().tolist():
                    at = chunk.start + row
                    found[at, k] = work.losses(chunk.models[row][None], clients[at : at + 1])[0, 0]
        return found.nan_to_num(torch.inf)

    def estimate_clusters(self, state: FeSEMState, clients: Tensor, work: LocalWork) -> tuple[Tensor, Info]:
        """Finds the cluster nearest to each client's last model: the E-step.

        Args:
            clients: Ids of the clients, int64 `[n]`.

        Returns:
            Labels int64 `[n]`, ties: the lowest; -1 without such a model; and an Info with the closeness `[n, K]`,
            without traffic.
        """
        closeness = torch.full((len(clients), len(state.models)), float("nan"), dtype=torch.float64)
        for row, client in enumerate(clients.tolist()):
            if client in state.last:
                closeness[row] = -self._distances(state.last[client], state, work)
        found = ~closeness.isnan().all(1)
        return torch.where(found, closeness.nan_to_num(-torch.inf).argmax(1), -1), Info(closeness=closeness)

    def _distances(self, row: Tensor, state: FeSEMState, work: LocalWork) -> Tensor:
        """Computes the distance |W - C_k| of a local model from each cluster's model, float64 `[K]`."""
        apart = state.models[:, self._columns(work.layout)] - row
        distances: Tensor = torch.linalg.vector_norm(apart, dim=1, dtype=torch.float64)
        return distances

    def _columns(self, layout: ParameterLayout) -> slice:
        if self.cluster_on == "all":
            return slice(0, layout.num_parameters)  # running statistics are not part of a distance
        kernel = next(slot for slot in layout.slots if slot.layer == layout.layers[-1])
        return slice(kernel.start, kernel.stop)

    def _keep_rows(self, fitted: Fitted, clients: Tensor, last: dict[int, Tensor], work: LocalWork) -> Fitted:
        """Wraps a fit so that its rows, which can be read only once, are copied into `last` when they are read."""
        columns = self._columns(work.layout)

        def chunks() -> Iterator[Chunk]:
            for chunk in fitted.chunks():
                ids = clients[chunk.start : chunk.start + len(chunk.models)].tolist()
                for client, row, trained in zip(ids, chunk.models, chunk.trained.tolist(), strict=True):
                    if trained:
                        last[client] = keep_row(row[columns], of=len(work.num_examples))
                yield chunk

        noted = Fitted(chunks(), work.num_examples[clients], held=fitted.held)
        noted.hook = fitted.hook
        return noted

    def place(
        self, state: FeSEMState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FeSEMState, Info]:
        """Runs the E-step; clients without a local model first train once, from the mean model of the used clusters."""
        new = clients[torch.tensor([client not in state.last for client in clients.tolist()], dtype=torch.bool)]
        used = state.index[state.index >= 0].unique()
        middle = state.models[used if len(used) else slice(None)].mean(0, keepdim=True)
        last = dict(state.last)
        fitted = self._keep_rows(work.fit(middle, new, purpose="place"), new, last, work)
        for _ in fitted.chunks():  # reading the chunks lets `_keep_rows` store the rows
            pass
        state = replace(state, last=last)
        labels, info = self.estimate_clusters(state, clients, work)
        info = replace(info, loss=fitted.loss, down=len(new), up=int(fitted.trained.sum()), skipped=fitted.skipped)
        return replace(state, index=assign(state.index, clients, labels)), info

    def serve(self, state: FeSEMState, clients: Tensor) -> Assignment:
        return Assignment(state.models, clusters_of(state.index, clients))
