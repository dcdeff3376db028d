"""Shares of an engine's work that are sent to Ray workers, and their execution there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.base import Engine
from lit_cfl.engines.cohort_fit import Effort
from lit_cfl.engines.local_training import FitRequest
from lit_cfl.engines.scorer import ModelName, Outcomes
from lit_cfl.errors import join_ids
from lit_cfl.local_work import ClientFunction, Statistic


@dataclass(frozen=True, eq=False)
class HeldClients:
    """The clients of a run as a worker knows them: it has the training examples of only some.

    Args:
        num_clients: Clients of the run.
        holders: ids of those that have, int64 `[h]`, ascending.
        lists: their training examples `[h]`.
    """

    num_clients: int
    holders: Tensor
    lists: ClientIndex

    @classmethod
    def of(cls, clients: Tensor, data: FederatedData) -> "HeldClients":
        """Takes these clients, and the largest client of the run, whose size engines need."""
        holders = torch.cat([clients, data.num_examples.argmax()[None]]).unique()
        return cls(data.num_clients, holders, data.train.select(holders).packed())

    def data(self, examples: Examples) -> FederatedData:
        """Returns all clients, with data for those held here only."""
        starts, sizes = torch.zeros(2, self.num_clients, dtype=torch.int64)
        starts[self.holders], sizes[self.holders] = self.lists.starts, self.lists.sizes
        none = ClientIndex.empty(self.num_clients)
        train = ClientIndex(self.lists.values, starts, sizes)
        return FederatedData(examples, train, none, none, torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class TrainedShare:
    """The result of a share of a fit: a `Chunk` as arrays, and the mini-batches computed for it."""

    models: np.ndarray
    losses: np.ndarray
    trained: np.ndarray
    effort: Effort


@dataclass(frozen=True, eq=False)
class FitShare:
    """The clients of a fit that train on one worker.

    Args:
        request: Fit of these clients, whose models and centres are the rows sent along.
        round: the round.
        held: their data.
    """

    request: FitRequest
    round: int
    held: HeldClients

    @property
    def worker_in_words(self) -> str:
        return _in_round(self.round, "trains", self.request.clients)

    def run(self, engine: Engine, examples: Examples, rows: Tensor) -> TrainedShare:
        request = replace(self.request, models=rows, centers=rows if self.request.prox else None)
        before, data = replace(engine.effort), self.held.data(examples)
        whole = [slice(0, len(request.clients))]  # cut is the driver's
        (chunk,) = engine.fit_chunks(request, whole, self.round, data)
        effort = Effort(engine.effort.useful - before.useful, engine.effort.computed - before.computed)
        models = chunk.on_cpu().models.numpy()
        return TrainedShare(models, chunk.losses.numpy(), chunk.trained.numpy(), effort)


@dataclass(frozen=True, eq=False)
class GradientShare:
    """Clients whose gradients one worker computes at the model that is sent along.

    Args:
        clients: ids, int64 `[n]`.
        round: the round.
        held: their data.
    """

    clients: Tensor
    round: int
    held: HeldClients

    @property
    def worker_in_words(self) -> str:
        return _in_round(self.round, "takes the gradients of", self.clients)

    def run(self, engine: Engine, examples: Examples, rows: Tensor) -> np.ndarray:
        """Returns the gradients `[n, d]`."""
        data, found = self.held.data(examples), []
        for part in engine.gradient_parts(self.clients, data):
            found.append(engine.gradient_rows(rows[0], self.clients[part], self.round, data).cpu().numpy())
        return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class StatisticShare:
    """Clients on whose examples one worker runs a function; the model, if any, is sent along.

    Args:
        function: Function of the user.
        clients: ids, int64 `[n]`.
        with_model: True if the function receives a module.
        round: the round.
        held: their data.
    """

    function: ClientFunction
    clients: Tensor
    with_model: bool
    round: int
    held: HeldClients

    @property
    def worker_in_words(self) -> str:
        return _in_round(self.round, "computes statistics of", self.clients)

    def run(self, engine: Engine, examples: Examples, rows: Tensor) -> list[Statistic | None]:
        model = rows[0] if self.with_model else None
        return engine.statistics(self.function, self.clients, model, self.round, self.held.data(examples))


@dataclass(frozen=True, eq=False)
class LossShare:
    """Examples on which one worker computes the losses of all models that are sent along.

    Args:
        index: the examples, int64 `[n]`.
    """

    index: Tensor

    @property
    def worker_in_words(self) -> str:
        return _of_scores(self.index)

    def run(self, engine: Engine, examples: Examples, rows: Tensor) -> np.ndarray:
        """Returns the losses `[K, n]`."""
        return engine.losses_of_all(rows, self.index, _nobodys(examples)).numpy()


@dataclass(frozen=True, eq=False)
class ScoreShare:
    """Examples that one worker scores, each with one of the models that are sent along.

    Args:
        index: the examples, int64 `[n]`.
        which: the row of each, int64 `[n]`, ascending.
        numbers: Number of each row's model in the driver, int64.
        named: Name of the model of a number.
    """

    index: Tensor
    which: Tensor
    numbers: Tensor
    named: ModelName

    @property
    def worker_in_words(self) -> str:
        return _of_scores(self.index)

    def run(self, engine: Engine, examples: Examples, rows: Tensor) -> Sequence[np.ndarray]:
        """Returns the parts of `Outcomes`, each `[..., n]`."""

        def named(row: int) -> str:
            return self.named(int(self.numbers[row]))

        return _as_arrays(engine.outcomes_of_each(rows, self.which, self.index, _nobodys(examples), named))


@dataclass(frozen=True, eq=False)
class MixtureShare:
    """Examples that one worker scores, each under a mixture of all models that are sent along.

    Args:
        index: the examples, int64 `[n]`.
        which: the mixture of each, int64 `[n]`, ascending.
        weights: Weights of the models in each mixture `[mixtures, K]`.
    """

    index: Tensor
    which: Tensor
    weights: Tensor

    @property
    def worker_in_words(self) -> str:
        return _of_scores(self.index)

    def run(self, engine: Engine, examples: Examples, rows: Tensor) -> Sequence[np.ndarray]:
        """Returns the parts of `Outcomes`, each `[..., n]`."""
        data = _nobodys(examples)
        return _as_arrays(engine.outcomes_of_mixtures(rows, self.weights, self.which, self.index, data))


def _as_arrays(found: Outcomes) -> Sequence[np.ndarray]:
    outputs = [] if found.outputs is None else [found.outputs.T]
    return [part.numpy() for part in (found.losses, found.values, found.weights, *outputs)]


def split_evenly(sizes: Sequence[int], parts: int) -> list[slice]:
    """Splits units of work into parts of about the same size, without empty ones.

    Args:
        sizes: Size of each unit, 1 or more.
        parts: 1 or more.
    """
    ends = np.cumsum(sizes)
    part_of = (ends - np.asarray(sizes) / 2) * parts // ends[-1] if len(sizes) else ends
    borders = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(sizes)]
    return [slice(start, stop) for start, stop in pairwise(borders) if start < stop]


def _nobodys(examples: Examples) -> FederatedData:
    return HeldClients(0, torch.empty(0, dtype=torch.int64), ClientIndex.empty(0)).data(examples)


def _in_round(round: int, does: str, clients: Tensor) -> str:
    return f"round {round + 1} cannot be finished: the Ray worker that {does} client(s) {join_ids(clients.tolist())}"


def _of_scores(index: Tensor) -> str:
    return f"models cannot be scored: the Ray worker that has {len(index):,} of the examples"
