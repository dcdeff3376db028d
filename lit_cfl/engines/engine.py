"""The engine: builds modules from a seed, trains clients part by part as the plan specifies, and evaluates models."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from math import nan

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.activity import Activity, Report, fit_activity, ignore_activity
from lit_cfl.data import Examples, FederatedData
from lit_cfl.devices import fits_on, is_out_of_memory, move_rows, prepare_ahead, send
from lit_cfl.engines.check_module import rejects_single_example, require_module, require_no_single_batch
from lit_cfl.engines.cohort import (
    CHECK,
    CohortFit,
    Ended,
    FitDescriber,
    FitRequest,
    TrainingWay,
    augment_examples,
    split_clients,
)
from lit_cfl.engines.dropout import key_names
from lit_cfl.engines.lr_schedule import RoundRates, find_learning_rate
from lit_cfl.engines.mini_batches import LocalTraining, Rates
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.round_work import RoundWork
from lit_cfl.engines.scorer import EVALUATION_BATCH, ModelName, Outcomes, Scorer
from lit_cfl.engines.task_protocol import TaskFactory, build_module, users_errors
from lit_cfl.engines.ways import get_way
from lit_cfl.errors import DivergedError, InputError, Notice, count_noun, join_ids, note_on_error
from lit_cfl.local_work import Budget, Chunk, ClientFunction, Fitted, Statistic, keep_statistic
from lit_cfl.parameters import ParameterLayout
from lit_cfl.scores import Scores, scores_of
from lit_cfl.seeds import derive, seed_global_generators, seed_globally

# Maximum MiB of examples that a way gets at once. On a CPU, `keep_freed_memory` lets the C library reuse such blocks.
_PART_MIB = {"cpu": 64, "cuda": 1024}


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
        self._way: TrainingWay | None = None  # built when it is first needed, as its scorer
        self._scorer: Scorer | None = None
        self._resident: tuple[Examples, Examples] | None = None
        self._single: bool | None = None  # True if the net cannot train on one example; None = unknown
        self._was_short = False  # True once memory ran out
        self._noted_equal = False  # True once equal initial models have been noted
        self.noted_not_finite = False  # True once an evaluation warned of a non-finite loss

    def rates(self, round: int) -> Rates | None:
        """Returns the learning rates of a round, one per parameter group; None without a schedule.

        Raises:
            InputError: the schedule cannot be made, or has no rates for this round.
        """
        return None if self._round_rates is None else self._round_rates.at(round)

    @cached_property
    def _round_rates(self) -> RoundRates | None:
        schedule = self.local.lr_schedule
        return None if schedule is None else RoundRates(schedule, self.template)

    @property
    def device(self) -> str:
        """The device on which this process computes."""
        return self.plan.device

    def at(self, round: int, data: FederatedData) -> RoundWork:
        """Returns the `LocalWork` of this round."""
        return RoundWork(self, round, data)

    def initial(self, number: int) -> Tensor:
        """Builds the run's initial model `[d]` with this number; number 0 is the template's model.

        Raises:
            InputError: see `build`.
        """
        first = self.layout.read(self.template, self.plan.dtype)
        if not number:
            return first
        row, trained = self.layout.read(self.build(number), self.plan.dtype), slice(self.layout.num_parameters)
        if not self._noted_equal and torch.equal(row[trained], first[trained]):
            self._noted_equal = True
            warnings.warn(
                f"the initial models 0 and {number} are equal, though each has a separate seed: the module sets a "
                "seed itself, or starts from constants or from a file. Clients that choose a model by their loss then "
                "all choose the first; draw the initial weights at random",
                Notice,
                stacklevel=2,
            )
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
        with self._evaluating() as scorer:
            return scorer.losses_of_all(models, index, self.examples(data))

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
        with self._evaluating() as scorer:
            return scorer.score_each(models, which, index, self.examples(data), named)

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
        with self._evaluating() as scorer:
            return scorer.score_mixtures(models, weights, which, index, self.examples(data))

    def own_stream(self, purpose: str, *ids: int) -> AbstractContextManager[None]:
        """Seeds the global random generators within the block, and restores them afterwards."""
        return seed_globally(derive(self.seed, purpose, *ids), self.device)

    @contextmanager
    def _evaluating(self) -> Iterator[Scorer]:
        """Yields the scorer. Models that draw random numbers draw the same ones each time.

        Raises:
            InputError: memory runs out.
        """
        if self._scorer is None:
            self._scorer = self.way.scorer(lambda first: seed_global_generators(derive(self.seed, "evaluation", first)))
        with self.own_stream("evaluation"):
            try:
                yield self._scorer
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise InputError(
                    f"the device has too little memory to score {EVALUATION_BATCH:,} examples at once ({error}); "
                    "choose a smaller net, or use --device cpu"
                ) from error

    def gradients(self, model: Tensor, clients: Tensor, round: int, data: FederatedData) -> Iterator[Tensor]:
        """Yields the gradients `[m, d]` of clients' mean training losses, on the CPU, for one part after another.

        If memory runs out, it continues with fewer clients at once.
        """
        start, total = 0, len(clients)

        def report(before: int, ended: int) -> None:
            self.report(Activity("gradients of", round, before + ended, total))

        while start < total:
            own = clients[start : start + next(self._split(data.num_examples[clients[start:]], data)).stop]
            try:
                rows = self.gradient_rows(model, own, round, data, partial(report, start))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._shrink(len(own), error)
                continue
            yield rows.cpu()
            start += len(own)

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
        own = clients[held]
        inputs, labels = self.examples(data).batch(data.train.select(own).entries, dtype, device)
        work = replace(self.describer.gradients(own, round, data), inputs=inputs, labels=labels)
        now = _Now(own, self.way.is_collective, report)
        with (
            note_on_error(partial(now.describe, round)),
            users_errors(f"no gradient can be computed in round {round + 1}: ", _without_trainer),
        ):
            found = self.way.gradients(model.to(device, dtype), work, now.ended)
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
                described = partial("in round {}, by the function of work.map on client {}".format, round + 1, client)
                with note_on_error(described), self.own_stream("map", round, client), torch.no_grad():
                    answer = function(*batch, *module)
                found.append(keep_statistic(answer, client))
            self.report(Activity("statistics of", round, len(found), len(clients)))
            self.between_clients()
        return found

    def require_variance(self, clients: Tensor, budget: Budget, lengths: Tensor, data: FederatedData) -> None:
        """Raises InputError if BatchNorm cannot train because a client has a mini-batch of one example.

        Args:
            lengths: The budget's length for each client, int64 `[n]`.
        """
        if self._single is None:
            with self.own_stream("single example"):
                self._single = rejects_single_example(self.template, data.examples)
        if self._single:
            sizes, last = data.num_examples[clients], self.local.last_batch
            steps = self.local.count_steps(budget, lengths, sizes)
            require_no_single_batch(clients, steps, sizes, self.local.batch_size_of(budget), last)

    def fit(self, request: FitRequest, round: int, data: FederatedData) -> Fitted:
        """Trains the clients part by part; holds all rows if they take at most `plan.rows_mib`."""
        self.require_variance(request.clients, request.budget, request.lengths, data)
        chunks = self._chunks(request, round, data)
        return Fitted(chunks, data.num_examples[request.clients], held=len(request.clients) <= self._clients_that_fit)

    @property
    def _clients_that_fit(self) -> int:
        """Maximum number of clients in a part: `rows_that_fit`, on a GPU rounded to a multiple of the lanes."""
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
            parts = self.parts_of(request, start, data)
            try:
                for chunk in self.fit_parts(request, parts, round, data):
                    yield chunk
                    start = chunk.start + len(chunk.losses)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._shrink(next(part.stop - start for part in parts if part.start == start), error)

    def parts_of(self, request: FitRequest, start: int, data: FederatedData) -> list[slice]:
        """Divides the clients of a fit, from `start` on, into parts that fit into memory."""
        sizes, lengths = data.num_examples[request.clients[start:]], request.lengths[start:]
        if data.examples.augment is not None:
            sizes = self.local.count_examples(request.budget, lengths, sizes)
        parts = self._split(sizes.where(lengths > 0, 0), data)
        return [slice(start + part.start, start + part.stop) for part in parts]

    def _split(self, sizes: Tensor, data: FederatedData) -> Iterator[slice]:
        """Splits clients with these numbers of examples `[n]` into parts that fit into the memory of all workers."""
        each = self.plan.dtype.itemsize * max(1, torch.Size(data.examples.input_shape).numel())
        most = _PART_MIB[torch.device(self.device).type] * 2**20 // each * max(1, self.plan.workers)
        return split_clients(sizes, most, self._clients_that_fit)

    def fit_parts(
        self, request: FitRequest, parts: Sequence[slice], round: int, data: FederatedData
    ) -> Iterator[Chunk]:
        """Trains clients, and yields results part by part; on a GPU, prepares the next part meanwhile."""
        gathers = self.device != "cpu" and self.examples(data).inputs.device.type == "cpu"
        prepare = partial(self._prepare, request, round, data, gathers)
        works = (map if self.device == "cpu" else prepare_ahead)(prepare, parts)
        for part, (own, work) in zip(parts, works, strict=True):
            yield self._fit_part(request, part, own, work, round, data)

    def _prepare(
        self, request: FitRequest, round: int, data: FederatedData, gathers: bool, part: slice
    ) -> tuple[Tensor, CohortFit]:
        """Describes the training of a part's clients; runs in a thread if a GPU trains.

        Args:
            gathers: True to also gather the examples, which are on the CPU while a GPU trains.

        Returns:
            positions in the part of the clients that train, and their fit.
        """
        request = request.part(part)
        own = ((data.num_examples[request.clients] > 0) & (request.lengths > 0)).nonzero().flatten()
        work = self.describer.fit(request if len(own) == len(request.clients) else request.part(own), round, data)
        if not gathers:
            return own, work
        work = self._gather(work, data, "cpu")
        return own, replace(work, inputs=work.inputs.pin_memory(), labels=work.labels.pin_memory())

    def _gather(self, work: CohortFit, data: FederatedData, device: str) -> CohortFit:
        """Adds the clients' examples to a fit, as bytes if the way reads them."""
        entries, dtype = data.train.select(work.clients).entries, self.plan.compute_dtype
        examples = self.examples(data)
        as_bytes = self.device == "cpu" and self.way.reads_bytes and examples.augment is None
        stored = examples.stored_bytes(entries, dtype) if as_bytes else None
        inputs, labels = stored or examples.batch(entries, dtype, device)
        return replace(work, inputs=inputs, labels=labels, decode=examples.decoding(dtype) if stored else None)

    def _on_device(self, work: CohortFit, data: FederatedData) -> CohortFit:
        """Moves a fit to the device, with its examples, models and centres."""
        device, dtype = self.device, self.plan.dtype
        work = work if len(work.labels) else self._gather(work, data, device)
        models, start = move_rows(device, dtype, work.models, work.start)
        centers, center = work.centers, work.center
        if centers is not None:
            centers, center = move_rows(device, dtype, centers, center)
        work = replace(
            work,
            models=models,
            start=start,
            centers=centers,
            center=center,
            inputs=send(work.inputs, device),
            labels=send(work.labels, device),
            weights=None if work.weights is None else send(work.weights.to(dtype), device),
            batches=work.batches.on(device),
        )
        return work if data.examples.augment is None else augment_examples(work, data.examples.augment)

    def _fit_part(
        self, request: FitRequest, part: slice, own: Tensor, work: CohortFit, round: int, data: FederatedData
    ) -> Chunk:
        """Trains the clients at the positions `own` of a part; the others, and those that diverge, keep their models.

        Raises:
            DivergedError: a client diverges, and the run shall stop.
        """
        self.report_fit(request, round, part.start)
        count = part.stop - part.start
        losses, trained = torch.full((count,), nan, dtype=torch.float64), torch.zeros(count, dtype=torch.bool)
        rows = None
        if len(own):
            work = self._on_device(work, data)
            rows, found = self._train(work, request, round, part.start)
            finite = _finite(rows) & (found.isfinite() | (found.isnan() & (not self.way.reports_every_loss)))
            if not finite.all():
                diverged = (~finite).nonzero().flatten()
                if self.local.on_divergence == "stop":
                    raise self._explain_divergence(work, int(diverged[0]), float(found[diverged[0]]), round, data)
                diverged = send(diverged, rows.device)
                rows[diverged] = work.models[send(work.start, rows.device)[diverged]]
            losses[own], trained[own] = found.where(finite, nan), finite
        if rows is None or len(own) < count:
            starts, which = move_rows(self.device, self.plan.dtype, request.models, request.start[part])
            everyone = starts.index_select(0, send(which, starts.device))
            rows = everyone if rows is None else everyone.index_copy_(0, send(own, everyone.device), rows)
        return Chunk(part.start, rows, losses, trained)

    def _explain_divergence(
        self, work: CohortFit, position: int, loss: float, round: int, data: FederatedData
    ) -> DivergedError:
        """Builds the error for a client that diverged, or whose losses were not finite before training.

        Args:
            position: Position of the client in the cohort.
            loss: Training loss of the client; NaN if none was reported.
        """
        client, start = int(work.clients[position]), work.models[work.start[position]]
        mine = data.train[client]
        before = self.losses_of_all(start[None].cpu(), mine, data)[0]
        wrong = (~before.isfinite()).nonzero().flatten().tolist()
        if wrong:
            reason = (
                f" before it trained: the loss of its example {int(mine[wrong[0]]) % len(data.examples)} is "
                f"{float(before[wrong[0]])} ({len(wrong)} of its {len(mine)} examples have such a loss), and no "
                "learning rate helps; look for 0/0, log(0) or overflow in the net on that input"
            )
        else:
            rate = work.rates[0] if work.rates else find_learning_rate(self.template)
            reason = (
                f": training loss {loss}, learning rate {rate:g}; lower the learning rate, set local.gradient_clip, "
                "look in training_step for 0/0, log(0) or a mini-batch whose examples are all left out (ignore_index)"
            )
        return DivergedError(
            f"client {client} diverged in round {round + 1}{reason}, or set local.on_divergence to skip"
        )

    def _train(self, work: CohortFit, request: FitRequest, round: int, before: int) -> tuple[Tensor, Tensor]:
        """Trains the clients of one part; the run may be interrupted after any client. Errors name the client."""

        def report(count: int) -> None:
            self.report_fit(request, round, before, count)
            self.between_clients()

        now = _Now(work.clients, self.way.is_collective, report)
        self.between_clients()
        with note_on_error(partial(now.describe, round)):
            try:
                return self.way.fit(work, now.ended)
            except InputError:
                raise
            except ValueError as error:
                raise InputError(f"{now.client} cannot be trained in round {round + 1}: {error}") from error

    def report_fit(self, request: FitRequest, round: int, before: int, ended: int = 0) -> None:
        """Reports how many clients of a fit have been trained.

        Args:
            before: Number of clients in the finished parts.
            ended: Number of finished clients in the current part.
        """
        if request.purpose != CHECK:  # a check trains one client for one step, and reports by itself
            self.report(fit_activity(request.purpose, round, before + ended, len(request.clients), request.counted))

    def _shrink(self, clients: int, error: Exception) -> None:
        """Halves parts and lanes after memory ran out with this many clients in a part."""
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
        """Switches to a plan that differs only in its lanes or parts."""
        self.plan, self._way, self._scorer = plan, None, None

    def close(self) -> None:
        """Releases resources other than memory; a second call does nothing."""


def _finite(rows: Tensor) -> Tensor:
    """Returns which rows `[n, d]` contain only finite numbers, bool `[n]`.

    A sum is ten times faster than a test of each number.
    """
    finite = rows.sum(1).isfinite().cpu()
    return finite if finite.all() else rows.isfinite().all(1).cpu()


class _Now:
    """The clients that train now: reports those that have finished, and names those of which one raised an error.

    Args:
        clients: Ids, int64 `[n]`.
        together: True if several train at once, in an order of their own.
        report: Called with the number of finished clients.
    """

    def __init__(self, clients: Tensor, together: bool, report: Ended) -> None:
        self._clients, self._together, self._report = clients, together, report
        self._through = 0

    def ended(self, count: int) -> None:
        self._through = count
        self._report(count)

    @property
    def client(self) -> str:
        if self._together:  # it is unknown which of them have finished
            return f"one of the clients {join_ids(self._clients.tolist())}"
        return f"client {int(self._clients[self._through])}"

    def describe(self, round: int) -> str:
        ended = self._through == len(self._clients)
        return f"in round {round + 1}" if ended else f"in round {round + 1}, while {self.client} was trained"


def _without_trainer(error: Exception) -> str:
    return (
        "; `losses` is called without a Trainer here, so it must not read what only a fit sets; change it, or choose "
        "an option that needs no gradients (StoCFL: psi: update)"
    )
