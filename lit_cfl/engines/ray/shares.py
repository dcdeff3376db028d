"""Shares of an engine's work that are sent to Ray workers, and how workers compute them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.base import Engine
from lit_cfl.engines.fit_request import FitRequest
from lit_cfl.engines.scorer import ModelName, Outcomes
from lit_cfl.errors import join_ids
from lit_cfl.local_work import ClientFunction, Statistic


@dataclass(frozen=True, eq=False)
class Share:
    """A share of an engine's work, for one worker.

    Args:
        compute: Computes the share with the worker's engine, the pool of examples, and the rows `[n, d]` that are sent
            along.
        worker_in_words: Describes the work that needs this worker, for a message: `...: the Ray worker that ...`.
    """

    compute: Callable[[Engine, Examples, Tensor], Any]
    worker_in_words: str


@dataclass(frozen=True, eq=False)
class HeldClients:
    """The clients of a run, with the training examples of only those that a worker needs.

    Args:
        num_clients: Clients of the run.
        holders: Ids of the clients that have examples, int64 `[h]`, ascending.
        lists: Training examples of each holder `[h]`.
    """

    num_clients: int
    holders: Tensor
    lists: ClientIndex

    @classmethod
    def of(cls, clients: Tensor, data: FederatedData) -> "HeldClients":
        """Selects these clients, with copies of their lists of training examples."""
        holders = clients.unique()
        return cls(data.num_clients, holders, data.train.select(holders).pack())

    @classmethod
    def nobody(cls) -> "HeldClients":
        """Makes an empty selection, for work that needs only examples."""
        return cls(0, torch.empty(0, dtype=torch.int64), ClientIndex.empty(0))

    def data(self, examples: Examples) -> FederatedData:
        """Returns the data of all clients; clients that are not held here have no examples."""
        starts, sizes = torch.zeros(2, self.num_clients, dtype=torch.int64)
        starts[self.holders], sizes[self.holders] = self.lists.starts, self.lists.sizes
        none = ClientIndex.empty(self.num_clients)
        train = ClientIndex(self.lists.values, starts, sizes)
        return FederatedData(examples, train, none, none, torch.empty(0, dtype=torch.int64))


def compute_fit(
    request: FitRequest, round: int, held: HeldClients, engine: Engine, examples: Examples, rows: Tensor
) -> Sequence[np.ndarray]:
    """Trains the clients of a request from the rows sent with it. Returns models, losses and `trained` of a `Chunk`."""
    request = replace(request, models=rows, centers=rows if request.prox else None)
    whole = [slice(0, len(request.clients))]  # the driver has divided the clients already
    (chunk,) = engine.fit_chunks(request, whole, round, held.data(examples))
    return chunk.on_cpu().models.numpy(), chunk.losses.numpy(), chunk.trained.numpy()


def compute_gradients(
    clients: Tensor, round: int, held: HeldClients, engine: Engine, examples: Examples, rows: Tensor
) -> np.ndarray:
    """Computes the gradients `[n, d]` of these clients at the model that was sent."""
    data = held.data(examples)
    parts = engine.gradient_parts(clients, data)
    return np.concatenate([engine.gradient_rows(rows[0], clients[part], round, data).cpu().numpy() for part in parts])


def compute_statistics(
    function: ClientFunction,
    clients: Tensor,
    with_model: bool,
    round: int,
    held: HeldClients,
    engine: Engine,
    examples: Examples,
    rows: Tensor,
) -> list[Statistic | None]:
    """Runs a user's function on these clients' training examples, optionally with the model that was sent."""
    return engine.statistics(function, clients, rows[0] if with_model else None, round, held.data(examples))


def compute_losses(index: Tensor, engine: Engine, examples: Examples, rows: Tensor) -> np.ndarray:
    """Computes the losses `[K, n]` of all models that were sent, on these examples."""
    return engine.losses_of_all(rows, index, HeldClients.nobody().data(examples)).numpy()


def compute_scores(
    score: Callable[..., Outcomes], engine: Engine, examples: Examples, rows: Tensor
) -> Sequence[np.ndarray]:
    """Scores examples with the models that were sent. Returns the parts of `Outcomes`, each `[..., n]`.

    Args:
        score: A method of `Engine` that returns outcomes, with all its arguments but engine, models and data.
    """
    found = score(engine, rows, data=HeldClients.nobody().data(examples))
    outputs = [] if found.outputs is None else [found.outputs.T]
    return [part.numpy() for part in (found.losses, found.values, found.weights, *outputs)]


def name_of(named: ModelName, numbers: Tensor, row: int) -> str:
    """Returns the name of the model in a row of a worker's table."""
    return named(int(numbers[row]))


def split_evenly(sizes: Sequence[int], parts: int) -> list[slice]:
    """Splits units of work into parts of about the same size, none of which is empty.

    Args:
        sizes: Size of each unit, 1 or more.
        parts: 1 or more.
    """
    ends = np.cumsum(sizes)
    part_of = (ends - np.asarray(sizes) / 2) * parts // ends[-1] if len(sizes) else ends
    borders = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(sizes)]
    return [slice(start, stop) for start, stop in pairwise(borders) if start < stop]


def share_of_clients(compute: Callable[..., Any], does: str, clients: Tensor, round: int) -> Share:
    """Makes a worker's share of a round: the work of these clients.

    Args:
        does: Verb for the worker's task, for a message, such as `trains`.
    """
    noun = "client" if len(clients) == 1 else "clients"
    whose = f"the Ray worker that {does} {noun} {join_ids(clients.tolist())}"
    return Share(compute, f"round {round + 1} cannot be finished: {whose}")


def share_of_examples(compute: Callable[..., Any], index: Tensor) -> Share:
    """Makes a share that computes losses or scores on these examples."""
    return Share(compute, f"models cannot be scored: the Ray worker that has {len(index):,} of the examples")
