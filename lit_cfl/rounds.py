"""The round loop: a generator that the command line, searches, notebooks and tests use."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal, Protocol

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm, Info, State
from lit_cfl.algorithms.check_answers import check_answer, require_savable
from lit_cfl.data import FederatedData
from lit_cfl.data.shift import Shift, ShiftLog, apply_shifts
from lit_cfl.errors import InputError, Notice
from lit_cfl.local_work import LocalCosts, LocalWork
from lit_cfl.notebook import short_repr
from lit_cfl.seeds import derive, generator

SelectionRule = Literal["uniform", "round_robin_first"]


class Clients(Protocol):
    """An engine, or any other object that provides `LocalWork` for a round."""

    def at(self, round: int, data: FederatedData) -> LocalWork: ...


@dataclass(frozen=True)
class Cohorts:
    """Draws the cohort of each round.

    Args:
        size: K, the number of clients in a round.
        rule: `uniform` without replacement, or `round_robin_first`: while round < N/K the clients take turns in the
            order of their ids (the last turn continues with the first ids), so that each is seen; then `uniform`.
        dropout: Probability that a selected client does not answer, 0 to below 1. It does not apply to rounds in which
            an algorithm needs every client.
        seed: Seed; round t draws with `random.Random(seed + t).sample`, as FlexCFL's published code does (with 2077).
            None = derived from the run's seed, so that runs with neighbouring seeds draw different cohorts.
    """

    size: int
    rule: SelectionRule = "uniform"
    dropout: float = 0.0
    seed: int | None = None

    def at(self, round: int, population: Tensor, run_seed: int) -> Tensor:
        """Draws the cohort of a round.

        Args:
            round: Number of completed rounds, t = 0 in the first round.
            population: Ids to choose from, ascending int64 `[N]`.
            run_seed: Seed of the run.

        Returns:
            Ids, int64 `[K]` or fewer, ascending, so that sums do not depend on the order of the draw.
        """
        clients = len(population)
        if not 1 <= self.size <= clients:
            there = "is 1 client; give 1" if clients == 1 else f"are {clients} clients; give 1 to {clients}"
            raise InputError(f"cohort_size is {self.size}, but there {there}")
        if self.rule == "round_robin_first" and round < clients / self.size:
            chosen = [(round * self.size + k) % clients for k in range(self.size)]
        else:
            seed = derive(run_seed, "selection") if self.seed is None else self.seed
            chosen = Random(seed + round).sample(range(clients), self.size)
        return drop_out(population[torch.tensor(chosen)].sort().values, self.dropout, run_seed, round)


def drop_out(cohort: Tensor, probability: float, seed: int, round: int) -> Tensor:
    """Removes clients from the cohort `[n]`, each with this probability. The result may be empty."""
    if not probability:
        return cohort
    draws = torch.rand(int(cohort.max()) + 1, generator=generator(seed, "dropout", round))
    return cohort[draws[cohort] >= probability]


@dataclass(frozen=True, eq=False)
class Traffic:
    """Numbers of models sent since the start of the run, and of further bytes that clients sent.

    w_0 is not counted, as in the papers.
    """

    down: int = 0
    up: int = 0
    bytes_up: int = 0

    def plus(self, info: Info) -> "Traffic":
        return Traffic(self.down + info.down, self.up + info.up, self.bytes_up + info.bytes_up)


@dataclass(frozen=True, eq=False)
class Round:
    """A completed round.

    Args:
        index: Number of rounds completed before this one, 0 in the first. Random streams, `LocalWork`, `evaluate` and
            the schedules of algorithms and shifts use it. Users see `number`.
        state: State of the algorithm after the round.
        info: Info of the round; in the first round it includes `init`.
        data: Data during the round.
        traffic: Traffic up to and including this round.
        moves: Clients whose data shifted before they trained.
        costs: Local work of clients up to and including this round.
    """

    index: int
    state: State
    info: Info
    data: FederatedData
    traffic: Traffic
    moves: tuple[ShiftLog, ...] = ()
    costs: LocalCosts = field(default_factory=LocalCosts)

    __repr__ = short_repr

    @property
    def number(self) -> int:
        """The round's number, 1 to T, as in all files, logs, messages and pictures."""
        return self.index + 1


def note_late_clustering(algorithm: Algorithm, num_rounds: int) -> None:
    """Warns that an algorithm does not cluster within this number of rounds."""
    if (text := describe_late_clustering(algorithm, num_rounds)) is not None:
        warnings.warn(text, Notice, stacklevel=2)


def describe_late_clustering(algorithm: Algorithm, num_rounds: int) -> str | None:
    """Explains that an algorithm does not cluster within this number of rounds; None if it does."""
    first = algorithm.first_clustering_round()
    if first < num_rounds:
        return None
    option = next((one for one in ("warmup_rounds", "step_rounds") if hasattr(algorithm, one)), None)
    result = "there will be one cluster" if option == "warmup_rounds" else "its first clusters will not change"
    lower = f", or set {option} below {num_rounds}" if option else ""
    return (
        f"{type(algorithm).__name__} does not cluster before round {first + 1}, but rounds is {num_rounds}, so "
        f"{result}; raise rounds above {first}{lower}"
    )


def rounds(
    algorithm: Algorithm,
    clients: Clients,
    data: FederatedData,
    cohorts: Cohorts,
    *,
    seed: int,
    num_rounds: int,
    shifts: Sequence[Shift] = (),
    after: Round | None = None,
) -> Iterator[Round]:
    """Runs an algorithm, and yields each completed round.

    Args:
        algorithm: Algorithm to run.
        clients: Clients, usually an engine.
        data: Clients and examples before any shift; unused if `after` is given, which has data.
        cohorts: Rule by which clients are selected.
        seed: The run's seed; together with the arguments it determines the result.
        num_rounds: Number of rounds T.
        shifts: Changes of the data before each round, in this order.
        after: Round after which to continue; None = from the start.
    """
    if num_rounds < 1:
        raise InputError(f"rounds is {num_rounds}; give 1 or more")

    def num_models(state: State) -> int:
        return len(algorithm.serve(state, data.population).models)

    if after is None:
        work = clients.at(0, data)
        answer = algorithm.init(work, generator(seed, "init", 0))
        state, begun = check_answer(algorithm, "init", answer, num_models)
        begun = replace(begun, bytes_up=begun.bytes_up + work.bytes_up)
        require_savable(algorithm, state)
        traffic, costs, first = Traffic(), work.costs, 0
        del answer  # otherwise the next round could not free this state, which may be large
    else:
        state, begun, traffic, costs, first = after.state, Info(), after.traffic, after.costs, after.number
        data, after = after.data, None  # otherwise the next round could not free this state, which may be large
    for index in range(first, num_rounds):
        cohort = data.population if algorithm.needs_all(index) else cohorts.at(index, data.population, seed)
        moves: tuple[ShiftLog, ...] = ()
        if shifts:
            data, moves = apply_shifts(data, shifts, index, seed, _warm(algorithm, state, data, shifts))
        work = clients.at(index, data)
        answer = algorithm.round(state, cohort, work, generator(seed, "round", index))
        state, info = check_answer(algorithm, "round", answer, num_models)
        info = replace(info, bytes_up=info.bytes_up + work.bytes_up)
        del answer  # otherwise the next round could not free this state
        if index == first:
            require_savable(algorithm, state)
        if index == 0:
            info = info.plus(begun)
        traffic, costs = traffic.plus(info), costs.plus(work.costs)
        yield Round(index, state, info, data, traffic, moves, costs)


def _warm(algorithm: Algorithm, state: State, data: FederatedData, shifts: Sequence[Shift]) -> Tensor:
    """Returns the clients in training that have a model. If every shift applies to all, returns all in training."""
    if all(shift.participants == "all" for shift in shifts):
        return data.population
    return data.population[algorithm.serve(state, data.population).index >= 0]
