"""Trains several clients' models together, each in a lane of one stack: the engine `stacked`.

Where the plan compiles, steps run as few compiled functions of fixed shapes: one for all lanes and one for the last
lane that is busy, each with and without a proximal term. Without a compiler an eager stack is slower than a plain
loop on a CPU, so there the clients train one after the other (`plain.py`).
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_cfl.activity import Activity
from lit_cfl.data import FederatedData
from lit_cfl.engines.base import Engine, PositionedRow, is_out_of_memory
from lit_cfl.engines.batches import ShuffledBatches, num_steps
from lit_cfl.engines.client_fit import ClientFit, ExamplePool, FitResult
from lit_cfl.engines.dropout import step_keys
from lit_cfl.engines.linear import StackedLinear, with_linear
from lit_cfl.engines.local_training import FitRequest, LocalTraining, TaskFactory, note_client
from lit_cfl.engines.loop import PlainLoop
from lit_cfl.engines.optimizers import FunctionalOptimizer
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked.compiled import CompiledSteps, CompilingError
from lit_cfl.engines.stacked.cuda_graph import CapturedSteps
from lit_cfl.engines.stacked.gradients import LARGEST, next_stack, stacked_gradients
from lit_cfl.engines.stacked.runner import Runner
from lit_cfl.engines.stacked.schedule import pool_capacity, pool_groups, widths_of
from lit_cfl.engines.stacked.stackable_layers import with_plain_cells
from lit_cfl.engines.steps import Steps
from lit_cfl.errors import Notice, diverged
from lit_cfl.local_work import Chunk
from lit_cfl.seeds import derive, generator

MOST_WASTE = 0.2  # of a GPU's stack; one of four lanes computes nearly as fast when some of them are idle


class StackedEngine(Engine):
    """Fits the clients of a chunk together. The task must be one that `stackable` finds nothing against."""

    def __init__(self, task: TaskFactory, plan: Plan, seed: int, local: LocalTraining = LocalTraining()) -> None:
        super().__init__(task, plan, seed, local)
        plan = self.plan
        module = copy.deepcopy(self.template).to(device=plan.device, dtype=plan.compute_dtype).train()
        parameters = dict(module.named_parameters())
        trained = [parameters[slot.name] for slot in self.layout.slots if not slot.is_buffer]
        optimizer = module.configure_optimizers()
        if not isinstance(optimizer, Optimizer):
            raise TypeError("a module that `stackable` refuses")
        self._optimizer = FunctionalOptimizer.of(optimizer, trained)
        stacked = with_plain_cells(copy.deepcopy(module))
        stacked = with_linear(stacked, StackedLinear) if plan.compile else stacked
        one = self.with_products(
            with_plain_cells(module, {nn.GRU})
        )  # faster than the fused one on a CPU, a plain LSTM is slower
        self._plain = PlainLoop(one, self.layout, self._optimizer, local.gradient_clip, plan.autocast)
        self._steps = Steps(stacked, self.layout, self._optimizer, local.gradient_clip, plan.autocast)
        self._runner: Runner | None = None
        self._capacity = 0

    def adopt(self, plan: Plan) -> None:
        super().adopt(plan)
        self._runner, self._capacity = None, 0

    def _fit_chunk(self, request: FitRequest, part: slice, round: int, data: FederatedData) -> Chunk:
        clients = request.clients[part]
        models = request.models[request.start[part]].to(self.plan.dtype)
        losses = torch.full((len(clients),), float("nan"), dtype=torch.float64)
        trained = torch.zeros(len(clients), dtype=torch.bool)
        takes_part = ((data.num_examples[clients] > 0) & (request.lengths[part] > 0)).nonzero().flatten()
        before = part.start
        for positions in self._groups(takes_part, clients, data):
            held = data.train.select(clients[positions])
            pool = self.examples(data).batch(held.entries, self.plan.compute_dtype)
            offsets = (held.sizes.cumsum(0) - held.sizes).tolist()
            fits = [
                self._client_fit(request, part.start + k, k, models[k], offset, round, data)
                for k, offset in zip(positions.tolist(), offsets, strict=True)
            ]
            waiting, report = clients[positions].tolist(), partial(self.report_fit, request, round, before)
            with note_client(round, waiting, together=self.plan.lanes > 1):
                for done in self._train(fits, pool, request, report):
                    k = done.position
                    waiting.remove(int(clients[k]))
                    if done.finite:
                        models[k], losses[k], trained[k] = done.row, done.loss, True
                    elif self.local.on_divergence == "stop":
                        raise diverged(int(clients[k]), round, done.loss, self._optimizer.options[0]["lr"])
            before += len(positions)
        return Chunk(part.start, models, losses, trained)

    def _groups(self, positions: Tensor, clients: Tensor, data: FederatedData) -> Iterable[Tensor]:
        """Yields positions of clients whose examples fit the pool together."""
        bytes_each = self.plan.compute_dtype.itemsize * max(1, torch.Size(data.examples.input_shape).numel())
        self._capacity = max(self._capacity, pool_capacity(data.num_examples, bytes_each, self.plan.lanes))
        for group in pool_groups(data.num_examples[clients[positions]], self._capacity):
            if len(positions[group]):
                yield positions[group]

    def _client_fit(
        self,
        request: FitRequest,
        number: int,
        position: int,
        start: Tensor,
        offset: int,
        round: int,
        data: FederatedData,
    ) -> ClientFit:
        client = int(request.clients[number])
        size, batch_size = int(data.num_examples[client]), self._batch_size(request)
        steps = num_steps(request.budget, int(request.lengths[number]), size, batch_size)
        rng = generator(self.seed, request.purpose, round, client)
        table = ShuffledBatches(size, batch_size, rng).all(steps)
        key = derive(self.seed, f"{request.purpose}/dropout", round, client)
        center = None
        if request.prox:
            if request.centers is None:
                raise TypeError("prox needs centers")
            center = request.centers[request.center[number]].to(self.plan.dtype)
        return ClientFit(position, start, table.where(table < 0, table + offset), step_keys(key, 0, steps), center)

    def _batch_size(self, request: FitRequest) -> int | Literal["full"]:
        return request.budget.batch_size or self.local.batch_size

    def _train(
        self, fits: Sequence[ClientFit], pool: ExamplePool, request: FitRequest, ended: Callable[[int], None]
    ) -> Iterable[FitResult]:
        """Trains the fits; `ended` is called with how many of them are through."""
        self.between_clients()
        batch_size = self._batch_size(request)
        if self.plan.lanes == 1 or batch_size != self.local.batch_size or not isinstance(batch_size, int):
            return self._one_by_one(fits, pool, request.prox, ended)
        if not self.plan.compile:
            return self._lanes(batch_size).run(fits, pool, self._capacity, request.prox, ended)
        try:
            return self._lanes(batch_size).run(fits, pool, self._capacity, request.prox, ended)
        except CompilingError as error:
            self.plan = self.plan.without_compiling()
            reason = str(error).splitlines()[0]
            warnings.warn(f"compiling failed ({reason}): clients train in a plain loop", Notice, stacklevel=2)
            return self._one_by_one(fits, pool, request.prox, ended)

    def _one_by_one(
        self, fits: Sequence[ClientFit], pool: ExamplePool, prox: float, ended: Callable[[int], None]
    ) -> Iterable[FitResult]:
        with torch.no_grad():
            for number, done in enumerate(self._plain.run(fits, pool, prox), start=1):
                yield done
                ended(number)
                self.between_clients()

    def _lanes(self, batch_size: int) -> Runner:
        """Returns the stack, built when it is first needed."""
        if self._runner is None:
            plan = self.plan
            on_gpu = torch.device(plan.device).type == "cuda"
            advance = (
                CapturedSteps(self._steps, plan.device)
                if on_gpu
                else CompiledSteps(self._steps, plan.products, lambda: self.report(Activity("compiling")))
                if plan.compile
                else self._steps
            )
            widths = widths_of(plan.lanes, plan.narrow) if on_gpu else [plan.lanes, plan.narrow]
            self._runner = Runner(
                advance,
                self.layout,
                self._optimizer,
                widths=widths,
                most_waste=MOST_WASTE if on_gpu else 1.0,
                always_pulled=on_gpu,
                steps=plan.steps_per_call,
                batch_size=batch_size,
                device=plan.device,
                dtype=plan.compute_dtype,
                effort=self.effort,
            )
        return self._runner

    def gradients(self, model: Tensor, clients: Tensor, round: int, data: FederatedData) -> Iterator[PositionedRow]:
        sizes = data.num_examples[clients]
        alone = sizes > (LARGEST if self.plan.lanes > 1 else -1)
        large, others = alone.nonzero().flatten(), (~alone).nonzero().flatten()
        for number, row in super().gradients(model, clients[large], round, data):
            yield int(large[number]), row
        others = others[clients[others].argsort(stable=True)]
        others = others[sizes[others].argsort(descending=True, stable=True)]  # by size and id: in any order the same
        start = 0
        while start < len(others):
            part = next_stack(sizes[others], start, min(self.plan.lanes, self.rows_that_fit))
            try:
                rows = self._stacked_gradients(model, clients[others[part]], round, data)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._shrink(part.stop - start, error)
                continue
            yield from zip(others[part].tolist(), rows, strict=True)
            start = part.stop

    def _stacked_gradients(self, model: Tensor, clients: Tensor, round: int, data: FederatedData) -> Tensor:
        keys = torch.tensor([self.gradient_key(round, client) for client in clients.tolist()])
        held, examples = data.train.select(clients), self.examples(data)
        return stacked_gradients(self._steps, self.layout, self.plan, model, held, examples, keys)
