"""Distributes the clients of a chunk among Ray actors, each with an engine of its own: the engine `ray`.

An actor holds a core of its own, or a share of a GPU, on this machine or on any node of a cluster. Examples and models
go through Ray's object store, where each is held once a node, and actors read them without a copy.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from lit_cfl.data import Examples, FederatedData
from lit_cfl.engines.base import Engine
from lit_cfl.engines.batches import num_steps
from lit_cfl.engines.client_work import PositionedRow
from lit_cfl.engines.local_training import FitRequest, LocalTraining, TaskFactory
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked.engine import StackedEngine
from lit_cfl.engines.stacked.schedule import schedule_lanes
from lit_cfl.engines.stacked.stackable import obstacles
from lit_cfl.engines.trainer import TrainerEngine
from lit_cfl.errors import InputError, Notice
from lit_cfl.local_work import Chunk

try:
    import ray
except ImportError as error:
    raise InputError(
        "the engine 'ray' needs Ray, which is not installed: pip install 'ray[default]>=2.60', or use --engine stacked"
    ) from error

from lit_cfl.engines.ray.pool import ShardTask, WorkerPool
from lit_cfl.engines.ray.worker import EngineSpec, Ref, Shard, parts_of


class RayEngine(Engine):
    """Fits the clients of a chunk on `plan.workers` actors; `close` ends them."""

    def __init__(self, task: TaskFactory, plan: Plan, seed: int, local: LocalTraining = LocalTraining()) -> None:
        super().__init__(task, plan, seed, local)
        self._pool: WorkerPool | None = None
        self._here: Engine | None = None  # for gradients
        self._stored: tuple[Examples, Ref] | None = None
        self._close_pool: Callable[[], object] = lambda: None

    def close(self) -> None:
        self._pool = self._stored = None
        self._close_pool()

    def adopt(self, plan: Plan) -> None:
        if plan.lanes != self.plan.lanes:
            self.close()  # workers have those they were started with
        super().adopt(plan)

    def _fit_chunk(self, request: FitRequest, part: slice, round: int, data: FederatedData) -> Chunk:
        start = request.start[part]
        models = torch.empty(len(start), self.layout.num_columns, dtype=self.plan.dtype)
        losses = torch.full((len(start),), float("nan"), dtype=torch.float64)
        trained, idle = torch.zeros(len(start), dtype=torch.bool), torch.ones(len(start), dtype=torch.bool)
        pool = self._started(data)  # before anything is put into the store
        rows, examples = _StoredRows(request, self.plan.dtype), self._examples_stored(data)
        shares = self._shares(request, part, data)
        shards = [self._shard(request, share + part.start, rows, round, data) for share in shares]
        tasks = [ShardTask(shard, examples, refs) for shard, refs in shards]
        for number, done in pool.run(tasks, self.between_clients):
            share = shares[number].numpy()
            models.numpy()[share] = done.models
            losses.numpy()[share], trained.numpy()[share] = done.losses, done.trained
            idle[shares[number]] = False
            self.report_fit(request, round, part.start, int((~idle).sum()))
            self.effort.useful += done.effort.useful
            self.effort.computed += done.effort.computed
            if self.plan.compile and not done.compiles:
                self.plan = self.plan.without_compiling()
                instead = self.plan.kind_of_loop
                warnings.warn(f"compiling failed in a worker: clients train in {instead}", Notice, stacklevel=2)
        models[idle] = request.models[start[idle]].to(self.plan.dtype)
        return Chunk(part.start, models, losses, trained)

    def _shares(self, request: FitRequest, part: slice, data: FederatedData) -> list[Tensor]:
        """Divides the positions that train among workers, longest first, each to the worker with the least."""
        batch_size = request.budget.batch_size or self.local.batch_size
        sizes, lengths = data.num_examples[request.clients[part]].tolist(), request.lengths[part].tolist()
        pairs = zip(lengths, sizes, strict=True)
        steps = torch.tensor([num_steps(request.budget, length, size, batch_size) for length, size in pairs])
        training = steps.nonzero().flatten()
        held: list[list[int]] = [[] for _ in range(self.plan.workers)]
        for lane_slot in schedule_lanes(steps[training], self.plan.workers):
            held[lane_slot.lane].append(int(training[lane_slot.fit]))
        return [torch.tensor(sorted(positions)) for positions in held if positions]

    def _shard(
        self, request: FitRequest, numbers: Tensor, rows: "_StoredRows", round: int, data: FederatedData
    ) -> tuple[Shard, list[Ref]]:
        """Builds the shard of the clients at these positions. Returns it with the rows that they need."""
        start, center, refs = rows.of(numbers)
        mine = replace(
            request,
            models=torch.empty(0),
            clients=request.clients[numbers],
            start=start,
            centers=None,
            center=center,
            budget=replace(request.budget, length=1),
            lengths=request.lengths[numbers],
        )
        largest = data.num_examples.argmax()[None]  # goes with every shard: engines look how much a client may hold
        holders = torch.cat([mine.clients, largest]).unique()
        lists = data.train.select(holders).packed()
        return Shard(mine, round, data.num_clients, holders, lists), refs

    def _started(self, data: FederatedData) -> WorkerPool:
        if self._pool is None:
            device = "cpu" if self.plan.device == "cpu" else "cuda:0"  # Ray shows a worker its own GPU alone
            plan = replace(self._plan_of_one(data), device=device)
            deterministic = torch.are_deterministic_algorithms_enabled()
            self._pool = WorkerPool(EngineSpec(self._task, plan, self.seed, self.local, deterministic), self.plan)
            self._close_pool = weakref.finalize(self, self._pool.close)  # also where `close` was never called
        return self._pool

    def _plan_of_one(self, data: FederatedData) -> Plan:
        """Returns the plan of an engine that fits clients in one process."""
        stackable = not obstacles(self.template, self.layout, data.examples, self.plan.precision)
        return replace(self.plan, engine="stacked" if stackable else "trainer", workers=1)

    def gradients(self, model: Tensor, clients: Tensor, round: int, data: FederatedData) -> Iterator[PositionedRow]:
        """Computes gradients in this process: they are one step a client."""
        if self._here is None:
            plan = self._plan_of_one(data)
            kind = StackedEngine if plan.engine == "stacked" else TrainerEngine
            self._here = kind(self._task, plan, self.seed, self.local)
        return self._here.gradients(model, clients, round, data)

    def _examples_stored(self, data: FederatedData) -> Ref:
        if self._stored is None or self._stored[0] is not data.examples:
            self._stored = (data.examples, ray.put(parts_of(data.examples)))
        return self._stored[1]


class _StoredRows:
    """Puts the models and centres of a chunk into the object store, each that a client needs once."""

    def __init__(self, request: FitRequest, dtype: torch.dtype) -> None:
        self._request, self._dtype = request, dtype
        self._refs: dict[tuple[int, int], Ref] = {}

    def of(self, numbers: Tensor) -> tuple[Tensor, Tensor, list[Ref]]:
        """Returns from which row each position starts, the row of its proximal term, and the rows, each once."""
        request = self._request
        used, start = request.start[numbers].unique(return_inverse=True)
        refs = [self._stored(request.models, k) for k in used.tolist()]
        if not request.prox:
            return start, start, refs
        if request.centers is None:
            raise TypeError("prox needs centers")
        drawn, center = request.center[numbers].unique(return_inverse=True)
        return start, center + len(refs), refs + [self._stored(request.centers, k) for k in drawn.tolist()]

    def _stored(self, table: Tensor, number: int) -> Ref:
        key = (id(table), number)  # models and centres may be one table
        if key not in self._refs:
            self._refs[key] = ray.put(table[number].to(self._dtype).cpu().numpy())
        return self._refs[key]
