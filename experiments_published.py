"""What published code does otherwise than its paper, and FedGroup's ablations: variants of the shipped algorithms.

They are only for the papers' tables. The numbers C1 ... are those of docs/disputed_points.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, client_weights, mean_by_cluster
from lit_cfl.algorithms import IFCA, PACFL, FedGroup, FeSEM, FlexCFL, StoCFL
from lit_cfl.algorithms.base import Info, Similarity
from lit_cfl.algorithms.fedgroup import FedGroupState
from lit_cfl.algorithms.fesem import FeSEMState
from lit_cfl.algorithms.ifca import IFCAState
from lit_cfl.algorithms.pacfl import PACFLState
from lit_cfl.algorithms.stocfl_clusters import StoCFLState
from lit_cfl.clustering import assign, clusters_of, cosine_similarity
from lit_cfl.clustering.subspaces import left_singular_vectors, pad_bases
from lit_cfl.errors import InputError
from lit_cfl.local_work import Chunk, Fitted, LocalWork


def draw_order(clients: Tensor, num_clients: int, rng: torch.Generator) -> Tensor:
    """Draws a random sort key for each of the clients, independent of the cohort: float64 `[n]`."""
    return torch.rand(num_clients, generator=rng, dtype=torch.float64)[clients]


def weights_of_drawn_first(index: Tensor, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Tensor:
    """Weights one client in each cluster with 1, and all others with 0: float64 `[n]` (C1).

    The list of weights in FlexCFL's IFCA and FeSEM has one element, so that a cluster takes the model of the first of
    its clients with data in an unsorted draw (times K / (K + 1e-5), left out here).
    """
    order, able = draw_order(cohort, len(work.num_examples), rng), work.num_examples[cohort] > 0
    found, cluster = clusters_of(index, cohort).unique(return_inverse=True)
    nobody = order.new_full((len(found),), torch.inf)
    earliest = nobody.scatter_reduce(0, cluster[able], order[able], "amin")
    return (order == earliest[cluster]).double()


@dataclass(frozen=True)
class PublishedIFCA(IFCA):
    """IFCA in FlexCFL's code: one drawn member counts (C1), and clients choose by the penalised loss (C11).

    Takes the arguments of IFCA, and:

    Args:
        drawn_first: Let only one drawn member of a cluster count; otherwise `weights` holds.
        kernel_l2: Factor of the penalty in the loss by which clients choose, as in the task.
        kernels: Penalised parameters, as patterns of layers.
    """

    drawn_first: bool = field(default=True, kw_only=True)
    kernel_l2: float = field(default=0.0, kw_only=True)
    kernels: tuple[str, ...] = field(default=("*.weight",), kw_only=True)

    def weights_of(self, state: IFCAState, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Weights | Tensor:
        return weights_of_drawn_first(state.index, cohort, work, rng) if self.drawn_first else self.weights

    def losses_of(self, models: Tensor, clients: Tensor, work: LocalWork) -> Tensor:
        losses = super().losses_of(models, clients, work)
        if not self.kernel_l2:
            return losses
        return losses + self.kernel_l2 * models[:, work.layout.columns(self.kernels)].square().sum(1)


@dataclass(frozen=True)
class PublishedFeSEM(FeSEM):
    """FeSEM in FlexCFL's code: one drawn member counts (C1), and all clients start in one cluster (C14).

    Takes the arguments of FeSEM, and:

    Args:
        drawn_first: Let only one drawn member of a cluster count; otherwise `weights` holds.
        same_start: Put a client that never trained into the cluster nearest to w_0; otherwise `start_partition` holds.
    """

    drawn_first: bool = field(default=True, kw_only=True)
    same_start: bool = field(default=False, kw_only=True)

    def weights_of(self, state: FeSEMState, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Weights | Tensor:
        return weights_of_drawn_first(state.index, cohort, work, rng) if self.drawn_first else self.weights

    def assign_first(
        self, state: FeSEMState, new: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FeSEMState, Info]:
        if not self.same_start:
            return super().assign_first(state, new, work, rng)
        apart = (state.models - work.initial(0))[:, : work.layout.num_parameters]
        nearest = torch.linalg.vector_norm(apart, dim=1, dtype=torch.float64).argmin()
        return replace(state, index=assign(state.index, new, nearest.expand(len(new)))), Info()


@dataclass(frozen=True)
class PublishedFedGroup(FedGroup):
    """FedGroup with the ablations RCC and RAC, with FlexCFL's weights (C1), and with the paper's start (C7).

    Takes the arguments of FedGroup, and:

    Args:
        centers: First clusters: `clustered`, or `random`: one random client founds each cluster (RCC).
        cold_start: Cluster of a client that was not pre-trained: the one with the `nearest` direction, or a random one
            (RAC), drawn `random_once` (FlexCFL's code), or `random_each_round` in which the client is selected
            (FedGroup's code) (C19).
        cold_start_at: Time at which these clients are placed: at their first `selection`, or all at the `start`.
        group_start: Initial models of the clusters: the `cluster_mean` of pre-trained models, or `w0` (paper) (C7).
        drawn_first: Let only one drawn member of a cluster count (C1); otherwise `weights` holds.
    """

    centers: Literal["clustered", "random"] = field(default="clustered", kw_only=True)
    cold_start: Literal["nearest", "random_once", "random_each_round"] = field(default="nearest", kw_only=True)
    cold_start_at: Literal["selection", "start"] = field(default="selection", kw_only=True)
    group_start: Literal["cluster_mean", "w0"] = field(default="cluster_mean", kw_only=True)
    drawn_first: bool = field(default=False, kw_only=True)

    @property
    def num_founders(self) -> int:
        return self.known_clusters if self.centers == "random" else super().num_founders

    def cluster_founders(self, similarity: Tensor, embedding: Tensor, rng: torch.Generator) -> Tensor:
        if self.centers == "random":
            return torch.arange(self.known_clusters)
        return super().cluster_founders(similarity, embedding, rng)

    def group_cold_start(self, work: LocalWork, rng: torch.Generator) -> tuple[FedGroupState, Info]:
        state, info = super().group_cold_start(work, rng)
        if self.group_start == "w0":
            state = replace(state, models=state.initial.repeat(len(state.models), 1))
        return state, info

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[FedGroupState, Info]:
        state, info = super().init(work, rng)
        if self.cold_start_at == "selection":
            return state, info
        state, placed = self.place(state, work.population[state.index[work.population] < 0], work, rng)
        return state, info.plus(placed)

    def round(
        self, state: FedGroupState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedGroupState, Info]:
        if self.cold_start == "random_each_round":
            drawn = cohort[~torch.isin(cohort, state.founders) & (work.num_examples[cohort] > 0)]
            drawn = drawn[clusters_of(state.index, drawn) >= 0]
            state = replace(state, index=state.index.index_fill(0, drawn, -1))
        return super().round(state, cohort, work, rng)

    def weights_of(
        self, state: FedGroupState, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> Weights | Tensor:
        return weights_of_drawn_first(state.index, cohort, work, rng) if self.drawn_first else self.weights

    def place(
        self, state: FedGroupState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[FedGroupState, Info]:
        if self.cold_start == "nearest":
            return super().place(state, clients, work, rng)
        number, able = max(len(work.num_examples), len(state.index)), work.num_examples[clients] > 0
        drawn = torch.randint(len(state.models), (number,), generator=rng)[clients]
        placed = replace(state, index=assign(state.index, clients, drawn.where(able, -1)))
        return placed, Info(skipped=int((~able).sum()))


@dataclass(frozen=True)
class PublishedFlexCFL(FlexCFL, PublishedFedGroup):
    """FlexCFL with the variants of `PublishedFedGroup`, and with its code's comparison of labels (C4).

    Takes the arguments of FlexCFL and of `PublishedFedGroup`; `shift_metric` may also be `sorted_counts`: the sorted
    counts of labels differ by more than `shift_threshold` times n_i at the start, whichever labels they are.
    """

    shift_metric: Literal["total_variation", "sorted_counts", "loss", "features"] = field(  # type: ignore[assignment]
        default="sorted_counts", kw_only=True
    )

    def label_change(self, now: Tensor, before: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        if self.shift_metric != "sorted_counts":
            return super().label_change(now, before, sizes)
        return (now.sort(1).values - before.sort(1).values).abs().sum(1), sizes.double()


@dataclass(frozen=True, eq=False)
class PublishedStoCFLState(StoCFLState):
    """StoCFL's state, and Psi of each observed client."""

    psi: dict[int, Tensor]  # [s] by client; empty unless clusters are represented by the sampled clients

    def psi_of(self, clients: Tensor) -> Tensor:
        """Returns Psi of observed clients `[n, s]`."""
        return torch.stack([self.psi[client] for client in clients.tolist()])


@dataclass(frozen=True)
class PublishedStoCFL(StoCFL):
    """StoCFL's code: omega trains on one client after another (C2), and the round's clients represent a cluster (C21).

    Takes the arguments of StoCFL, and:

    Args:
        global_update: Training of omega: each client continues from the result of the previous one before the mean is
            taken, `sequential_by_id` in the order of their ids (published code) or `sequential_by_draw`; or all
            train in `parallel` (paper).
        representation: Representation of a cluster: the mean over its clients `sampled` in the round (published code),
            or over all members `observed` so far (paper).
    """

    global_update: Literal["sequential_by_id", "sequential_by_draw", "parallel"] = field(
        default="sequential_by_id", kw_only=True
    )
    representation: Literal["sampled", "observed"] = field(default="sampled", kw_only=True)
    state_type: ClassVar[type] = PublishedStoCFLState

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[StoCFLState, Info]:
        state, info = super().init(work, rng)
        return PublishedStoCFLState(**vars(state), psi={}), info

    def observe(self, state: StoCFLState, clients: Tensor, psi: Tensor, clusters: Tensor) -> StoCFLState:
        state = super().observe(state, clients, psi, clusters)
        if self.representation == "observed" or not isinstance(state, PublishedStoCFLState):
            return state
        found = {client: row.clone() for client, row in zip(clients.tolist(), psi, strict=True)}
        return replace(state, psi=state.psi | found)

    def represent(self, state: StoCFLState, clusters: Tensor, clients: Tensor, place: Tensor) -> Tensor:
        rows = super().represent(state, clusters, clients, place)
        if self.representation == "observed" or not isinstance(state, PublishedStoCFLState) or not len(clients):
            return rows
        return torch.zeros_like(rows).index_add(0, place, state.psi_of(clients))

    def similarity(self, state: StoCFLState, cohort: Tensor, fresh: Tensor, psi: Tensor) -> Similarity | None:
        found = super().similarity(state, cohort, fresh, psi)
        if found or self.representation == "observed" or not isinstance(state, PublishedStoCFLState) or len(cohort) < 2:
            return found
        return Similarity(cohort, cosine_similarity(state.psi_of(cohort)))

    def train_omega(
        self, omega: Tensor, cohort: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        if self.global_update == "parallel":
            return super().train_omega(omega, cohort, work, rng)
        turns = torch.arange(len(cohort))
        if self.global_update == "sequential_by_draw":
            turns = draw_order(cohort, len(work.num_examples), rng).argsort()
        sizes = work.num_examples[cohort[turns]]
        fitted = Fitted(_one_after_another(omega[None], cohort[turns], work), sizes, held=False)
        means = mean_by_cluster(
            fitted, torch.zeros_like(turns), client_weights(sizes, self.weights), into=omega[None]
        )
        return means[0], fitted.trained[turns.argsort()]


def _one_after_another(omega: Tensor, cohort: Tensor, work: LocalWork) -> Iterator[Chunk]:
    for position, client in enumerate(cohort[:, None]):
        (chunk,) = work.fit(omega, client, purpose="omega").chunks()
        omega = chunk.models
        yield replace(chunk, start=position)


@dataclass(frozen=True)
class PublishedPACFL(PACFL):
    """PACFL's code: the smallest angle between two vectors, and one subspace for each label.

    The vectors of a client with `each_label` are not an orthonormal basis; principal angles are those of their span.
    With Dirichlet label proportions the code's clients send more vectors of some labels than of others; here p of each.

    Takes the arguments of PACFL, and:

    Args:
        subspace: Subspaces compared: that of `all` examples of a client (the code's MIX-4), or those of `each_label`
            side by side, compared whatever the label.
        angles: Distance of two clients, as in PACFL, or the smallest angle between two of their `vectors`, regardless
            of their signs.
    """

    angles: Literal["vectors", "smallest", "sum"] = "vectors"  # type: ignore[assignment]  # wider
    subspace: Literal["all", "each_label"] = field(default="all", kw_only=True)

    def check(self, work: LocalWork) -> None:
        super().check(work)
        if self.subspace == "each_label" and not work.label_counts.shape[1]:
            raise InputError("subspace each_label needs classes, but these data have none; set subspace: all")

    def bases(self, work: LocalWork, clients: Tensor) -> Tensor:
        if self.subspace == "all":
            return super().bases(work, clients)
        found = work.map(partial(vectors_of_labels, number=self.num_vectors), clients)
        return pad_bases([basis for basis in found if isinstance(basis, Tensor)])

    def angles_between(self, bases: Tensor, others: Tensor) -> Tensor:
        if self.angles != "vectors":
            return super().angles_between(bases, others)
        cosines = torch.einsum("imd,kld->ikml", bases.double(), others.double()).abs().amax((2, 3))
        return cosines.clamp(max=1).arccos().rad2deg()

    def place_unlabelled(
        self, state: PACFLState, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[PACFLState, Info]:
        if self.subspace == "each_label":
            raise InputError("subspace each_label compares the examples of each label; label these clients")
        return super().place_unlabelled(state, clients, work, rng)


def vectors_of_labels(inputs: Tensor, labels: Tensor, number: int) -> Tensor:
    """Computes a client's singular vectors `[m, inputs]` of each label, in ascending order.

    If an example has several labels, 0 to 1 `[n, labels]`, those above 0.5 count.
    """
    of_label = labels > 0.5 if labels.ndim > 1 else labels[:, None] == labels.unique()
    none = inputs.flatten(1)[:0]  # the vectors of a client whose examples have no label
    return torch.cat([none, *(left_singular_vectors(inputs[held], number) for held in of_label.T if held.any())])
