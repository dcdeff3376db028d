"""The interface of all algorithms: a frozen dataclass of hyper-parameters, and an immutable state.

`docs/own_algorithm.md` shows a complete algorithm.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_cfl.clustering.client_map import clusters_of
from lit_cfl.errors import InputError, count_noun
from lit_cfl.local_work import LocalWork
from lit_cfl.metric_names import Row
from lit_cfl.options import require_options
from lit_cfl.parameters import ParameterLayout

# an instance of `state_type`: a flat frozen dataclass (eq=False) of tensors, numbers, strings, lists and dicts
State = Any


@dataclass(frozen=True, eq=False)
class Similarity:
    """Pairwise similarities of clients at the time of their clustering.

    Args:
        clients: Ids of the clients, int64 `[n]`.
        matrix: Cosines `[n, n]` in [-1, 1].
    """

    clients: Tensor
    matrix: Tensor


@dataclass(frozen=True, eq=False)
class Info:
    """Report of a round, for logs and pictures; the next round does not read it.

    Args:
        loss: Mean training loss, weighted by examples; nan if no client trained.
        down: Number of models sent to clients, counted by the step that sends them.
        up: Number of models sent by clients.
        bytes_up: Bytes sent by clients in addition to models. The round loop adds those of `LocalWork.map`.
        skipped: Number of clients that were asked to train but did not (no data, or diverged and left out).
        scores: Further columns of `metrics.csv`.
        similarity: Similarities of clients, if the algorithm compared them.
        closeness: Similarities that `place` compared, `[clients, clusters]`, larger is closer; None if it compared
            none, or too many to read.
        clusters: Columns of `clusters.csv` for the models that `serve` now returns `[K]`: `parent` (int64, -1 = none),
            `u`, `v` (nan = none).
        tables: Rows of the algorithm's own tables, by name; see `Algorithm.tables`.
    """

    loss: float = float("nan")
    down: int = 0
    up: int = 0
    skipped: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    similarity: Similarity | None = None
    closeness: Tensor | None = None
    clusters: dict[str, Tensor] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    bytes_up: int = 0

    def plus(self, earlier: "Info") -> "Info":
        """Combines this Info with that of an earlier step of the same round, such as a cold start.

        Traffic and skipped clients are added up: a client that both steps skipped is counted twice, so a caller whose
        steps ask the same clients counts them itself. Rows of tables are appended to the earlier ones. If both steps
        have a score or similarity, this step's is kept. `loss`, `closeness` and `clusters` are those of this step.
        """
        tables = earlier.tables | self.tables
        return replace(
            self,
            down=self.down + earlier.down,
            up=self.up + earlier.up,
            bytes_up=self.bytes_up + earlier.bytes_up,
            skipped=self.skipped + earlier.skipped,
            scores=earlier.scores | self.scores,
            similarity=self.similarity or earlier.similarity,
            tables={name: [*earlier.tables.get(name, []), *self.tables.get(name, [])] for name in tables},
        )


@dataclass(frozen=True, eq=False)
class OwnLayers:
    """Personal layers: layers whose weights differ between clients that share a model.

    Args:
        columns: Columns of these layers in a model, ascending int64 `[p]`.
        rows: Layers `[p]` of each client that has its own, by id; all other clients have the layers of their model.
    """

    columns: Tensor
    rows: Mapping[int, Tensor]

    def models_of(self, clients: Tensor, models: Tensor, index: Tensor) -> Tensor:
        """Builds the clients' models `[n, d]`, with their personal layers.

        Args:
            clients: Ids of the clients, int64 `[n]`.
            models: Models `[K, d]`.
            index: Model of each client, int64 `[n]`, none negative.
        """
        found = models[index]
        for row, client in zip(found, clients.tolist(), strict=True):
            if client in self.rows:
                row[self.columns] = self.rows[client]
        return found


@dataclass(frozen=True, eq=False)
class Assignment:
    """The model that each client uses.

    Args:
        models: Models `[K, d]`.
        index: Model of each client, int64 `[clients asked for]`, -1 = none yet.
        extra: Further rows `[d]` by name; `global` is scored as `test/global_<score>`.
        own: Personal layers that replace layers of the clients' models; None = none.
        weights: Weights of the models in each client's mixture, float64 `[clients asked for, K]`: they sum to 1, and
            are 0 for a client without a model; `index` is the model of the largest weight, ties: the lowest number.
            Outputs of the models are mixed by the task's `mix_outputs`. None = each client uses one model.
    """

    models: Tensor
    index: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)
    own: OwnLayers | None = None
    weights: Tensor | None = None

    @classmethod
    def of_mixtures(cls, models: Tensor, weights: Tensor) -> "Assignment":
        """Builds the assignment of clients that mix the models with these weights, float64 `[n, K]`."""
        return cls(models, weights.argmax(1).where(weights.sum(1) > 0, -1), weights=weights)

    def select(self, which: Tensor) -> "Assignment":
        """Restricts the assignment to some clients, given by their positions or a mask."""
        return replace(self, index=self.index[which], weights=None if self.weights is None else self.weights[which])


@dataclass(frozen=True)
class Algorithm(ABC):
    """A federated learning algorithm. Every field has a default; methods never change their arguments.

    `round` in a method's arguments, and `LocalWork.round`, count completed rounds: 0 in the first round, which is shown
    as round 1.

    `rng` belongs to one (seed, purpose, round). Draw for all client ids and index the result, so that the order of the
    clients does not matter.
    """

    state_type: ClassVar[type]
    paper: ClassVar[str] = ""  # citation printed by `lit-cfl list`
    score_columns: ClassVar[tuple[str, ...]] = ()  # further names in Info.scores
    tables: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # by table name: columns of a run's `<name>.csv` after `round`
    closeness: ClassVar[str] = "the algorithm's own measure"  # meaning of Info.closeness, in words
    sees_truth: ClassVar[bool] = False  # True if the algorithm reads `LocalWork.true_clusters`, as an upper bound may
    caveat: ClassVar[str] = ""  # a sentence printed with the algorithm's results
    mixes_models: ClassVar[bool] = False  # True if `serve` gives weights: a client uses a mixture of models

    def __post_init__(self) -> None:
        require_options(self, f"{type(self).__name__}: ")

    def check(self, work: LocalWork) -> None:  # noqa: B027  # most algorithms have nothing to check
        """Raises InputError if these clients cannot be trained with these hyper-parameters. Trains nothing."""

    @abstractmethod
    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        """Makes the state before the first round. May train clients; the models sent for this count as traffic."""

    @abstractmethod
    def round(self, state: State, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        """Runs one round with this cohort of clients, which may be empty.

        Args:
            cohort: Ids of the clients, int64 `[n]`.
        """

    @abstractmethod
    def place(self, state: State, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        """Chooses a model for each client from its current data, which may involve training.

        Args:
            clients: Ids of the clients, int64 `[n]`.
        """

    def place_unlabelled(
        self, state: State, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[State, Info]:
        """Chooses a model for each newcomer without labels, from its inputs alone; optional.

        `work` has no labels: `map` passes on zeros for them, and `label_counts` has no columns.

        Args:
            clients: Ids of the newcomers, int64 `[n]`.

        Raises:
            InputError: the algorithm's rule for newcomers needs more than inputs.
        """
        raise InputError(
            f"{type(self).__name__} cannot place clients without labels: its rule for newcomers needs more than their "
            "inputs; label them and leave out --unlabelled, or run an algorithm that needs only inputs, such as FLUX"
        )

    def serve(self, state: State, clients: Tensor) -> Assignment:
        """Looks up the model of each client without training: by default row `state.index` of `state.models`.

        Args:
            clients: Ids of the clients, int64 `[n]`.
        """
        return Assignment(state.models, clusters_of(state.index, clients))

    @property
    def reason_without_means(self) -> str | None:
        """One-line reason why a server optimizer and shared layers cannot be used; None if they can."""
        return None

    @property
    def reason_without_personal(self) -> str | None:
        """One-line reason why clients cannot keep personal layers (option `personal`); None if they can."""
        return "a client mixes several models, but keeps only one set of layers" if self.mixes_models else None

    @property
    def models_per_client(self) -> int:
        """Number of models that a client trains in a round, from which `--dry-run` estimates the time."""
        return 1

    def sent_columns(self, layout: ParameterLayout) -> int:
        """Counts the values that are sent for each model with this layout."""
        return layout.num_columns

    def needs_all(self, round: int) -> bool:
        """Returns whether every client takes part in this round, regardless of the cohort size."""
        return False

    def explain_result(self, read_clusters: Callable[[], Sequence[Row]]) -> str | None:
        """Explains, at the end of a run, why there is no clustering; None if there is one, or nothing is known.

        Args:
            read_clusters: Reads the rows of `clusters.csv`.
        """
        return None

    def first_clustering_round(self) -> int:
        """Returns the number of rounds before the first clustering, during which a search must not stop a trial."""
        return 0


def clients_with_data(work: LocalWork) -> Tensor:
    """Finds the clients in training that have training examples: ids int64 `[n]`, ascending."""
    return work.population[work.num_examples[work.population] > 0]


def require_clients(num_clusters: int, clients: int) -> None:
    """Raises InputError if there are too few clients to fill every cluster."""
    if clients == 0:
        raise InputError("no client can be clustered: all diverged or have no training data; lower the learning rate")
    if clients < num_clusters:
        raise InputError(
            f"num_clusters is {num_clusters}, but only {count_noun(clients, 'client')} can be clustered; lower it to "
            f"{clients}{' or less' * (clients > 1)}, or use more clients"
        )
