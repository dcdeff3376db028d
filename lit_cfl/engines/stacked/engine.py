"""Trains several clients' models together, each in a lane of one stack: the engine `stacked`.

Where the plan compiles, steps run as few compiled functions of fixed shapes: one for all lanes and one for the last
lane that is busy, each with and without a proximal term. Without a compiler an eager stack is slower than a plain
loop on a CPU, so there the clients train one after the other (`loop.py`).
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_cfl.activity import Activity
from lit_cfl.data import ClientIndex, FederatedData
from lit_cfl.devices import prepared_ahead, rows_on, sent
from lit_cfl.engines.base import Engine
from lit_cfl.engines.batches import ShuffledBatches, num_steps
from lit_cfl.engines.client_fit import ClientFit, ExamplePool, FitResult
from lit_cfl.engines.client_work import PositionedRow
from lit_cfl.engines.divergence import explain_divergence
from lit_cfl.engines.dropout import key_names, step_keys
from lit_cfl.engines.dual import DualLoop
from lit_cfl.engines.lane_memory import lane_bytes
from lit_cfl.engines.linear import StackedLinear, with_linear
from lit_cfl.engines.local_training import FitRequest, LocalTraining, TaskFactory, note_client
from lit_cfl.engines.loop import PlainLoop
from lit_cfl.engines.optimizers import FunctionalOptimizer
from lit_cfl.engines.perceptron import PerceptronLoop
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked.compiled import CompiledSteps, CompilingError
from lit_cfl.engines.stacked.cuda_graph import CapturedSteps, CapturingError
from lit_cfl.engines.stacked.gradients import STACK_EXAMPLES, next_stack, order_for_stacks, stacked_gradients
from lit_cfl.engines.stacked.runner import Runner
from lit_cfl.engines.stacked.schedule import pool_capacity, pool_groups, widths_of
from lit_cfl.engines.stacked.stackable_layers import with_plain_cells
from lit_cfl.engines.steps import Steps
from lit_cfl.errors import InputError, Notice
from lit_cfl.local_work import Chunk
from lit_cfl.parameters import copy_sharing_frozen
from lit_cfl.seeds import derive, generator

_CALL_PARAMETERS = 8e6  # of a model; a GPU takes about as long to launch a step as to update one: an estimate


class StackedEngine(Engine):
    """Fits the clients of a chunk together. The task must be one that `stackable` finds nothing against."""

    def __init__(self, task: TaskFactory, plan: Plan, seed: int, local: LocalTraining = LocalTraining()) -> None:
        super().__init__(task, plan, seed, local)
        plan = self.plan
        module = self._copied(plan.compute_dtype)
        self._base, self._draws_masks = module, bool(key_names(module))
        parameters = dict(module.named_parameters())
        trained = [parameters[slot.name] for slot in self.layout.slots if not slot.is_buffer]
        optimizer = module.configure_optimizers()
        if not isinstance(optimizer, Optimizer):
            raise TypeError("a module that `stackable` refuses")
        self._optimizer = FunctionalOptimizer.of(optimizer, trained)
        stacked = with_plain_cells(copy_sharing_frozen(module))
        stacked = with_linear(stacked, StackedLinear) if plan.compile and plan.device == "cpu" else stacked
        self._loop = self._chosen_loop(module)
        self._steps = Steps(stacked, self.layout, self._optimizer, local.gradient_clip, plan.autocast)
        self._on_gpu = self._captures = torch.device(plan.device).type != "cpu"
        self._runner: Runner | None = None
        self._capacity, self._largest = 0, 1  # examples of the pool, of a client

    def _chosen_loop(self, module: LightningModule) -> PlainLoop | PerceptronLoop | DualLoop:
        """Returns the loop in which clients train where they train one after the other."""
        if self.plan.fused:
            return PerceptronLoop(module, self.layout, self.local)
        # PyTorch's own GRU is slower than a plain one on a CPU, its LSTM is faster
        one = self.with_products(with_plain_cells(copy_sharing_frozen(module), {nn.GRU}))
        plain = PlainLoop(one, self.layout, self._optimizer, self.local.gradient_clip, self.plan.autocast)
        if not self.plan.dual:
            return plain
        return DualLoop(module, self.layout, self.local, self.plan.precision == "tf32", plain)

    def _placed(self, dtype: torch.dtype) -> LightningModule:
        """Returns a module for the engine's own use; frozen parameters are there once for all of them."""
        return copy_sharing_frozen(self._base) if dtype == self.plan.compute_dtype else super()._placed(dtype)

    def adopt(self, plan: Plan) -> None:
        super().adopt(plan)
        self._runner, self._capacity, self._largest = None, 0, 1

    def lane_bytes(self, data: FederatedData) -> int:
        """Estimates the memory that a lane of a GPU's stack takes under the run's batch size."""
        example = data.examples.batch(torch.zeros(1, dtype=torch.int64), self.plan.compute_dtype)
        batch_size, largest = self.local.batch_size, max(1, int(data.num_examples.max()))
        size = batch_size if isinstance(batch_size, int) else largest
        return lane_bytes(self._steps, self.layout, self._optimizer, self.plan, example, size)

    def _fit_chunk(self, request: FitRequest, part: slice, round: int, data: FederatedData) -> Chunk:
        clients, (device, dtype) = request.clients[part], (self.plan.device, self.plan.dtype)
        starts, start = rows_on(device, dtype, request.models, request.start[part])
        models, centers = starts.index_select(0, sent(start, device)), self._centers(request, part)
        losses = torch.full((len(clients),), float("nan"), dtype=torch.float64)
        trained = torch.zeros(len(clients), dtype=torch.bool)
        takes_part = ((data.num_examples[clients] > 0) & (request.lengths[part] > 0)).nonzero().flatten()
        before = part.start
        for positions, held, pool in self._pools(self._groups(takes_part, clients, data), clients, data):
            offsets = (held.sizes.cumsum(0) - held.sizes).tolist()
            fits = [
                self._client_fit(request, part, k, models[k], centers[k], offset, round, data)
                for k, offset in zip(positions.tolist(), offsets, strict=True)
            ]
            waiting, report = clients[positions].tolist(), partial(self.report_fit, request, round, before)
            with note_client(round, waiting, together=self.plan.lanes > 1):
                results = None
                while results is None:
                    try:
                        results = self._train(fits, models, pool, request, report)
                    except (CompilingError, CapturingError) as error:
                        self._go_on_without(error)
                        models[positions] = starts[start[positions]]  # some clients may have trained already
                for done in _with_client(results, waiting, round):
                    k = done.position
                    waiting.remove(int(clients[k]))
                    if done.finite:
                        losses[k], trained[k] = done.loss, True
                    elif self.local.on_divergence == "stop":
                        rate = self._optimizer.options[0]["lr"]
                        raise explain_divergence(self, starts[start[k]], int(clients[k]), round, done.loss, rate, data)
                    else:
                        models[k] = starts[start[k]]
            before += len(positions)
        return Chunk(part.start, models, losses, trained)

    def _go_on_without(self, error: CompilingError | CapturingError) -> None:
        self._runner, reason = None, str(error).splitlines()[0]
        if isinstance(error, CapturingError):
            self._captures = False
            notice = f"a CUDA graph cannot be captured ({reason}): a step's operations are launched one by one, slower"
        else:
            self.plan = self.plan.without_compiling()
            notice = f"compiling failed ({reason}): clients train in {self.plan.kind_of_loop}"
        warnings.warn(notice, Notice, stacklevel=3)

    def _pools(
        self, groups: Iterable[Tensor], clients: Tensor, data: FederatedData
    ) -> Iterator[tuple[Tensor, ClientIndex, ExamplePool]]:
        """Yields positions of clients that train together, their lists, and their examples on the device.

        A GPU need not wait for examples that lie on the CPU: they are gathered while it trains those before.
        """
        examples, dtype, device = self.examples(data), self.plan.compute_dtype, self.plan.device
        uploads = self._on_gpu and examples.inputs.device.type == "cpu"

        def gathered(positions: Tensor) -> tuple[Tensor, ClientIndex, ExamplePool]:
            held = data.train.select(clients[positions])
            inputs, labels = examples.batch(held.entries, dtype)
            return positions, held, (inputs.pin_memory(), labels.pin_memory()) if uploads else (inputs, labels)

        for positions, held, (inputs, labels) in (prepared_ahead if uploads else map)(gathered, groups):
            yield positions, held, (sent(inputs, device), sent(labels, device))

    def _groups(self, positions: Tensor, clients: Tensor, data: FederatedData) -> Iterable[Tensor]:
        """Yields positions of clients whose examples fit the pool together."""
        bytes_each = self.plan.compute_dtype.itemsize * max(1, torch.Size(data.examples.input_shape).numel())
        self._capacity = max(self._capacity, pool_capacity(data.num_examples, bytes_each, self.plan.lanes))
        self._largest = max(self._largest, int(data.num_examples.max()))
        for group in pool_groups(data.num_examples[clients[positions]], self._capacity, self.plan.lanes):
            yield positions[group]

    def _centers(self, request: FitRequest, part: slice) -> list[Tensor] | list[None]:
        """Returns the centre of each client's proximal term `[d]` on the device; None where there is no such term."""
        if not request.prox:
            return [None] * len(request.center[part])
        if request.centers is None:
            raise TypeError("prox needs centers")
        table, which = rows_on(self.plan.device, self.plan.dtype, request.centers, request.center[part])
        return [table[number] for number in which.tolist()]

    def _client_fit(
        self,
        request: FitRequest,
        part: slice,
        position: int,
        row: Tensor,
        center: Tensor | None,
        offset: int,
        round: int,
        data: FederatedData,
    ) -> ClientFit:
        client = int(request.clients[part][position])
        size, batch_size = int(data.num_examples[client]), self._batch_size(request)
        steps = num_steps(request.budget, int(request.lengths[part][position]), size, batch_size)
        rng = generator(self.seed, request.purpose, round, client)
        table = ShuffledBatches(size, batch_size, rng).all(steps)
        if self._draws_masks:
            keys = step_keys(derive(self.seed, f"{request.purpose}/dropout", round, client), 0, steps)
        else:  # to draw keys takes a tenth of the time in which a linear model trains
            keys = torch.zeros(steps, dtype=torch.int64)
        return ClientFit(position, row, table.where(table < 0, table + offset), keys, center)

    def _batch_size(self, request: FitRequest) -> int | Literal["full"]:
        return request.budget.batch_size or self.local.batch_size

    def _train(
        self,
        fits: Sequence[ClientFit],
        models: Tensor,
        pool: ExamplePool,
        request: FitRequest,
        ended: Callable[[int], None],
    ) -> Iterable[FitResult]:
        """Trains the fits, whose rows in `models` change in place; `ended` is called with how many are through."""
        self.between_clients()
        lanes, batch_size = self._shape_of_stack(self._batch_size(request))
        if lanes == 1:
            return self._one_by_one(fits, pool, request.prox, ended)
        return self._stack(lanes, batch_size).run(fits, models, pool, self._capacity, request.prox, ended)

    def _shape_of_stack(self, batch_size: int | Literal["full"]) -> tuple[int, int]:
        """Returns the lanes of the stack and the size of its batches.

        Only a GPU has a stack for other batches than the run's: it has few lanes where batches are large, so that a
        step has no more examples than gradients that are taken together.
        """
        if batch_size == self.local.batch_size and isinstance(batch_size, int):
            return self.plan.lanes, batch_size
        size = min(batch_size, self._largest) if isinstance(batch_size, int) else self._largest
        return max(1, min(self.plan.lanes, STACK_EXAMPLES // size)) if self._on_gpu else 1, size

    def _one_by_one(
        self, fits: Sequence[ClientFit], pool: ExamplePool, prox: float, ended: Callable[[int], None]
    ) -> Iterable[FitResult]:
        with torch.no_grad():
            for number, done in enumerate(self._loop.run(fits, pool, prox), start=1):
                yield done
                ended(number)
                self.between_clients()

    def _stack(self, lanes: int, batch_size: int) -> Runner:
        """Returns the stack of this shape, built when it is first needed."""
        if self._runner is None or (self._runner.lanes, self._runner.batch_size) != (lanes, batch_size):
            plan, narrow = self.plan, min(lanes, self.plan.narrow)
            advance = CompiledSteps(self._steps, plan.products, self._report_compiling) if plan.compile else self._steps
            self._runner = Runner(
                CapturedSteps(advance, plan.device, plan.steps_per_call) if self._captures else advance,
                self.layout,
                self._optimizer,
                widths=widths_of(lanes, narrow) if self._on_gpu else [lanes, narrow],
                call_cost=_CALL_PARAMETERS / self.layout.num_parameters if self._on_gpu else float("inf"),
                steps=plan.steps_per_call,
                batch_size=batch_size,
                device=plan.device,
                dtype=plan.compute_dtype,
                effort=self.effort,
            )
        return self._runner

    def _report_compiling(self) -> None:
        self.report(Activity("compiling"))

    def _gradients(self, model: Tensor, clients: Tensor, round: int, data: FederatedData) -> Iterator[PositionedRow]:
        sizes = data.num_examples[clients]
        large, others = order_for_stacks(sizes, clients, self.plan.lanes, self.template)
        for number, row in super()._gradients(model, clients[large], round, data):
            yield int(large[number]), row
        start = 0
        while start < len(others):
            part = next_stack(sizes[others], start, min(self.plan.lanes, self.rows_that_fit))
            rows = self._stacked_gradients(model, clients[others[part]], round, data)
            yield from zip(others[part].tolist(), rows, strict=True)
            start = part.stop

    def _stacked_gradients(self, model: Tensor, clients: Tensor, round: int, data: FederatedData) -> Tensor:
        keys = torch.tensor([self.gradient_key(round, client) for client in clients.tolist()])
        held, examples = data.train.select(clients), self.examples(data)
        return stacked_gradients(self._steps, self.layout, self.plan, model, held, examples, keys)


def _with_client(results: Iterable[FitResult], waiting: Sequence[int], round: int) -> Iterator[FitResult]:
    """Yields the results; a ValueError of the user's module names client and round, as with the engine `trainer`.

    Args:
        waiting: clients that are still to be trained, the present one first.
    """
    try:
        yield from results
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"client {waiting[0]} cannot be trained in round {round + 1}: {error}") from error
