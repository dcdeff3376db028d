"""Trains shards in a Ray worker, and describes what is sent to it and what it returns."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import ray
import torch
from ray import ObjectRef
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.base import Effort, Engine
from lit_cfl.engines.local_training import FitRequest, LocalTraining, TaskFactory
from lit_cfl.engines.plan import Plan, set_up_torch
from lit_cfl.engines.stacked.engine import StackedEngine
from lit_cfl.engines.trainer import TrainerEngine

Ref = ObjectRef[Any]  # to what is in Ray's object store
Parts = dict[str, Any]  # of Examples, each tensor as an array: those Ray hands out without a copy


@dataclass(frozen=True, eq=False)
class EngineSpec:
    """What a worker builds its engine from.

    Args:
        task, seed, local: the run's, see `Engine`.
        plan: of the worker's own engine, `stacked` or `trainer`.
        deterministic: only deterministic operations on a GPU, as in the driver.
    """

    task: TaskFactory
    plan: Plan
    seed: int
    local: LocalTraining
    deterministic: bool = False


@dataclass(frozen=True, eq=False)
class Shard:
    """Clients of a fit that train on one worker.

    Args:
        request: of these clients; its models and centres are the rows that are sent along.
        round: the round.
        num_clients: of the run.
        holders: ids of the clients whose lists are sent along, int64 `[h]`, ascending.
        lists: their training examples `[h]`.
    """

    request: FitRequest
    round: int
    num_clients: int
    holders: Tensor
    lists: ClientIndex

    def data(self, examples: Examples) -> FederatedData:
        """Returns all clients, of whom only the holders have any data."""
        starts, sizes = torch.zeros(2, self.num_clients, dtype=torch.int64)
        starts[self.holders], sizes[self.holders] = self.lists.starts, self.lists.sizes
        none = ClientIndex.empty(self.num_clients)
        train = ClientIndex(self.lists.values, starts, sizes)
        return FederatedData(examples, train, none, none, torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class ShardResult:
    """The result of a shard: as in `Chunk`, as arrays, the effort that it took, and whether the worker compiles."""

    models: np.ndarray
    losses: np.ndarray
    trained: np.ndarray
    effort: Effort
    compiles: bool


class Worker:
    """Trains shards on an engine of its own. A Ray actor.

    Args:
        spec: of its engine, a reference in a list: it is read only once the paths are known.
        paths: where the driver finds Python code, the user's own among it.
    """

    def __init__(self, spec: Sequence[Ref], paths: Sequence[str]) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        self._spec = spec[0]
        self._engine: Engine | None = None
        self._examples_read: tuple[Ref, Examples] | None = None

    def ready(self) -> None:
        """Returns once the worker is up."""

    def fit(self, shard: Shard, examples: Sequence[Ref], *rows: np.ndarray) -> ShardResult:
        """Trains a shard.

        Args:
            examples: the pool, a reference in a list: it is read only when it is another one than before.
            rows: `[d]` each, what the request's `start` and `center` count.
        """
        engine, table = self._get_engine(), torch.from_numpy(np.stack(rows))
        request = replace(shard.request, models=table, centers=table if shard.request.prox else None)
        before = replace(engine.effort)
        data = shard.data(self._examples(examples[0]))
        chunk = engine._fit_chunk(request, slice(0, len(request.clients)), shard.round, data)  # cut is the driver's
        effort = Effort(engine.effort.useful - before.useful, engine.effort.computed - before.computed)
        return ShardResult(
            chunk.on_cpu().models.numpy(), chunk.losses.numpy(), chunk.trained.numpy(), effort, engine.plan.compile
        )

    def _get_engine(self) -> Engine:
        """Builds the engine at the first fit, not at the start: an error then reaches the driver as it is."""
        if self._engine is None:
            spec: EngineSpec = ray.get(self._spec)
            set_up_torch(spec.plan, spec.deterministic)
            kind = StackedEngine if spec.plan.engine == "stacked" else TrainerEngine
            self._engine = kind(spec.task, spec.plan, spec.seed, spec.local)
        return self._engine

    def _examples(self, reference: Ref) -> Examples:
        if self._examples_read is None or self._examples_read[0] != reference:
            self._examples_read = (reference, _assembled(ray.get(reference)))
        return self._examples_read[1]


def parts_of(examples: Examples) -> Parts:
    """Converts examples to arrays, as Ray holds them."""
    return {f.name: _array(getattr(examples, f.name)) for f in fields(examples)}


def _array(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, Tensor) else value


def _assembled(parts: Parts) -> Examples:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the arrays are read-only; nobody writes into examples
        tensors: Parts = {k: torch.from_numpy(part) for k, part in parts.items() if isinstance(part, np.ndarray)}
    return Examples(**parts | tensors)
