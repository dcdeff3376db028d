"""The engine: builds modules from a seed, trains clients in chunks as the plan specifies, and evaluates models."""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.activity import Activity, Report, fit_activity, ignore_activity
from lit_cfl.data import Examples, FederatedData
from lit_cfl.devices import fits_on, is_out_of_memory, move_rows, prepare_ahead, send
from lit_cfl.engines.augmented import augment_examples
from lit_cfl.engines.batch_norm import rejects_single_example, require_no_single_batch
from lit_cfl.engines.check_module import require_module
from lit_cfl.engines.client_errors import explain_divergence, find_learning_rate, note_client
from lit_cfl.engines.cohort_fit import CohortFit, Ended, TrainingWay
from lit_cfl.engines.dropout import key_names
from lit_cfl.engines.fit_request import CHECK, FitDescriber, FitRequest, split_clients
from lit_cfl.engines.global_generators import seed_global_generators, seed_globally
from lit_cfl.engines.initial_models import InitialModels, build_module
from lit_cfl.engines.lr_schedule import RoundRates
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.round_work import PositionedRows, RoundWork
from lit_cfl.engines.scorer import ModelName, Outcomes, Scorer
from lit_cfl.engines.task_protocol import Batch, explain_missing_gradients
from lit_cfl.engines.training_options import LocalTraining, Rates, TaskFactory
from lit_cfl.engines.ways import get_way
from lit_cfl.errors import DivergedError, InputError, Notice, count_noun, note_on_error
from lit_cfl.local_work import Budget, Chunk, ClientFunction, Fitted, Statistic, keep_statistic
from lit_cfl.parameters import ParameterLayout
from lit_cfl.scores import Scores, scores_of
from lit_cfl.seeds import derive

_LARGE_POOL = 8  # a pool of examples is large if it takes more than 1/8 of a GPU's memory
# Maximum MiB of examples that a way gets at once. On a CPU, `keep_freed_memory` lets the C library reuse such blocks.
_PART_MIB = {"cpu": 64, "cuda": 1024}
# Positions of clients in the request, the fit of these clients, and their examples if those were gathered
Prepared = tuple[Tensor, CohortFit, Batch | None]


class Engine:
    """Trains clients and evaluates models in this process, as the plan specifies.

    Args:
        task: Builds the LightningModule that every client trains; called several times.
        plan: Plan of local training.
        seed: The run's seed.
        local: Length and mini-batches of local training.
        template: The task's module of this seed, if it was built already.
    """

    def __init__(
        self,
        task: TaskFactory,
        plan: Plan,
        seed: int,
        local: LocalTraining = LocalTraining(),
        template: LightningModule | None = None,
    ) -> None:
        self.plan, self.seed, self.local = plan, seed, local
        self.between_clients: Callable[[], None] = lambda: None  # may raise, to end a run between two clients
        self.report: Report = ignore_activity  # called with the engine's current work
        self._task = task
        self.template = build_module(task, seed) if template is None else template
        require_module(self.template)
        self.layout = ParameterLayout.of(self.template)
        way = get_way(plan.engine)
        self.describer = FitDescriber(seed, local, bool(key_names(self.template)), way.seeds_global_generators)
        self._way: TrainingWay | None = None
        self._resident: tuple[Examples, Examples] | None = None
        self._single: bool | None = None  # True if the net cannot train on one example; None = unknown
        self._was_short = False  # True once memory ran out
        self._starts = InitialModels()
        self.noted_not_finite = False  # True once an evaluation warned of a non-finite loss

    def rates(self, round: int) -> Rates | None:
        """Returns the learning rates of a round, one per parameter group; None without a schedule.

        Raises:
            InputError: the schedule cannot be made, or has no rates for this round.
        """
        return None if self._round_rates is None else self._round_rates.at(round)

    @property
    def schedule_lengths(self) -> set[int]:
        """Numbers of rounds after which the learning rate schedule ends; empty without a schedule."""
        return set() if self._round_rates is None else self._round_rates.lengths

    @cached_property
    def _round_rates(self) -> RoundRates | None:
        schedule = self.local.lr_schedule
        return None if schedule is None else RoundRates(schedule, self.template)

    @property
    def device(self) -> str:
        """The device on which this process computes."""
        return self.plan.device

    def at(self, round: int, data: FederatedData) -> RoundWork:
        """Returns the `LocalWork` of this round, without any computation."""
        return RoundWork(self, round, data)

    def initial(self, number: int) -> Tensor:
        """Builds the run's initial model `[d]` with this number; number 0 is the template's model.

        Raises:
            InputError: see `build`.
        """
        row = self.layout.read(self.build(number) if number else self.template, self.plan.dtype)
        self._starts.compare(number, row[: self.layout.num_parameters])
        return row

    def build(self, number: int) -> LightningModule:
        """Runs the user's code to build the task's module with the initial model of this number.

        Raises:
            InputError: the task returns a net made outside of it, so models would not depend on the seed.
        """
        module = build_module(self._task, self.seed, number, self.device)
        mine = {id(parameter) for parameter in self.template.parameters() if parameter.requires_grad}
        if any(id(parameter) in mine for parameter in module.parameters()):
            raise InputError(
                "the task returns the same net at every call, so initial models do not depend on the seed; make the "
                "net inside the task: lambda: Classification(MCLR(...), ...)"
            )
        return module

    @property
    def way(self) -> TrainingWay:
        """The plan's way of training clients, built when it is first needed."""
        if self._way is None:
            here = replace(self.plan, device=self.device, workers=0)
            self._way = get_way(here.engine)(self.template, self.layout, here, self.local)
        return self._way

    def module(self, row: Tensor) -> LightningModule:
        """Builds a LightningModule with the parameters in this row, on this process's device and in the plan's dtype.

        It shares no tensor with the engine, so the caller may change it.
        """
        module = copy.deepcopy(self.template).to(device=self.device, dtype=self.plan.dtype)
        self.layout.write(row, module)
        return module

    def examples(self, data: FederatedData) -> Examples:
        """Returns the pool of examples, on the device if it fits there, else on the CPU."""
        if self._resident is None or self._resident[0] is not data.examples:
            examples = moved = data.examples
            if fits_on(self.device, examples.num_bytes):
                try:
                    moved = examples.to(self.device)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
            self._resident = (examples, moved)
        return self._resident[1]

    def release_examples(self) -> bool:
        """Moves the examples back to the CPU for good if they take more than an eighth of the GPU's memory.

        Returns:
            whether any memory was freed.
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
        """Computes the loss of each model on each of these examples, which are read only once.

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
        """Computes the losses and scores of examples, each under the model assigned to it.

        Args:
            models: `[K, d]`.
            which: Model of each example, int64 `[n]`, ascending.
            index: Examples, int64 `[n]`.
            named: Name of a model in an error's note, by its row.
        """
        self.report(Activity("evaluating"))
        with self.own_stream("evaluation"):
            return self._scorer.score_each(models, which, index, self.examples(data), named)

    def outcomes_of_mixtures(
        self, models: Tensor, weights: Tensor, which: Tensor, index: Tensor, data: FederatedData
    ) -> Outcomes:
        """Computes the losses and scores of examples, each under the mixture of models assigned to it.

        Args:
            models: `[K, d]`.
            weights: Weights of the models in each mixture `[mixtures, K]`.
            which: Mixture of each example, int64 `[n]`, ascending.
            index: Examples, int64 `[n]`.
        """
        self.report(Activity("evaluating"))
        with self.own_stream("evaluation"):
            return self._scorer.score_mixtures(models, weights, which, index, self.examples(data))

    def own_stream(self, purpose: str, *ids: int) -> AbstractContextManager[None]:
        """Seeds the global random generators within the block, and restores them afterwards."""
        return seed_globally(derive(self.seed, purpose, *ids), self.device)

    @cached_property
    def _scorer(self) -> Scorer:
        return self.way.scorer(partial(seed_global_generators, self.seed, "evaluation"))

    def gradients(self, model: Tensor, clients: Tensor, round: int, data: FederatedData) -> Iterator[PositionedRows]:
        """Yields the gradients of clients' mean training losses, for one group of clients after another.

        If memory runs out, it continues with fewer clients at once.
        """
        start, total = 0, len(clients)
        while start < total:
            part = next(self.gradient_parts(clients[start:], data))
            part = slice(start, start + part.stop)
            try:
                report = partial(self._report_gradients, round, start, total)
                rows = self.gradient_rows(model, clients[part], round, data, report)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._shrink(part.stop - part.start, error)
                continue
            yield torch.arange(start, part.stop), rows.cpu()
            start = part.stop

    def gradient_parts(self, clients: Tensor, data: FederatedData) -> Iterator[slice]:
        """Splits clients into groups whose gradients and examples fit into memory together."""
        sizes = data.num_examples[clients]
        for part in split_clients(sizes, self._examples_at_once(data)):
            for start in range(part.start, part.stop, self.rows_that_fit):
                yield slice(start, min(start + self.rows_that_fit, part.stop))

    def _report_gradients(self, round: int, before: int, total: int, ended: int) -> None:
        self.report(Activity("gradients of", round, before + ended, total))

    def gradient_rows(
        self, model: Tensor, clients: Tensor, round: int, data: FederatedData, report: Ended = lambda count: None
    ) -> Tensor:
        """Computes the gradients `[n, d]` of a few clients at once; 0 for a client without data.

        Args:
            report: Called with the number of finished clients, not counting those without data.
        """
        device, dtype = self.device, self.plan.dtype
        held = (data.num_examples[clients] > 0).nonzero().flatten()
        rows = torch.zeros(len(clients), self.layout.num_columns, dtype=dtype, device=device)
        if not len(held):
            return rows
        own, through = clients[held], 0
        inputs, labels = self.examples(data).batch(data.train.select(own).entries, dtype, device)
        work = replace(self.describer.gradients(own, round, data), inputs=inputs, labels=labels)

        def ended(count: int) -> None:
            nonlocal through
            through = count
            report(count)

        with (
            note_client(round, lambda: own[through:].tolist(), self.way.is_collective),
            explain_missing_gradients(round),
        ):
            found = self.way.gradients(model.to(device, dtype), work, ended)
        return found if len(held) == len(clients) else rows.index_copy_(0, send(held, device), found)

    def statistics(
        self, function: ClientFunction, clients: Tensor, model: Tensor | None, round: int, data: FederatedData
    ) -> list[Statistic | None]:
        """Runs a function on each client's training examples, as `LocalWork.map` describes."""
        module = () if model is None else (self.module(model).eval(),)
        examples, found = self.examples(data), list[Statistic | None]()
        self.between_clients()
        for client in clients.tolist():
            entries = data.train[client]
            if not len(entries):
                found.append(None)
            else:
                batch = examples.batch(entries, self.plan.dtype, self.device)
                with (
                    note_on_error(partial(_in_map, round, client)),
                    self.own_stream("map", round, client),
                    torch.no_grad(),
                ):
                    answer = function(*batch, *module)
                found.append(keep_statistic(answer, client))
            self.report_statistics(round, len(found), len(clients))
            self.between_clients()
        return found

    def report_statistics(self, round: int, done: int, total: int) -> None:
        """Reports for how many clients the statistics have been computed."""
        self.report(Activity("statistics of", round, done, total))

    def require_variance(self, clients: Tensor, budget: Budget, lengths: Tensor, data: FederatedData) -> None:
        """Raises InputError if BatchNorm cannot train because a client has a mini-batch of one example.

        Args:
            lengths: The budget's length for each client, int64 `[n]`.
        """
        if self._refuses_single(data):
            sizes, last = data.num_examples[clients], self.local.last_batch
            steps = self.describer.steps(budget, lengths, sizes)
            require_no_single_batch(clients, steps, sizes, self.describer.batch_size(budget), last)

    def _refuses_single(self, data: FederatedData) -> bool:
        if self._single is None:
            with self.own_stream("single example"):
                self._single = rejects_single_example(self.template, data.examples)
        return self._single

    def fit(self, request: FitRequest, round: int, data: FederatedData) -> Fitted:
        """Trains the clients in chunks whose models take at most `plan.rows_mib`, one chunk if possible."""
        self.require_variance(request.clients, request.budget, request.lengths, data)
        chunks = self._chunks(request, round, data)
        return Fitted(chunks, data.num_examples[request.clients], held=len(request.clients) <= self._chunk_size)

    @property
    def _chunk_size(self) -> int:
        """Number of clients in a chunk: `rows_that_fit`, on a GPU rounded to a multiple of the lanes."""
        if self.plan.device == "cpu":
            return self.rows_that_fit
        return max(1, self.rows_that_fit // self.plan.lanes) * self.plan.lanes

    @property
    def rows_that_fit(self) -> int:
        """Number of rows that fit into `plan.rows_mib`, at least one."""
        return max(1, int(self.plan.rows_mib / self._row_mib))

    @property
    def _row_mib(self) -> float:
        return self.layout.num_columns * self.plan.dtype.itemsize / 2**20

    def _chunks(self, request: FitRequest, round: int, data: FederatedData) -> Iterator[Chunk]:
        start, total = 0, len(request.clients)
        while start < total:
            size = self._chunk_size
            parts = [slice(first, min(first + size, total)) for first in range(start, total, size)]
            try:
                for chunk in self.fit_chunks(request, parts, round, data):
                    yield chunk
                    start = chunk.start + len(chunk.losses)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._shrink(min(size, total - start), error)

    def fit_chunks(
        self, request: FitRequest, chunks: Sequence[slice], round: int, data: FederatedData
    ) -> Iterator[Chunk]:
        """Trains a fit's clients, and yields results chunk by chunk; on a GPU, prepares the next part meanwhile."""
        away = self.device != "cpu" and self.examples(data).inputs.device.type == "cpu"
        parts = [list(self._split_training(request, chunk, data)) for chunk in chunks]
        describe = partial(self._describe, request, round, data, away)
        works = (map if self.device == "cpu" else prepare_ahead)(describe, chain.from_iterable(parts))
        for chunk, own in zip(chunks, parts, strict=True):
            yield self._fit_chunk(request, chunk, own, islice(works, len(own)), round, data)

    def _split_training(self, request: FitRequest, chunk: slice, data: FederatedData) -> Iterator[Tensor]:
        """Splits a chunk's training clients into parts that fit into memory; yields each part's positions."""
        sizes, lengths = data.num_examples[request.clients[chunk]], request.lengths[chunk]
        training = ((sizes > 0) & (lengths > 0)).nonzero().flatten()
        held = sizes if data.examples.augment is None else self.describer.count_seen(request.budget, lengths, sizes)
        for part in split_clients(held[training], self._examples_at_once(data)):
            yield training[part] + chunk.start

    def _examples_at_once(self, data: FederatedData) -> float:
        """Returns the maximum number of examples gathered at once; a single client may have more."""
        each = self.plan.dtype.itemsize * max(1, torch.Size(data.examples.input_shape).numel())
        return float(_PART_MIB[torch.device(self.device).type] * 2**20 // each)

    def _describe(
        self, request: FitRequest, round: int, data: FederatedData, gathers: bool, positions: Tensor
    ) -> Prepared:
        """Prepares the training of the clients at these positions; runs in a thread if a GPU trains.

        Args:
            gathers: True to also gather the examples, which are on the CPU while a GPU trains.
        """
        work = self.describer.fit(request, positions, round, data)
        if not gathers:
            return positions, work, None
        entries = data.train.select(work.clients).entries
        inputs, labels = self.examples(data).batch(entries, self.plan.compute_dtype)
        return positions, work, (inputs.pin_memory(), labels.pin_memory())

    def _on_device(self, work: CohortFit, gathered: Batch | None, data: FederatedData) -> CohortFit:
        """Adds the examples to a fit, and moves its models and centres to the device."""
        device, dtype, decode = self.device, self.plan.dtype, None
        if gathered is None:
            entries, compute = data.train.select(work.clients).entries, self.plan.compute_dtype
            examples = self.examples(data)
            as_bytes = self.way.reads_bytes and device == "cpu" and examples.augment is None
            if as_bytes and (gathered := examples.stored_bytes(entries, compute)):
                decode = examples.decoding(compute)
            gathered = gathered or examples.batch(entries, compute, device)
        inputs, labels = (send(part, device) for part in gathered)
        models, start = move_rows(device, dtype, work.models, work.start)
        batches = work.batches.on(device)
        weights = None if work.weights is None else send(work.weights.to(dtype), device)
        work = replace(work, inputs=inputs, labels=labels, decode=decode, weights=weights, batches=batches)
        work = replace(work, models=models, start=start)
        if data.examples.augment is not None:
            work = augment_examples(work, data.examples.augment)
        if not work.prox:
            return work
        if work.centers is None:
            raise TypeError("prox needs centers")
        centers, center = move_rows(device, dtype, work.centers, work.center)
        return replace(work, centers=centers, center=center)

    def _fit_chunk(
        self,
        request: FitRequest,
        chunk: slice,
        parts: Sequence[Tensor],
        works: Iterable[Prepared],
        round: int,
        data: FederatedData,
    ) -> Chunk:
        """Trains the clients of a chunk, part by part, so that each part fits into memory."""
        losses = torch.full((chunk.stop - chunk.start,), float("nan"), dtype=torch.float64)
        trained, models, before = torch.zeros(len(losses), dtype=torch.bool), None, chunk.start
        self.report_fit(request, round, before)
        for positions, described, gathered in works:
            work = self._on_device(described, gathered, data)
            rows, found = self._train(work, request, round, before)
            finite = _finite(rows) & (found.isfinite() | (found.isnan() & (not self.way.reports_every_loss)))
            if not finite.all():
                if self.local.on_divergence == "stop":
                    first = int((~finite).nonzero()[0])
                    raise self._explain_divergence(work, first, float(found[first]), round, data)
                diverged = send((~finite).nonzero().flatten(), rows.device)
                rows[diverged] = work.models[send(work.start, rows.device)[diverged]]
            own, before = positions - chunk.start, before + len(positions)
            if len(own) == len(losses):
                models = rows
            else:
                if models is None:
                    everyone = sum(map(len, parts)) == len(losses)
                    models = rows.new_empty(len(losses), rows.shape[1]) if everyone else self._starts_of(request, chunk)
                span = slice(int(own[0]), int(own[-1]) + 1)
                if span.stop - span.start == len(own):  # twice as fast as index_copy_
                    models[span] = rows
                else:
                    models.index_copy_(0, send(own, models.device), rows)
            losses[own], trained[own] = found.where(finite, float("nan")), finite
        models = self._starts_of(request, chunk) if models is None else models
        return Chunk(chunk.start, models, losses, trained)

    def _explain_divergence(
        self, work: CohortFit, position: int, loss: float, round: int, data: FederatedData
    ) -> DivergedError:
        client = int(work.clients[position])
        mine, start = data.train[client], work.models[work.start[position]]
        before = self.losses_of_all(start[None].cpu(), mine, data)[0]
        rate = work.rates[0] if work.rates else find_learning_rate(self.template)
        return explain_divergence(client, round, loss, rate, mine % len(data.examples), before)

    def _starts_of(self, request: FitRequest, chunk: slice) -> Tensor:
        """Returns the start models `[c, d]` of a chunk's clients, on the device."""
        starts, which = move_rows(self.device, self.plan.dtype, request.models, request.start[chunk])
        return starts.index_select(0, send(which, starts.device))

    def _train(self, work: CohortFit, request: FitRequest, round: int, before: int) -> tuple[Tensor, Tensor]:
        """Trains the clients of one part; the run may be interrupted after any client. Errors name the client."""
        through = 0

        def ended(count: int) -> None:
            nonlocal through
            through = count
            self.report_fit(request, round, before, count)
            self.between_clients()

        self.between_clients()
        with note_client(round, lambda: work.clients[through:].tolist(), self.way.is_collective):
            try:
                return self.way.fit(work, ended)
            except InputError:
                raise
            except ValueError as error:
                client = int(work.clients[through])
                raise InputError(f"client {client} cannot be trained in round {round + 1}: {error}") from error

    def report_fit(self, request: FitRequest, round: int, before: int, ended: int = 0) -> None:
        """Reports how many clients of a fit have been trained.

        Args:
            before: Number of clients in the finished parts.
            ended: Number of finished clients in the current part.
        """
        if request.purpose != CHECK:  # a check trains one client for one step, and reports by itself
            self.report(fit_activity(request.purpose, round, before + ended, len(request.clients), request.counted))

    def _shrink(self, clients: int, error: Exception) -> None:
        """Reduces memory use after memory ran out: moves the examples to the CPU, or else halves chunks and lanes."""
        if self.release_examples():
            return
        lanes = max(1, self.plan.lanes // 2)
        rows_mib = max(1, min(self.plan.rows_mib, int(clients // 2 * self._row_mib)))
        plan = replace(self.plan, rows_mib=rows_mib, lanes=lanes)
        if self.plan == plan or (self.plan.lanes, clients) == (1, 1):
            other = "" if self.plan.device == "cpu" else ", or use --device cpu"
            raise InputError(
                f"the device has too little memory for one client ({error}); choose a smaller net or batch_size{other}"
            ) from error
        self.switch_plan(plan)
        if not self._was_short:
            notice = (
                f"out of memory: reduced to {rows_mib} MiB of local models at once, and to "
                f"{count_noun(lanes, 'client')} trained together"
            )
            warnings.warn(f"{notice}; config.yaml records any further reduction", Notice, 2)
        self._was_short = True

    def switch_plan(self, plan: Plan) -> None:
        """Switches to a plan that differs only in its lanes or chunks."""
        self.plan, self._way = plan, None
        self.__dict__.pop("_scorer", None)

    def close(self) -> None:
        """Releases resources other than memory; a second call does nothing."""


def _finite(rows: Tensor) -> Tensor:
    """Returns which rows `[n, d]` contain only finite numbers, bool `[n]`.

    A sum is ten times faster than a test of each number.
    """
    finite = rows.sum(1).isfinite().cpu()
    return finite if finite.all() else rows.isfinite().all(1).cpu()


def _in_map(round: int, client: int) -> str:
    return f"in round {round + 1}, by the function of work.map on client {client}"
