"""Published code where it differs from its paper, and FedGroup's ablations: variants of Lit-CFL's algorithms.

The papers' tables need them. By default a variant does what its algorithm does; each option adds one difference. The
numbers C1, C2, ... are those of docs/disputed_points.md. From the root of a checkout:

    lit-cfl run --config ifca/digits --algorithm experiments.published.PublishedIFCA --algorithm.weights drawn_first
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lit_cfl.aggregation import client_weights, mean_by_cluster
from lit_cfl.algorithms import IFCA, PACFL, FedGroup, FedGrouProx, FeSEM, FlexCFL, Info, StoCFL
from lit_cfl.clustering import assign, clusters_of
from lit_cfl.errors import InputError
from lit_cfl.local_work import Chunk, Fitted, LocalWork

State = Any  # state of an algorithm
Rule = Literal["examples", "equal"]
Weights = Literal[Rule, "drawn_first"]
ShiftMetric = Literal["total_variation", "sorted_counts", "loss", "features"]
_PRODUCTS_AT_ONCE = 2**22  # maximum number of inner products of vectors that are in memory at once


def draw_order(clients: Tensor, num_clients: int, rng: torch.Generator) -> Tensor:
    """Draws a random sort key for each client `[n]`, which does not depend on the other clients: float64 `[n]`."""
    return torch.rand(num_clients, generator=rng, dtype=torch.float64)[clients]


def weigh_first_drawn(index: Tensor, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Tensor:
    """Weighs one client in each cluster with 1, and all others with 0: float64 `[n]` (C1).

    The list of weights in FlexCFL's IFCA and FeSEM has one element, so that a cluster takes the model of the first of
    its clients with data in an unsorted draw (times K / (K + 1e-5), left out here).

    Args:
        index: Cluster of each client, int64 `[clients]`, -1 = none.
        cohort: Clients of the round, int64 `[n]`.
    """
    order, able = draw_order(cohort, len(work.num_examples), rng), work.num_examples[cohort] > 0
    found, cluster = clusters_of(index, cohort).unique(return_inverse=True)
    first = order.new_full((len(found),), torch.inf).scatter_reduce(0, cluster[able], order[able], "amin")
    return (order == first[cluster]).double()


def compare_sorted_counts(now: Tensor, before: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Compares sorted counts of labels, which do not tell labels apart, with n_i at the start (C4)."""
    return (now.sort(1).values - before.sort(1).values).abs().sum(1), sizes.double()


@dataclass(frozen=True)
class PublishedIFCA(IFCA):
    """IFCA in FlexCFL's code (C1, C4, C11).

    Takes the arguments of IFCA, and:

    Args:
        weights: Weights of the clients in a cluster's mean, as in IFCA, or `drawn_first`: only one drawn member counts
            (C1).
        assign_with_l2: Let clients choose by a loss that includes the task's penalty, such as `kernel_l2` (C11).
        shift_metric: Measure of the change, as in IFCA, or of `sorted_counts` of labels (C4).
    """

    weights: Weights = "equal"  # type: ignore[assignment]  # one more word than IFCA's
    assign_with_l2: bool = field(default=False, kw_only=True)
    # sorted_counts: one more word than IFCA's
    shift_metric: ShiftMetric = field(default="total_variation", kw_only=True)  # type: ignore[assignment]

    def weights_of(self, state: State, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Rule | Tensor:
        if self.weights == "drawn_first":
            return weigh_first_drawn(state.index, cohort, work, rng)
        return super().weights_of(state, cohort, work, rng)

    def losses_of(self, models: Tensor, clients: Tensor, work: LocalWork) -> Tensor:
        losses = super().losses_of(models, clients, work)
        if not self.assign_with_l2 or not len(clients):
            return losses
        found = [work.map(compute_penalty, clients[:1], model) for model in models]
        return losses + torch.stack(
            [penalty for answers in found for penalty in answers if isinstance(penalty, Tensor)]
        )

    def label_change(self, now: Tensor, before: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        change = compare_sorted_counts if self.shift_metric == "sorted_counts" else super().label_change
        return change(now, before, sizes)


def compute_penalty(inputs: Tensor, labels: Tensor, module: nn.Module) -> Tensor:
    """Computes the penalty that a task adds to each training loss, float64, 0-d."""
    method: Any = module.penalty
    penalty: Tensor = method()
    return penalty.double()


@dataclass(frozen=True)
class PublishedFeSEM(FeSEM):
    """FeSEM in FlexCFL's code (C1, C4, C14).

    Takes the arguments of FeSEM, and:

    Args:
        weights: Weights of the clients in a cluster's mean, as in FeSEM, or `drawn_first`: only one drawn member counts
            (C1).
        start_partition: First cluster of a client that never trained, as in FeSEM, or the one nearest to the `same`
            model w_0 for all, which puts all clients into one cluster (C14).
        shift_metric: Measure of the change, as in FeSEM, or of `sorted_counts` of labels (C4).
    """

    weights: Weights = "equal"  # type: ignore[assignment]  # one more word than FeSEM's
    start_partition: Literal["random", "loss", "same"] = field(  # type: ignore[assignment]  # one more word, too
        default="random", kw_only=True
    )
    # sorted_counts: one more word than FeSEM's
    shift_metric: ShiftMetric = field(default="total_variation", kw_only=True)  # type: ignore[assignment]

    def weights_of(self, state: State, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Rule | Tensor:
        if self.weights == "drawn_first":
            return weigh_first_drawn(state.index, cohort, work, rng)
        return super().weights_of(state, cohort, work, rng)

    def label_change(self, now: Tensor, before: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        change = compare_sorted_counts if self.shift_metric == "sorted_counts" else super().label_change
        return change(now, before, sizes)

    def assign_first(self, state: State, new: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        if self.start_partition != "same":
            return super().assign_first(state, new, work, rng)
        apart = (state.models - work.initial(0))[:, : work.layout.num_parameters]
        nearest = torch.linalg.vector_norm(apart, dim=1, dtype=torch.float64).argmin()
        return replace(state, index=assign(state.index, new, nearest.expand(len(new)))), Info()


@dataclass(frozen=True)
class PublishedFedGroup(FedGroup):
    """FedGroup with the ablations RCC and RAC of its paper (C19), and with the paper's start (C7).

    Takes the arguments of FedGroup, and:

    Args:
        centers: First clusters: `clustered`, or `random`: one random client founds each cluster (RCC).
        cold_start: Cluster of a client that was not pre-trained: the one with the `nearest` direction, or a random one
            (RAC), drawn `random_once` (FlexCFL's code), or `random_each_round` in which the client is selected
            (FedGroup's code) (C19).
        cold_start_at: Time at which these clients are placed: at their first `selection`, or all at the `start`.
        group_start: Initial models of the clusters: the `cluster_mean` of pre-trained models, or `w0` (C7).
    """

    centers: Literal["clustered", "random"] = field(default="clustered", kw_only=True)
    cold_start: Literal["nearest", "random_once", "random_each_round"] = field(default="nearest", kw_only=True)
    cold_start_at: Literal["selection", "start"] = field(default="selection", kw_only=True)
    group_start: Literal["cluster_mean", "w0"] = field(default="cluster_mean", kw_only=True)

    @property
    def num_founders(self) -> int:
        return self.known_clusters if self.centers == "random" else super().num_founders

    def cluster_founders(self, similarity: Tensor, embedding: Tensor, rng: torch.Generator) -> Tensor:
        if self.centers == "random":
            return torch.arange(self.known_clusters)
        return super().cluster_founders(similarity, embedding, rng)

    def group_cold_start(self, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        state: State
        state, info = super().group_cold_start(work, rng)
        if self.group_start == "w0":
            state = replace(state, models=state.initial.repeat(len(state.models), 1))
        return state, info

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        state: State
        state, info = super().init(work, rng)
        if self.cold_start_at == "selection":
            return state, info
        state, placed = self.place(state, work.population[state.index[work.population] < 0], work, rng)
        return state, info.plus(placed)

    def round(self, state: State, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        if self.cold_start == "random_each_round":
            drawn = cohort[~torch.isin(cohort, state.founders) & (work.num_examples[cohort] > 0)]
            drawn = drawn[clusters_of(state.index, drawn) >= 0]
            state = replace(state, index=state.index.index_fill(0, drawn, -1))  # `place` draws their clusters again
        return super().round(state, cohort, work, rng)

    def place(self, state: State, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        if self.cold_start == "nearest":
            return super().place(state, clients, work, rng)
        number, able = max(len(work.num_examples), len(state.index)), work.num_examples[clients] > 0
        drawn = torch.randint(len(state.models), (number,), generator=rng)[clients]
        placed = replace(state, index=assign(state.index, clients, drawn.where(able, -1)))
        return placed, Info(skipped=int((~able).sum()))


@dataclass(frozen=True)
class PublishedFedGrouProx(FedGrouProx, PublishedFedGroup):
    """FedGrouProx with the variants of `PublishedFedGroup`; takes the arguments of both."""


@dataclass(frozen=True)
class PublishedFlexCFL(FlexCFL, PublishedFedGroup):
    """FlexCFL with the variants of `PublishedFedGroup`, and in its own code (C4).

    Takes the arguments of FlexCFL and of `PublishedFedGroup`, and:

    Args:
        shift_metric: Measure of the change, as in FlexCFL, or of `sorted_counts` of labels (C4).
    """

    # sorted_counts: one more word than FlexCFL's
    shift_metric: ShiftMetric = field(default="total_variation", kw_only=True)  # type: ignore[assignment]

    def label_change(self, now: Tensor, before: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        change = compare_sorted_counts if self.shift_metric == "sorted_counts" else super().label_change
        return change(now, before, sizes)


@dataclass(frozen=True, eq=False)
class PublishedStoCFLState:
    """StoCFL's state, and Psi of each observed client."""

    anchor: Tensor
    omega: Tensor
    models: Tensor
    sums: Tensor
    counts: Tensor
    index: Tensor
    sketch_seed: int
    psi: dict[int, Tensor]  # [s] by client; empty if clusters are represented by all observed clients


@dataclass(frozen=True)
class PublishedStoCFL(StoCFL):
    """StoCFL's code (C2, C21).

    Takes the arguments of StoCFL, and:

    Args:
        global_update: Training of omega: all clients in `parallel`, or each continues from the result of the previous
            one before the mean is taken, in the order of their ids (`sequential_by_id`, published code), or in a random
            order (`sequential_by_draw`) (C2).
        representation: Representation of a cluster: the mean over all members `observed` so far, or over those
            `sampled` in the round (C21).
    """

    global_update: Literal["parallel", "sequential_by_id", "sequential_by_draw"] = field(
        default="parallel", kw_only=True
    )
    representation: Literal["observed", "sampled"] = field(default="observed", kw_only=True)
    state_type: ClassVar[type] = PublishedStoCFLState

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        state, info = super().init(work, rng)
        return PublishedStoCFLState(**vars(state), psi={}), info

    def observe(self, state: State, clients: Tensor, psi: Tensor, clusters: Tensor) -> State:
        kept = dict(zip(clients.tolist(), psi.clone(), strict=True)) if self.representation == "sampled" else {}
        state = super().observe(state, clients, psi, clusters)
        return replace(state, psi=state.psi | kept)

    def represent(self, state: State, clusters: Tensor, clients: Tensor, place: Tensor) -> Tensor:
        rows = super().represent(state, clusters, clients, place)
        if self.representation == "observed" or not len(clients):
            return rows
        psi = torch.stack([state.psi[client] for client in clients.tolist()])
        return torch.zeros_like(rows).index_add(0, place, psi)

    def train_omega(
        self, omega: Tensor, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        if self.global_update == "parallel":
            return super().train_omega(omega, cohort, work, rng)
        turns = torch.arange(len(cohort))
        if self.global_update == "sequential_by_draw":
            turns = draw_order(cohort, len(work.num_examples), rng).argsort()
        sizes = work.num_examples[cohort[turns]]
        fitted = Fitted(train_one_after_another(omega[None], cohort[turns], work), sizes, held=False)
        means = mean_by_cluster(fitted, torch.zeros_like(turns), client_weights(sizes, self.weights), into=omega[None])
        return means[0], fitted.trained[turns.argsort()]


def train_one_after_another(omega: Tensor, clients: Tensor, work: LocalWork) -> Iterator[Chunk]:
    """Trains omega `[1, d]` on each client in turn, from the result of the previous one (C2)."""
    for position, client in enumerate(clients[:, None]):
        (chunk,) = work.fit(omega, client, purpose="omega").chunks()
        omega = chunk.models
        yield replace(chunk, start=position)


@dataclass(frozen=True)
class PublishedPACFL(PACFL):
    """PACFL's code: the smallest angle between two vectors, and the singular vectors of each label.

    The vectors of all labels are no orthonormal basis: principal angles are those of their span. With Dirichlet label
    proportions the code's clients send more vectors of some labels than of others; here p of each.

    Takes the arguments of PACFL, and:

    Args:
        angles: Distance of two clients, as in PACFL, or the smallest angle between two of their `vectors`, regardless
            of their signs.
        subspace: Examples whose singular vectors a client sends: `all`, or those of `each_label` side by side, which
            are compared whatever the label.
    """

    angles: Literal["smallest", "sum", "vectors"] = "smallest"  # type: ignore[assignment]  # one more than PACFL's
    subspace: Literal["all", "each_label"] = field(default="all", kw_only=True)

    def check(self, work: LocalWork) -> None:
        super().check(work)
        if self.subspace == "each_label" and not work.label_counts.shape[1]:
            raise InputError("subspace each_label needs classes, but these data have none; set subspace to all")

    def vectors_of(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Computes the vectors that represent a client `[m, inputs]`; those of each label in ascending order.

        If an example has several labels, 0 to 1 `[n, labels]`, those above 0.5 count.
        """
        if self.subspace == "all":
            return super().vectors_of(inputs, labels)
        of_label = labels > 0.5 if labels.ndim > 1 else labels[:, None] == labels.unique()
        found = [super(PublishedPACFL, self).vectors_of(inputs[held], labels) for held in of_label.T if held.any()]
        return torch.cat([inputs.flatten(1)[:0], *found])  # without vectors if no example has a label

    def angles_between(self, bases: Tensor, others: Tensor) -> Tensor:
        if self.angles != "vectors":
            return super().angles_between(bases, others)
        tile = max(1, _PRODUCTS_AT_ONCE // max(1, bases.shape[1] * others.shape[0] * others.shape[1]))
        return torch.cat([angles_between_vectors(part, others) for part in bases.split(tile)])

    def place_unlabelled(
        self, state: State, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[State, Info]:
        if self.subspace == "each_label":
            raise InputError("subspace each_label compares the examples of each label; label these clients")
        return super().place_unlabelled(state, clients, work, rng)


def angles_between_vectors(bases: Tensor, others: Tensor) -> Tensor:
    """Computes the smallest angle in degrees between vectors `[n, m, d]` and `[k, l, d]` of length 1: `[n, k]`."""
    cosines = torch.einsum("imd,kld->ikml", bases.double(), others.double()).abs().amax((2, 3))
    return cosines.clamp(max=1).arccos().rad2deg()
