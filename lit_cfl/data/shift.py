"""Data that change over the rounds: the base class of shifts, and the log of actual changes.

A shift is a pure function of the data, the round, the seed and the participants. With `participants: all` the data of
a round depend only on (seed, round), so all compared methods see the same data.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from lit_cfl.data import Examples, FederatedData
from lit_cfl.data.checks import require_shifted
from lit_cfl.options import require_options
from lit_cfl.seeds import derive


@dataclass(frozen=True, eq=False)
class ShiftLog:
    """The changes made by a shift in one round, one row per affected client.

    Args:
        what: Name of the shift.
        clients: Ids of the clients, int64 `[n]`.
        partners: Client from which the data came, int64 `[n]`; -1 = none.
        examples: Number of training, validation and test examples that came or changed, int64 `[n]`.
        before, after: True clusters, int64 `[n]`; -1 = unknown.
    """

    what: str
    clients: Tensor
    partners: Tensor
    examples: Tensor
    before: Tensor
    after: Tensor


@dataclass(frozen=True)
class ShiftContext:
    """The round and the clients of a shift.

    Args:
        round: Number of rounds completed before, 0 in the first round.
        seed: Seed of this shift in this run.
        participants: Ids of the participants, int64 `[n]`, ascending.
        stride: Number of views before this shift added its own.
        weight: Factor of the shift's concept in the number of a true cluster.
    """

    round: int
    seed: int
    participants: Tensor
    stride: int = 1
    weight: int = 1

    def rng(self, purpose: str, round: int | None = None) -> np.random.Generator:
        """Makes the random generator for a purpose in this round, or in the given round."""
        return np.random.default_rng(derive(self.seed, purpose, self.round if round is None else round))


@dataclass(frozen=True)
class Shift(ABC):
    """A change of the clients' data over the rounds.

    Args:
        participants: `all` clients in training, or only the `warm` ones, which have a model (the papers' tables);
            `warm` depends on the algorithm.
    """

    participants: Literal["all", "warm"] = field(default="all", kw_only=True)
    concepts: ClassVar[int] = 1  # number of views that the shift makes from each existing one

    def __post_init__(self) -> None:
        require_options(self, f"{type(self).__name__}: ")

    def widen(self, examples: Examples) -> Examples:
        """Adds this shift's views to the examples, which multiplies their number of views by `concepts`."""
        return examples

    @property
    def change_rounds(self) -> Sequence[int]:
        """Numbers of completed rounds at which a change is due; empty if any round may bring one."""
        return []

    @abstractmethod
    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog | None]:
        """Makes a round's data from those of the previous round; also returns a log, or None if nothing shifted."""


def with_concepts(data: FederatedData, shifts: Sequence[Shift]) -> FederatedData:
    """Spaces out the true clusters' numbers, so that each cluster has a separate number for every concept."""
    concepts = prod(shift.concepts for shift in shifts)
    known = data.true_clusters >= 0
    names = data.cluster_names if concepts == 1 else ()
    clusters = data.true_clusters.where(~known, data.true_clusters * concepts)
    return replace(data, true_clusters=clusters, cluster_names=names)


def apply_shifts(
    data: FederatedData, shifts: Sequence[Shift], round: int, seed: int, warm: Tensor
) -> tuple[FederatedData, tuple[ShiftLog, ...]]:
    """Applies one round's shifts, in order.

    Args:
        data: Data of the previous round; unshifted in the first round.
        round: Number of rounds completed before.
        seed: The run's seed.
        warm: Ids of the clients in training that have a model, ascending.
    """
    moves = []
    for number, shift in enumerate(shifts):
        later = prod(other.concepts for other in shifts[number + 1 :])
        stride = len(data.examples.views) // (later * shift.concepts)
        who = data.population if shift.participants == "all" else warm
        at = ShiftContext(round, derive(seed, "shift", number), who, stride, later)
        before = data
        data, moved = shift.step(data, at)
        if moved is not None:
            require_shifted(before, data, moved.clients, type(shift).__name__)
        moves += [] if moved is None or not len(moved.clients) else [moved]
    return data, tuple(moves)
