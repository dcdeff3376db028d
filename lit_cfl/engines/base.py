"""Builds nets from a seed, cuts fits into chunks, and evaluates: what engines share. They differ in `_fit_chunk`."""

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import cast

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from lit_cfl.activity import Activity, Report, fit_activity, unreported
from lit_cfl.data import Examples, FederatedData
from lit_cfl.devices import fits_on, is_out_of_memory
from lit_cfl.engines import convolutions, dual, perceptron, products
from lit_cfl.engines.batches import num_steps
from lit_cfl.engines.check_module import require_module
from lit_cfl.engines.client_work import ClientWork, PositionedRow
from lit_cfl.engines.cohort_fit import Effort
from lit_cfl.engines.convolutions import is_small, with_convolutions
from lit_cfl.engines.dropout import set_key, step_keys, with_keyed_dropout
from lit_cfl.engines.initial_models import InitialModels, seed_global_generators
from lit_cfl.engines.kernel_cache import BuildError
from lit_cfl.engines.linear import OwnLinear, with_linear
from lit_cfl.engines.local_training import CHECK, FitRequest, LocalTraining, TaskFactory, note_client
from lit_cfl.engines.perceptron import is_perceptron, layers_of
from lit_cfl.engines.perceptron_scorer import PerceptronScorer
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.scorer import EVALUATION_BATCH, ModelName, Outcomes, Scorer
from lit_cfl.engines.single_examples import refuses_single, require_no_single
from lit_cfl.engines.task_protocol import losses_of
from lit_cfl.errors import InputError, Notice
from lit_cfl.local_work import Budget, Chunk, Fitted
from lit_cfl.parameters import ParameterLayout
from lit_cfl.scores import Scores, scores_of
from lit_cfl.seeds import derive

_LARGE_POOL = 8  # a pool of examples is large where it takes more than one part in so many of a GPU's memory


class Engine(ABC):
    """Fits and evaluates clients.

    Args:
        task: builds the LightningModule that every client trains; called several times.
        plan: how to compute.
        seed: the run's seed.
        local: how long and with what batches clients train.
    """

    def __init__(self, task: TaskFactory, plan: Plan, seed: int, local: LocalTraining = LocalTraining()) -> None:
        self.plan, self.seed, self.local = plan, seed, local
        self.effort = Effort()  # of stacks so far, a worker's too
        self.between_clients: Callable[[], None] = lambda: None  # may raise, to end a run between two clients
        self.report: Report = unreported  # is called with what the engine is doing
        self._task = task
        self.template = self.build(0)
        require_module(self.template)
        self.layout = ParameterLayout.of(self.template)
        self.plan = _with_own_code(plan, self.template)
        self._resident: tuple[Examples, Examples] | None = None
        self._starts = InitialModels()
        self.noted_not_finite = False  # whether a loss that is not finite was noted in an evaluation
        self._single: bool | None = None  # whether the net cannot train on one example, once it is known
        self._was_short = False  # of memory

    @property
    def device(self) -> str:
        """Where this process computes."""
        return self.plan.device

    def at(self, round: int, data: FederatedData) -> ClientWork:
        """Returns the clients as the algorithm sees them in this round: a cheap view."""
        return ClientWork(self, round, data)

    def initial(self, number: int) -> Tensor:
        """Builds the run's initial model of that number `[d]`.

        Raises:
            InputError: the task gives a net that was made outside of it: models would be alike, whatever the seed.
        """
        module = self.build(number)
        mine = {id(parameter) for parameter in self.template.parameters() if parameter.requires_grad}
        if any(id(parameter) in mine for parameter in module.parameters()):
            raise InputError(
                "the task gives the same net at every call, so that initial models do not follow from the seed; "
                "make the net inside of it: lambda: Classification(MCLR(...), ...)"
            )
        row = self.layout.read(module, self.plan.dtype)
        self._starts.compare(number, row[: self.layout.num_parameters])
        return row

    def build(self, number: int) -> LightningModule:
        """Builds the task with the initial model of that number, as the user's code makes it: no copy of another."""
        with self.own_stream("initial", number):
            return with_keyed_dropout(self._task())

    @contextmanager
    def own_stream(self, purpose: str, *ids: int) -> Iterator[None]:
        """Seeds the global generators, for what a module itself draws, and puts them back afterwards."""
        with isolate_rng(include_cuda=self.device != "cpu"):
            seed_global_generators(self.seed, purpose, *ids)
            yield

    def module(self, row: Tensor) -> LightningModule:
        """Builds a LightningModule that holds this row, on this process's device and in the plan's dtype.

        It shares no tensor with the engine: whoever gets it may change it.
        """
        return self._with_row(row, self._copied(self.plan.dtype))

    def _module_inside(self, row: Tensor) -> LightningModule:
        """Builds the same module for the engine's own use; frozen parameters may be the engine's."""
        return self._with_row(row, self._placed(self.plan.dtype))

    def _with_row(self, row: Tensor, module: LightningModule) -> LightningModule:
        self.layout.write(row, module)
        return module

    def _copied(self, dtype: torch.dtype) -> LightningModule:
        """Copies all of the template to the device."""
        return copy.deepcopy(self.template).to(device=self.device, dtype=dtype)

    def _placed(self, dtype: torch.dtype) -> LightningModule:
        """Returns a module on the device for the engine's own use."""
        return self._copied(dtype)

    def examples(self, data: FederatedData) -> Examples:
        """Returns the pool of examples on the device, moved there once; one that is too large for it stays."""
        if self._resident is None or self._resident[0] is not data.examples:
            self._resident = (data.examples, self._moved(data.examples))
        return self._resident[1]

    def _moved(self, examples: Examples) -> Examples:
        if not fits_on(self.device, examples.num_bytes):
            return examples
        try:
            return examples.to(self.device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return examples

    def release_examples(self) -> bool:
        """Leaves the pool of examples on the CPU from now on where it takes more than an eighth of a GPU's memory.

        Returns:
            whether that freed any memory.
        """
        if self._resident is None or self.device == "cpu":
            return False
        examples, moved = self._resident
        if moved is examples or fits_on(self.device, examples.num_bytes, _LARGE_POOL):
            return False
        self._resident = (examples, examples)
        size = examples.num_bytes // 2**20
        warnings.warn(f"out of memory: the {size} MiB of examples stay on the CPU from now on", Notice, stacklevel=2)
        return True

    @property
    def scores(self) -> Scores:
        """The scores by which the task is measured."""
        return scores_of(self.template)

    def outcomes(self, model: Tensor, index: Tensor, data: FederatedData) -> Outcomes:
        """Computes losses and scores of one model `[d]` on these examples `[n]`."""
        return self.outcomes_of_each(model[None], torch.zeros_like(index), index, data)

    def losses_of_all(self, models: Tensor, index: Tensor, data: FederatedData) -> Tensor:
        """Computes the losses of each model on these examples, which are read once for all of them.

        Args:
            models: `[K, d]`.

        Returns:
            float64 `[K, n]`, on the CPU.
        """
        with self.own_stream("evaluation"):
            return self._scorer.losses_of_all(models, index, self.examples(data))

    def outcomes_of_each(
        self, models: Tensor, which: Tensor, index: Tensor, data: FederatedData, named: ModelName = "model {}".format
    ) -> Outcomes:
        """Computes losses and scores of models, each on examples of its own.

        Args:
            models: `[K, d]`.
            which: the model of each example, int64 `[n]`, ascending.
            index: the examples, int64 `[n]`.
            named: what a model is called in a note on an error, by its row.
        """
        self.report(Activity("evaluating"))
        with self.own_stream("evaluation"):
            return self._scorer.of_each(models, which, index, self.examples(data), named)

    def penalties(self, models: Tensor) -> Tensor:
        """Computes what the task adds to every example's loss in training: float64 `[K]`, 0 where it adds nothing."""
        return self._scorer.penalties(models)

    @cached_property
    def _scorer(self) -> Scorer:
        module = self.with_products(self._module_inside(self.layout.read(self.template, self.plan.dtype)))
        if self.plan.fused and is_perceptron(self.template, self.local):
            return PerceptronScorer(module.eval(), self.layout, self.plan.dtype, layers_of(self.template, self.layout))
        return Scorer(
            module.eval(), self.layout, self.plan.dtype, partial(seed_global_generators, self.seed, "evaluation")
        )

    def with_products(self, module: LightningModule) -> LightningModule:
        """Puts the plan's products and convolutions into a module that nobody else has. Returns the module."""
        return with_convolutions(with_linear(module, OwnLinear)) if self.plan.products == "own" else module

    def gradients(self, model: Tensor, clients: Tensor, round: int, data: FederatedData) -> Iterator[PositionedRow]:
        """Yields positions in `clients` and gradients `[d]` of mean training losses, in any order; see `LocalWork`.

        Where memory runs out, it goes on with half the lanes.
        """
        waiting = list(range(len(clients)))
        while waiting:
            ended = set()
            try:
                for number, row in self._gradients(model, clients[waiting], round, data):
                    ended.add(number)
                    yield waiting[number], row
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._shrink(min(self.plan.lanes, len(waiting) - len(ended)), error)
            waiting = [position for number, position in enumerate(waiting) if number not in ended]

    def _gradients(self, model: Tensor, clients: Tensor, round: int, data: FederatedData) -> Iterator[PositionedRow]:
        """Yields the same; ends with an error where memory runs out."""
        for position, client in enumerate(clients.tolist()):
            with note_client(round, [client]), self.own_stream("gradient", round, client):
                yield position, self.gradient(model, data.train[client], data, self.gradient_key(round, client))

    def gradient_key(self, round: int, client: int) -> int:
        """Derives the key of the dropout masks under which a client's gradient is taken."""
        return int(step_keys(derive(self.seed, "gradient/dropout", round, client), 0, 1))

    def gradient(self, model: Tensor, index: Tensor, data: FederatedData, key: int) -> Tensor:
        """Computes the gradient `[d]` of the mean loss on these examples, in training mode; 0 in the buffers' columns.

        Args:
            key: of the dropout masks.
        """
        module, row = (
            self.with_products(self._module_inside(model)),
            torch.zeros(self.layout.num_columns, dtype=self.plan.dtype),
        )
        set_key(module, key)
        for part in index.split(EVALUATION_BATCH):
            batch = self.examples(data).batch(part, self.plan.dtype, self.device)
            (losses_of(module, batch).sum() / len(index)).backward()
        parameters = dict(module.named_parameters())
        for slot in self.layout.slots:
            if not slot.is_buffer and parameters[slot.name].grad is not None:
                row[slot.start : slot.stop] = cast(Tensor, parameters[slot.name].grad).reshape(-1).cpu()
        return row

    def require_variance(self, clients: Tensor, budget: Budget, lengths: Tensor, data: FederatedData) -> None:
        """Raises InputError where a client has a mini-batch of one example that BatchNorm cannot train on.

        Args:
            lengths: of the budget, for each client, int64 `[n]`.
        """
        if self._refuses_single(data):
            batch_size, sizes = budget.batch_size or self.local.batch_size, data.num_examples[clients].tolist()
            pairs = zip(lengths.tolist(), sizes, strict=True)
            steps = [num_steps(budget, length, size, batch_size) for length, size in pairs]
            require_no_single(clients.tolist(), steps, sizes, batch_size)

    def _refuses_single(self, data: FederatedData) -> bool:
        if self._single is None:
            with self.own_stream("single example"):
                self._single = refuses_single(self.template, data.examples)
        return self._single

    def fit(self, request: FitRequest, round: int, data: FederatedData) -> Fitted:
        """Fits the clients in chunks of `plan.rows_mib`; all at once where they fit."""
        self.require_variance(request.clients, request.budget, request.lengths, data)
        chunks = self._chunks(request, round, data)
        return Fitted(chunks, data.num_examples[request.clients], held=len(request.clients) <= self._chunk_size)

    @property
    def _chunk_size(self) -> int:
        """Clients of a chunk: as many as `rows_that_fit`; on a GPU a multiple of the lanes, at least one of each."""
        if self.plan.device == "cpu":
            return self.rows_that_fit
        return max(1, self.rows_that_fit // self.plan.lanes) * self.plan.lanes

    @property
    def rows_that_fit(self) -> int:
        """Rows that take `plan.rows_mib`, at least one."""
        return max(1, int(self.plan.rows_mib / self._row_mib))

    @property
    def _row_mib(self) -> float:
        return self.layout.num_columns * self.plan.dtype.itemsize / 2**20

    def _chunks(self, request: FitRequest, round: int, data: FederatedData) -> Iterator[Chunk]:
        start = 0
        while start < len(request.clients):
            part = slice(start, min(start + self._chunk_size, len(request.clients)))
            self.report_fit(request, round, start)
            try:
                yield self._fit_chunk(request, part, round, data)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._shrink(part.stop - part.start, error)
                continue
            start = part.stop

    def report_fit(self, request: FitRequest, round: int, before: int, ended: int = 0) -> None:
        """Reports how far a fit is.

        Args:
            before: clients of the parts that are through.
            ended: clients of the present part that are.
        """
        if request.purpose != CHECK:  # one client, one step: the check itself reports
            self.report(fit_activity(request.purpose, round, before + ended, len(request.clients)))

    def _shrink(self, clients: int, error: Exception) -> None:
        """Moves large data to the CPU, or else halves chunks and lanes, after so many clients ran out of memory."""
        if self.release_examples():
            return
        lanes = max(1, self.plan.lanes // 2)
        rows_mib = max(1, min(self.plan.rows_mib, int(clients // 2 * self._row_mib)))
        plan = replace(self.plan, rows_mib=rows_mib, lanes=lanes, narrow=min(self.plan.narrow, lanes))
        if self.plan == plan or (self.plan.lanes, clients) == (1, 1):
            other = "" if self.plan.device == "cpu" else ", or use --device cpu"
            raise InputError(
                f"the device has too little memory for one client ({error}); choose a smaller net or batch_size{other}"
            ) from error
        self.adopt(plan)
        if not self._was_short:
            notice = (
                f"out of memory: local models now take {rows_mib} MiB at once, and {lanes} client(s) train together"
            )
            warnings.warn(f"{notice}; config.yaml records the plan if that, too, was too much", Notice, 2)
        self._was_short = True

    def adopt(self, plan: Plan) -> None:
        """Switches to another plan, one with other lanes or chunks."""
        self.plan = plan

    @property
    def wasted_share(self) -> float | None:
        """Share of the mini-batches computed so far that trained no client; None where clients do not stack."""
        return self.effort.waste if self.effort.computed else None

    def close(self) -> None:  # noqa: B027
        """Releases what the engine holds beside memory. Who built the engine calls it; a second call does nothing."""

    @abstractmethod
    def _fit_chunk(self, request: FitRequest, part: slice, round: int, data: FederatedData) -> Chunk:
        """Trains the clients at these positions of the request."""


def _with_own_code(plan: Plan, module: LightningModule) -> Plan:
    """Loads the C++ code that a plan needs for a module; returns it without compiling where it cannot be built."""
    try:
        if plan.products == "own":
            products.load()
            if any(map(is_small, module.modules())):
                convolutions.load()
        if plan.fused:
            perceptron.load()
        if plan.dual:
            dual.load()
    except BuildError as error:
        reason = str(error).splitlines()[0]
        plan = plan.without_compiling()
        warnings.warn(f"compiling failed ({reason}): clients train in {plan.kind_of_loop}", Notice, stacklevel=2)
    return plan
