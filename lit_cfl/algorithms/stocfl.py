"""StoCFL: merge clusters with similar data as clients are sampled, and pull their models towards a global one.

arXiv:2303.00897, Algorithm 1.

Where this differs from the paper:
* a client's Psi is by default its update in a short training from the anchor, as in the published code, not the
  gradient of Section 2.1: `psi` (C20).
* line 5 says "and in P"; sampled clients that are NOT yet in P are asked for Psi (C22).
* lines 9 to 17 run over all clusters; here only clusters with a client in the round are compared, as in Section 2.2.
* line 14 says "> tau", the newcomers' rule ">= tau": >= here, transitive in a round; tau = 1 never merges (C23).
* line 10 is the mean over all members observed so far; in the published code, over the sampled ones (C21). A client
  sends Psi once; a client that is placed again adds its new Psi, and the old one stays in its cluster.
* merged clusters keep the theta of the largest, whatever the order of the merges (C24). A client has no own theta
  before it is first sampled; a cluster without one starts from the current omega.
* lines 22 and 24 are simple means: `weights` (C26). All clients start from one omega; in the published code each
  continues from the result of the previous one (C2).
* newcomers that join no cluster are merged with each other by the same rule.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, client_weights, mean_by_cluster
from lit_cfl.algorithms.base import Algorithm, Assignment, Info, Similarity
from lit_cfl.algorithms.cluster_steps import average_in_clusters, cold
from lit_cfl.algorithms.stocfl_clusters import (
    StoCFLState,
    add_members,
    cosine_histogram,
    create_clusters,
    merge_clusters,
    nearest_cluster,
    objective,
    reorder_rows,
)
from lit_cfl.clustering import clusters_of, merge_by_threshold, random_projection
from lit_cfl.clustering.merging import exact_cosines, merge_similar
from lit_cfl.clustering.similarity import warn_if_equal
from lit_cfl.local_work import Budget, LocalWork, Sketch
from lit_cfl.options import FROM_1, NOT_NEGATIVE, Bounds, bounded


@dataclass(frozen=True)
class StoCFL(Algorithm):
    """Merges similar clusters as clients are sampled; each cluster trains a model that is pulled towards a global one.

    Args:
        tau: Minimum cosine of the representations of two clusters that merge, -1 to 1; 1 = never merge.
        lambda_: Pull of a cluster's model towards the global model omega, 0 or more.
        psi: Representation of a client: the `gradient` of its loss at the anchor (paper), or the `update`, anchor minus
            weights, after `psi_budget` (published code).
        psi_budget: Budget of the training for a client's `update`.
        weights: Weights of the clients in all means: `equal` (paper), or their number of `examples`.
        sketch_dim: Number of columns of a random projection of Psi that is compared instead of Psi, the same for all
            clients; None = Psi itself.
    """

    paper: ClassVar[str] = (
        "Zeng, Hu, Liu, Yu, Wang, Xu. Stochastic Clustered Federated Learning. 2023. arXiv:2303.00897"
    )
    tau: float = bounded(0.5, Bounds("a cosine, -1 (one cluster) to 1 (no merge)", lambda number: -1 <= number <= 1))
    lambda_: float = bounded(0.05, NOT_NEGATIVE)
    psi: Literal["gradient", "update"] = "update"
    psi_budget: Budget = Budget(10, "steps", "full")
    weights: Weights = "equal"
    sketch_dim: int | None = bounded(None, FROM_1)
    state_type: ClassVar[type] = StoCFLState
    closeness = "cosine of the client's representation with the cluster's"
    score_columns = ("clusters/objective",)
    tables: ClassVar[dict[str, tuple[str, ...]]] = {"cosines": ("low", "high", "pairs")}

    def check(self, work: LocalWork) -> None:
        self._sketch(work, seed=0)

    @property
    def models_per_client(self) -> int:
        return 2  # theta and omega

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[StoCFLState, Info]:
        w0 = work.initial(0)
        state = StoCFLState(
            anchor=w0,
            omega=w0,
            models=w0.new_empty(0, len(w0)),
            sums=w0.new_empty(0, self.sketch_dim or work.layout.num_parameters),
            counts=torch.empty(0, dtype=torch.int64),
            index=torch.full((len(work.num_examples),), -1),
            sketch_seed=int(torch.randint(2**31 - 1, (), generator=rng)),
        )
        return state, Info()

    def round(
        self, state: StoCFLState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[StoCFLState, Info]:
        """Runs one round (Algorithm 1, lines 4 to 25)."""
        cohort = cohort.sort().values  # clusters are numbered in the order of ids
        asked = cold(state, cohort)
        fresh, psi = self._ask_for_psi(state, asked, work)  # lines 5-8
        state, similar = self._merge(state, cohort, fresh, psi)  # lines 9-17
        labels = clusters_of(state.index, cohort)
        cohort, labels = cohort[labels >= 0], labels[labels >= 0]  # a client without data stays unobserved
        weights = client_weights(work.num_examples[cohort], self.weights)
        thetas = work.fit(state.models, cohort, labels, prox=self.lambda_, centers=state.omega[None])  # lines 19-20, 28
        models, info = average_in_clusters(thetas, state.models, labels, weights, work)  # lines 23-25
        omega, trained = self.train_omega(state.omega, cohort, work, rng)  # lines 22 and 29
        info = replace(
            info,
            down=len(asked) + 2 * len(cohort),
            up=len(fresh) + info.up + int(trained.sum()),
            skipped=len(asked) - len(fresh) + int((~(thetas.trained & trained)).sum()),
            scores=info.scores | {"clusters/objective": objective(state)},
            similarity=Similarity(cohort, similar) if len(cohort) == len(fresh) > 1 else None,
            tables={"cosines": cosine_histogram(similar)},
        )
        return replace(state, models=models, omega=omega), info

    def place(
        self, state: StoCFLState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[StoCFLState, Info]:
        """Infers the clients' clusters by comparing each client's Psi with all clusters (Section 3.3)."""
        found, psi = self._ask_for_psi(state, clients.sort().values, work)
        best, nearest, closeness = nearest_cluster(state, psi, keep=True)  # step 1
        joins = (best >= self.tau) & (self.tau < 1)  # step 2
        state = self.observe(state, found[joins], psi[joins], nearest[joins])
        if not joins.all():
            alone, own = found[~joins], psi[~joins]
            groups = merge_by_threshold(own, self.tau)
            _, start, _ = nearest_cluster(state, mean_by_cluster(own, groups))
            # a start of -1 selects omega, the last row
            state, numbers = create_clusters(state, torch.cat([state.models, state.omega[None]])[start])
            state = self.observe(state, alone, own, numbers[groups])
        closeness = None if closeness is None else reorder_rows(closeness, found, clients)
        return state, Info(down=len(clients), up=len(found), skipped=len(clients) - len(found), closeness=closeness)

    def serve(self, state: StoCFLState, clients: Tensor) -> Assignment:
        return replace(super().serve(state, clients), extra={"global": state.omega})

    def _sketch(self, work: LocalWork, seed: int) -> Sketch:
        columns = work.layout.num_parameters
        project = random_projection(columns, self.sketch_dim, seed) if self.sketch_dim else Tensor.contiguous
        return lambda rows: project(rows[:, :columns])

    def _ask_for_psi(self, state: StoCFLState, clients: Tensor, work: LocalWork) -> tuple[Tensor, Tensor]:
        """Asks clients for Psi at the anchor (line 6); returns the clients that answered, and their Psi `[n, s]`."""
        clients, sketch = clients[work.num_examples[clients] > 0], self._sketch(work, state.sketch_seed)
        if not len(clients):
            return clients, state.sums[:0]
        if self.psi == "gradient":
            return clients, work.gradients(state.anchor, clients, sketch)
        fitted = work.fit(state.anchor[None], clients, purpose="psi", budget=self.psi_budget)
        rows = torch.cat([sketch(state.anchor - chunk.models[chunk.trained]) for chunk in fitted.chunks()])
        if not rows.any():
            warn_if_equal(rows)  # warns about equal zero rows only: other equal rows are merged correctly
        return clients[fitted.trained], rows

    def _merge(self, state: StoCFLState, cohort: Tensor, fresh: Tensor, psi: Tensor) -> tuple[StoCFLState, Tensor]:
        """Merges the clusters of the cohort (lines 9 to 17).

        Also returns the cosines of the compared representations, of known clusters and then of new clients `[k, k]`.
        """
        labels = clusters_of(state.index, cohort)
        known, labels = cohort[labels >= 0], labels[labels >= 0]
        touched, place = labels.unique(return_inverse=True)
        rows = self.represent(state, touched, known, place)  # line 10
        if not len(touched) + len(fresh):
            return state, rows.new_empty(0, 0)
        similar = exact_cosines([rows, psi])
        groups = merge_similar(similar, self.tau)  # lines 12-17; groups with a known cluster come first
        before, after = groups[: len(touched)], groups[len(touched) :]
        state, lived = merge_clusters(state, touched, before)
        state, new = create_clusters(state, state.omega.expand(int(groups.max()) + 1 - len(lived), -1))
        state = self.observe(state, fresh, psi, torch.cat([lived, new])[after])
        return state, similar.to(psi.dtype)

    def observe(self, state: StoCFLState, clients: Tensor, psi: Tensor, clusters: Tensor) -> StoCFLState:
        """Adds clients `[n]` with their Psi `[n, s]` to clusters `[n]`."""
        return add_members(state, clients, psi, clusters)

    def represent(self, state: StoCFLState, clusters: Tensor, clients: Tensor, place: Tensor) -> Tensor:
        """Computes the representations `[k, s]` of clusters.

        Args:
            clusters: Numbers of the clusters, int64 `[k]`.
            clients: Clients of the round that were observed before, int64 `[n]`.
            place: Cluster of each of these clients, as a position in `clusters`, int64 `[n]`.
        """
        return state.sums[clusters]  # a mean has the direction of its sum

    def train_omega(
        self, omega: Tensor, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Trains the global model `[d]` on the clients `[n]`; also returns which of them trained, bool `[n]`."""
        fitted = work.fit(omega[None], cohort, purpose="omega")
        weights = client_weights(work.num_examples[cohort], self.weights)
        means = mean_by_cluster(fitted, torch.zeros_like(cohort), weights, into=omega[None])
        return means[0], fitted.trained
