"""Distributes the work among Ray actors, each with a separate engine.

An actor holds a core, or a share of a GPU, on this machine or on any node of a cluster. Examples and models go through
Ray's object store, which holds each once per node, and actors read them without a copy.

Clients are always trained by actors. If the actors have GPUs, they also compute all losses, scores and gradients, and
this process needs no GPU. On CPUs they do so if the hand-over pays (`_HAND_OVER_PAYS`); the bits are the same.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from lit_cfl.activity import Activity
from lit_cfl.data import Examples, FederatedData
from lit_cfl.engines.base import Engine
from lit_cfl.engines.cohort_fit import Ended
from lit_cfl.engines.fit_request import FitRequest
from lit_cfl.engines.steps import describe_steps
from lit_cfl.engines.module_state import digest_of_constants
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.ray import shares as work
from lit_cfl.engines.ray.pool import ShareTask, WorkerPool
from lit_cfl.engines.ray.shares import HeldClients, Share, share_of_clients, share_of_examples, split_evenly
from lit_cfl.engines.ray.tasks import Ref
from lit_cfl.engines.ray.worker import EngineSpec, to_arrays
from lit_cfl.engines.scorer import ModelName, Outcomes, split_reads, split_reads_by_model
from lit_cfl.engines.stacked.lane_schedule import schedule_lanes
from lit_cfl.engines.ways import get_way
from lit_cfl.local_work import Chunk, ClientFunction, Statistic

# Minimum work for which a hand-over (5 ms on CPUs) pays off: 5,000 examples, fewer above 200,000 parameters.
_HAND_OVER_PAYS = 1_000_000_000  # minimum of parameters times examples
_SMALL_MODEL = 200_000  # number of parameters that smaller models count as
_GRADIENT_ROW = 20  # number of examples whose gradient takes as long to compute as transferring one row


class RayEngine(Engine):
    """Engine that distributes its work among `plan.workers` Ray actors; `close` ends them."""

    _pool: WorkerPool | None = None
    _stored_examples: tuple[Examples, Ref] | None = None
    _close_pool: Callable[[], object] | None = None

    @property
    def device(self) -> str:
        """The device of this process, the CPU: the GPUs belong to the actors."""
        return "cpu"

    def close(self) -> None:
        self._pool = self._stored_examples = None
        if self._close_pool is not None:
            self._close_pool()  # a second call does nothing

    def switch_plan(self, plan: Plan) -> None:
        if plan.lanes != self.plan.lanes:
            self.close()  # running workers cannot change their number of lanes
        super().switch_plan(plan)

    def fit_chunks(
        self, request: FitRequest, chunks: Sequence[slice], round: int, data: FederatedData
    ) -> Iterator[Chunk]:
        for chunk in chunks:
            self.report_fit(request, round, chunk.start)
            yield self._fit_chunk_in_workers(request, chunk, round, data)

    def _fit_chunk_in_workers(self, request: FitRequest, part: slice, round: int, data: FederatedData) -> Chunk:
        start = request.start[part]
        models = torch.empty(len(start), self.layout.num_columns, dtype=self.plan.dtype)
        losses = torch.full((len(start),), float("nan"), dtype=torch.float64)
        trained, idle = torch.zeros(len(start), dtype=torch.bool), torch.ones(len(start), dtype=torch.bool)
        pool = self._start_pool()  # Ray must run before `put`
        rows, examples = _StoredRows(request, self.plan.dtype), self._examples_stored(data)
        shares = self._shares(request, part, data)
        tasks = [self._fit_task(request, share + part.start, rows, examples, round, data) for share in shares]
        for number, done in pool.run(tasks, self.between_clients):
            share = shares[number].numpy()
            models.numpy()[share], losses.numpy()[share], trained.numpy()[share] = done
            idle[shares[number]] = False
            self.report_fit(request, round, part.start, int((~idle).sum()))
        models[idle] = request.models[start[idle]].to(self.plan.dtype)
        return Chunk(part.start, models, losses, trained)

    def _shares(self, request: FitRequest, part: slice, data: FederatedData) -> list[Tensor]:
        """Assigns training clients to workers: the longest first, each to the least loaded worker."""
        sizes = data.num_examples[request.clients[part]]
        steps = self.describer.steps(request.budget, request.lengths[part], sizes)
        training = steps.nonzero().flatten()
        held: list[list[int]] = [[] for _ in range(self.plan.workers)]
        for lane_slot in schedule_lanes(steps[training], self.plan.workers):
            held[lane_slot.lane].append(int(training[lane_slot.fit]))
        return [torch.tensor(sorted(positions)) for positions in held if positions]

    def _fit_task(
        self,
        request: FitRequest,
        numbers: Tensor,
        rows: "_StoredRows",
        examples: Ref,
        round: int,
        data: FederatedData,
    ) -> ShareTask:
        """Makes an actor's task of training the clients at these positions."""
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
            weights=None if request.weights is None else [request.weights[k].clone() for k in numbers.tolist()],
        )
        compute = partial(work.compute_fit, mine, round, HeldClients.of(mine.clients, data))
        return ShareTask(share_of_clients(compute, "trains", mine.clients, round), examples, refs)

    def _start_pool(self) -> WorkerPool:
        if self._pool is None:
            deterministic = torch.are_deterministic_algorithms_enabled()
            plan = replace(self.plan, workers=0)  # Ray shows an actor no other GPU, so its own is number 0
            constants = digest_of_constants(self.template, self.layout)
            compiled = plan.device == "cpu" and get_way(plan.engine).uses_compiled_steps
            steps = describe_steps() if compiled else ""
            spec = EngineSpec(self._task, plan, self.seed, self.local, deterministic, constants, steps)
            self._pool = WorkerPool(spec, self.plan)
            self._close_pool = weakref.finalize(self, self._pool.close)  # in case `close` is never called
        return self._pool

    def outcomes_of_each(
        self, models: Tensor, which: Tensor, index: Tensor, data: FederatedData, named: ModelName = "model {}".format
    ) -> Outcomes:
        if not self._pays(len(index)):
            return super().outcomes_of_each(models, which, index, data, named)
        self.report(Activity("evaluating"))
        parts = self._parts(split_reads_by_model(which))
        shares, tables = [], []
        for part in parts:
            numbers, rows = which[part].unique(return_inverse=True)
            name = partial(work.name_of, named, numbers)
            score = partial(Engine.outcomes_of_each, which=rows, index=index[part], named=name)
            shares.append(share_of_examples(partial(work.compute_scores, score), index[part]))
            tables.append(models[numbers])
        return self._join(shares, tables, parts, data)

    def outcomes_of_mixtures(
        self, models: Tensor, weights: Tensor, which: Tensor, index: Tensor, data: FederatedData
    ) -> Outcomes:
        if not self._pays(len(models) * len(index)):
            return super().outcomes_of_mixtures(models, weights, which, index, data)
        self.report(Activity("evaluating"))
        parts = self._parts(split_reads(len(index)))
        shares = []
        for part in parts:
            numbers, rows = which[part].unique(return_inverse=True)
            score = partial(Engine.outcomes_of_mixtures, weights=weights[numbers], which=rows, index=index[part])
            shares.append(share_of_examples(partial(work.compute_scores, score), index[part]))
        return self._join(shares, [models], parts, data)

    def _join(
        self, shares: Sequence[Share], tables: Sequence[Tensor], parts: Sequence[slice], data: FederatedData
    ) -> Outcomes:
        """Scores parts of the examples on actors, one share per part, and joins the outcomes."""
        found: list[Tensor] = []
        for number, outcomes in self._run_shares(shares, tables, data):
            arrays = [torch.from_numpy(np.array(values)) for values in outcomes]
            found = found or [array.new_empty(*array.shape[:-1], parts[-1].stop) for array in arrays]
            for rows, values in zip(found, arrays, strict=True):
                rows[..., parts[number]] = values
        losses, values, weights, *outputs = found
        return Outcomes(losses, values, weights, outputs[0].T if outputs else None)

    def losses_of_all(self, models: Tensor, index: Tensor, data: FederatedData) -> Tensor:
        if not self._pays(len(models) * len(index)):
            return super().losses_of_all(models, index, data)
        parts = self._parts(split_reads(len(index)))
        losses = torch.empty(len(models), len(index), dtype=torch.float64)
        shares = [share_of_examples(partial(work.compute_losses, index[part]), index[part]) for part in parts]
        for number, found in self._run_shares(shares, [models], data):
            losses[:, parts[number]] = torch.from_numpy(np.array(found))
        return losses

    def gradient_rows(
        self, model: Tensor, clients: Tensor, round: int, data: FederatedData, report: Ended = lambda count: None
    ) -> Tensor:
        sizes = data.num_examples[clients]
        if not self._pays(int(sizes.sum()) - _GRADIENT_ROW * len(clients)):
            return super().gradient_rows(model, clients, round, data, report)
        units = self.way.gradient_units(sizes, clients)
        runs = split_evenly([int(sizes[unit].sum()) + 1 for unit in units], self.plan.workers)
        parts = [torch.cat(units[run]) for run in runs]
        shares = []
        for part in parts:
            compute = partial(work.compute_gradients, own := clients[part], round, HeldClients.of(own, data))
            shares.append(share_of_clients(compute, "takes the gradients of", own, round))
        rows = torch.empty(len(clients), self.layout.num_columns, dtype=self.plan.dtype)
        done = 0
        for number, found in self._run_shares(shares, [model[None]], data):
            rows[parts[number]] = torch.from_numpy(np.array(found))
            done += len(parts[number])
            report(done)
        return rows

    def statistics(
        self, function: ClientFunction, clients: Tensor, model: Tensor | None, round: int, data: FederatedData
    ) -> list[Statistic | None]:
        runs = split_evenly((data.num_examples[clients] + 1).tolist(), self.plan.workers)
        shares, with_model = [], model is not None
        for run in runs:
            held = HeldClients.of(own := clients[run], data)
            compute = partial(work.compute_statistics, function, own, with_model, round, held)
            shares.append(share_of_clients(compute, "computes statistics of", own, round))
        row = torch.empty(1, 0) if model is None else model[None]
        found: list[Statistic | None] = [None] * len(clients)
        done = 0
        for number, answers in self._run_shares(shares, [row], data):
            found[runs[number]] = answers
            done += len(answers)
            self.report_statistics(round, done, len(clients))
        return found

    def _examples_at_once(self, data: FederatedData) -> float:
        return float("inf")  # no limit here: the actors divide their own shares

    def _pays(self, examples: int) -> bool:
        """Returns whether losses, scores or gradients of this many examples are worth computing on actors."""
        if self.plan.device != "cpu":
            return True
        return self.plan.workers > 1 and examples * max(_SMALL_MODEL, self.layout.num_parameters) >= _HAND_OVER_PAYS

    def _parts(self, units: Sequence[slice]) -> list[slice]:
        """Merges consecutive slices until there is at most one per actor."""
        runs = split_evenly([unit.stop - unit.start for unit in units], self.plan.workers)
        return [slice(units[run.start].start, units[run.stop - 1].stop) for run in runs]

    def _run_shares(
        self, shares: Sequence[Share], tables: Sequence[Tensor], data: FederatedData
    ) -> Iterator[tuple[int, Any]]:
        """Runs shares on actors. Yields each share's number and result, in order of completion.

        Args:
            tables: Rows `[n, d]` that are sent along with each share; a single table is sent with all shares.
        """
        pool, examples = self._start_pool(), self._examples_stored(data)  # Ray must run before `put`
        refs = [ray.put(table.to(self.plan.dtype).cpu().numpy()) for table in tables]
        refs = refs * len(shares) if len(tables) == 1 else refs
        tasks = [ShareTask(share, examples, [ref]) for share, ref in zip(shares, refs, strict=True)]
        return pool.run(tasks, self.between_clients)

    def _examples_stored(self, data: FederatedData) -> Ref:
        if self._stored_examples is None or self._stored_examples[0] is not data.examples:
            self._stored_examples = (data.examples, ray.put(to_arrays(data.examples)))
        return self._stored_examples[1]


class _StoredRows:
    """Stores the models and centres of a fit in the object store, each only once."""

    def __init__(self, request: FitRequest, dtype: torch.dtype) -> None:
        self._request, self._dtype = request, dtype
        self._refs: dict[tuple[int, int], Ref] = {}

    def of(self, numbers: Tensor) -> tuple[Tensor, Tensor, list[Ref]]:
        """Returns each client's start model and centre as indices into a list of references, and the list."""
        request = self._request
        used, start = request.start[numbers].unique(return_inverse=True)
        refs = [self._store_table(request.models, k) for k in used.tolist()]
        if not request.prox:
            return start, start, refs
        if request.centers is None:
            raise TypeError("prox needs centers")
        drawn, center = request.center[numbers].unique(return_inverse=True)
        return start, center + len(refs), refs + [self._store_table(request.centers, k) for k in drawn.tolist()]

    def _store_table(self, table: Tensor, number: int) -> Ref:
        key = (id(table), number)  # models and centres may be the same table
        if key not in self._refs:
            self._refs[key] = ray.put(table[number].to(self._dtype).cpu().numpy())
        return self._refs[key]
