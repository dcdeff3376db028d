"""An experiment: data, task, algorithm and run options. Builds the engine and iterates over rounds."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from lit_cfl.activity import Activity, Report, ignore_activity
from lit_cfl.algorithms.base import Algorithm
from lit_cfl.algorithms.mean_hooks import plain_kind
from lit_cfl.algorithms.personal_layers import with_personal_layers
from lit_cfl.algorithms.server_optimizer import with_server
from lit_cfl.algorithms.shared_layers import with_shared_layers
from lit_cfl.data import Examples, FederatedData
from lit_cfl.data.partition_file import partition_hash
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.datamodules.partition.base import explain_empty_share
from lit_cfl.devices import count_gpus
from lit_cfl.early_stopping import StopRule
from lit_cfl.engines.check_module import mark_tokens
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import Workload, build_engine, choose_plan, room_of_ray, warn_of_slowness
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.fingerprint import CONSTANTS, digest_of_constants, digest_of_layers, digest_of_optimizers
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import REFERENCE, EngineOption, Plan, PlanOptions, Precision, set_up_torch
from lit_cfl.engines.task_protocol import TaskFactory, require_mixing
from lit_cfl.errors import InputError, name_clients, note_on_error
from lit_cfl.evaluation import Evaluation, EvaluationPlan, evaluate
from lit_cfl.local_work import per_client
from lit_cfl.metric_names import RATE, Row
from lit_cfl.notebook import short_repr
from lit_cfl.options import FROM_0, FROM_1, PART, bounded, require_options
from lit_cfl.pictures.options import Pictures
from lit_cfl.rounds import Cohorts, Round, SelectionRule, note_late_clustering, rounds
from lit_cfl.run_totals import RunTotals, costs_row, traffic_row
from lit_cfl.storage.given_paths import require_folder_name
from lit_cfl.tracking.options import Tracking

__all__ = [
    "CheckpointPlan",
    "EvaluationPlan",
    "Experiment",
    "LocalTraining",
    "Pictures",
    "PlanOptions",
    "StopRule",
    "Tracking",
]


@dataclass(frozen=True)
class CheckpointPlan:
    """How often a run saves checkpoints.

    Args:
        every_seconds: Minimum time between two saves, 0 or more; the end of the run is always saved.
    """

    every_seconds: float = bounded(30.0, FROM_0)

    def __post_init__(self) -> None:
        require_options(self, "checkpoint.")


@dataclass(frozen=True)
class Experiment:
    """An algorithm on clients, with all options of a run.

    Iterating runs it round by round under the first seed and writes nothing:

        for r in (experiment := Experiment(...)):
            print(r.number, r.info.loss, experiment.evaluate(r)["test/weighted_accuracy"])

    `lit_cfl.run(experiment, path)` makes a run directory instead, as `lit-cfl run` does.

    Args:
        data: Data module that divides a data set among clients.
        task: Function that builds the LightningModule that each client trains.
        algorithm: Algorithm to run.
        name: Name of the run and of its directory.
        seeds: Seeds, one run for each.
        rounds: Number of rounds T, 1 or more.
        cohort_size: Clients per round K.
        selection: `uniform`, or `round_robin_first`: every client once, in turn, then uniform.
        dropout: Probability that a selected client does not answer, 0 to below 1.
        selection_seed: Seed of the cohorts; None = derived from the run's seed (the papers' code: 2077).
        local: Local training of a client in a round.
        evaluation: Rounds and clients that are evaluated.
        stop: Early stopping; None = never.
        server: Optimizer of the server inside clusters, any `torch.optim` class with its options: its gradient is a
            cluster's model minus the mean of its clients' local models. None = use the mean.
        shared: Layers that all clusters share, such as [conv*], by name or kind: averaged over all clients of a round,
            while the others stay per cluster. None = none.
        personal: Layers that each client keeps, such as [bn*, fc2], by name or kind: trained, but neither sent nor
            averaged (FedBN, FedPer). None = none.
        baseline: Algorithm to run on the same clients, split, cohorts and initial weights, into RUN_DIR/baseline/.
        checkpoint: Time between two saves.
        engine: Way of local training; `auto` chooses by the rule of `lit_cfl.engines.choose_plan`.
        device: `auto`, `cpu`, `cuda` or `cuda:<i>`; with the engine `ray`, devices of the cluster, which this
            machine need not have.
        precision: Precision of `lightning.Trainer`, or `tf32`: float32, on a GPU with 10 bits per factor in products.
        deterministic: Use only operations that give the same bits in every run; needed on a GPU, not on a CPU.
        tracking: Trackers that receive the metrics.
        pictures: File formats of the pictures.
        plan: Parts of the plan that are set explicitly, or recorded by an earlier run; None = all by rule.
    """

    data: FederatedDataModule
    task: TaskFactory
    algorithm: Algorithm
    name: str = "run"
    seeds: list[int] = field(default_factory=lambda: [0])
    rounds: int = bounded(10, FROM_1)
    cohort_size: int = bounded(10, FROM_1)
    selection: SelectionRule = "uniform"
    dropout: float = bounded(0.0, PART)
    selection_seed: int | None = None
    local: LocalTraining = LocalTraining()
    evaluation: EvaluationPlan = EvaluationPlan()
    stop: StopRule | None = None
    server: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None
    shared: list[str] | None = None
    personal: list[str] | None = None
    baseline: Algorithm | None = None
    checkpoint: CheckpointPlan = CheckpointPlan()
    engine: EngineOption = "auto"
    device: str = "auto"
    precision: Precision = "32-true"
    deterministic: bool = False
    tracking: Tracking = Tracking()
    pictures: Pictures = Pictures()
    plan: PlanOptions | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_options(self)
        for name, value in vars(self).items():
            if isinstance(value, np.generic):  # such as a number of `np.arange`, which no file could hold
                object.__setattr__(self, name, value.item())
        seeds: list[Any] = list(self.seeds)
        whole = all(isinstance(seed, int | np.integer) and seed >= 0 for seed in seeds)
        if not whole or not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"seeds is {seeds}; give different whole numbers of 0 or more, such as [0, 1, 2]")
        object.__setattr__(self, "seeds", list(map(int, seeds)))
        require_folder_name(self.name, "name")
        if isinstance(self.task, nn.Module):
            made = type(self.task).__name__
            raise InputError(f"task is a {made}; give a function that makes a new one: task=lambda: {made}(...)")
        if self.server is not None and self.shared is not None:
            raise InputError(
                "server and shared are both given: server steps in each cluster would make shared layers differ; "
                "leave out one"
            )
        for name in ("algorithm", "baseline"):
            if (algorithm := getattr(self, name)) is not None:
                served = with_server(algorithm, self.server)
                sharing = served if self.shared is None else with_shared_layers(served, self.shared)
                object.__setattr__(self, name, with_personal_layers(sharing, self.personal))

    def __iter__(self) -> Iterator[Round]:
        prepared = self.prepare(self.seeds[0])
        vars(self)["_iterated"] = prepared  # for `evaluate`
        return prepared.rounds()

    def evaluate(self, r: Round) -> Row:
        """Evaluates a round of the latest iteration over this experiment, as `PreparedRun.evaluate` does."""
        if "_iterated" not in vars(self):
            raise InputError("this experiment runs no rounds; evaluate inside `for r in experiment: ...`")
        row: Row = vars(self)["_iterated"].evaluate(r)
        return row

    def prepare(self, seed: int, report: Report = ignore_activity, plan: Plan | None = None) -> "PreparedRun":
        """Loads the data and builds the engine for one seed.

        Args:
            report: Function that receives the current activity, here and later from the engine.
            plan: Plan that was chosen for the same task, data and options; None = choose it, which tries the task.

        Raises:
            InputError: the parts do not fit.
        """
        report(Activity("loading the data"))
        examples = self.data.examples
        report(Activity(f"dividing {len(examples):,} examples among clients"))
        data = mark_tokens(self.data.federated(seed), self.task)
        with name_clients(data.names):
            return self._prepare(seed, data, report, plan)

    def _prepare(self, seed: int, data: FederatedData, report: Report, plan: Plan | None) -> "PreparedRun":
        """Builds the engine for these data, and checks that the parts fit together."""
        report(Activity("checking that the clients can be trained"))
        _require_training_data(data)
        template = None
        if plan is None:
            work = self._workload(seed, data)
            plan = self.choose_own_plan(work)
            template = work.trial.module if work.trial else None
        set_up_torch(plan, self.deterministic)
        engine = build_engine(self.task, plan, seed, self.local, template)
        engine.report = report
        engine.rates(self.rounds - 1)  # refuses a schedule that has no rate for the last round
        cohorts = Cohorts(self.cohort_size, self.selection, self.dropout, self.selection_seed)
        cohorts.at(0, data.population, seed)  # refuses a cohort that cannot be drawn
        algorithms = [algorithm for algorithm in (self.algorithm, self.baseline) if algorithm is not None]
        self.evaluation.require_possible(algorithms, engine.scores, data)
        for algorithm in algorithms:
            if algorithm.mixes_models:
                require_mixing(engine.template, type(algorithm).__name__)
            algorithm.check(engine.at(0, data))
            note_late_clustering(algorithm, self.rounds)
        require_trainable(engine, data)
        if (tuned := self.evaluation.fine_tune) is not None:
            engine.require_variance(data.population, tuned, per_client(tuned.length, data.population), data)
        if self.stop is not None:
            metric = self.stop.metric_of(engine.scores)
            self.evaluation.require_reported(metric, engine.scores, "stop.metric")
            if metric.startswith("val/") and not data.validation.sizes.any():
                own = self.data.validation if self.data.partition_file is None else 0
                why = "set data.validation to 0.1"
                if own:
                    why = f"data.validation is {own}, {explain_empty_share(data.train.sizes)}"
                raise InputError(f"stop.metric is {metric!r}, but the data have no validation part; {why}")
        return PreparedRun(self, seed, data, engine, cohorts)

    def try_out(self, seed: int) -> tuple["PreparedRun", Plan]:
        """Prepares a run that other processes will execute, to check that it can start. Returns the run and its plan.

        A run for a GPU is prepared on the CPU, too, as this process would keep the context of the GPU, which takes
        several hundred MiB. It is prepared on the GPU only if the CPU refuses it, since a module may need a GPU.

        Raises:
            InputError: see `prepare`.
        """
        if not count_gpus():
            prepared = self.prepare(seed)
            return prepared, prepared.engine.plan
        try:
            prepared = self.on_cpu().prepare(seed)
        except InputError:
            prepared = self.prepare(seed)
        return prepared, self.choose_own_plan(self._workload(seed, prepared.data))

    def on_cpu(self) -> "Experiment":
        """Returns the same experiment for the CPU, in a precision that CPUs support."""
        engine: EngineOption = REFERENCE if self.engine == REFERENCE else "auto"
        precision: Precision = "32-true" if self.precision == "16-mixed" else self.precision  # 16-mixed needs a GPU
        return replace(self, engine=engine, device="cpu", precision=precision, plan=None)

    def _workload(self, seed: int, data: FederatedData) -> Workload:
        return Workload.of(self.task, seed, self.local, data, self.cohort_size)

    def choose_own_plan(self, work: Workload = Workload()) -> Plan:
        """Chooses the plan on this machine: explicit options are kept, and the rest follows from the workload."""
        room = room_of_ray(self.engine, self.device, self.plan)
        plan = choose_plan(self.engine, self.device, self.precision, work, self.plan, room)
        warn_of_slowness(self.engine, plan, work, self.rounds * work.cohort)
        return plan

    def with_options(self, **options: Any) -> "Experiment":
        """Returns the same experiment with some options changed.

        Args:
            options: New values; for a group of options, such as `plan`, a mapping of those that change.

        Raises:
            InputError: a mapping is given for an option that is not a group.
        """
        new, unset = dict(options), {"plan": PlanOptions(), "stop": StopRule()}
        for name, value in options.items():
            if isinstance(value, Mapping):
                group = getattr(self, name, None) or unset.get(name)
                if not is_dataclass(group):
                    raise InputError(
                        f"{name} is {value!r:.60}; give the option itself, since it is not a group of options"
                    )
                new[name] = replace(group, **value)  # type: ignore[type-var]  # an object, not a class
        return replace(self, **new)

    def for_baseline(self) -> "Experiment":
        """Returns the same experiment with the baseline as its algorithm."""
        if self.baseline is None:
            raise InputError("this experiment has no baseline; set its option baseline")
        return self.with_options(name=f"{self.name}-baseline", algorithm=self._baseline_options(), baseline=None)

    def _baseline_options(self) -> Any:
        """Returns the baseline in the form that `with_options` takes."""
        return self.baseline

    def for_seed(self, seed: int) -> "Experiment":
        """Returns the same experiment for one of its seeds."""
        return self.with_options(name=self.name if len(self.seeds) == 1 else f"{self.name}-seed-{seed}", seeds=[seed])

    def to_dict(self) -> dict[str, Any]:
        """Returns the options as plain values for `config.yaml`.

        Data and task are described by their classes only, and data by their shifts and augmentation, too.
        `PreparedRun.fingerprint` records more of both.
        """
        options = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        shift = [{"class_path": _path(type(one)), "init_args": _plain(one)} for one in self.data.shift]
        options["data"] |= {"shift": shift, "augment": _plain(self.data.augment)}
        return options | {"made_in_python": True}


def content_for_processes(experiment: Experiment) -> dict[str, Any]:
    """Returns the options from which another process can build an experiment.

    Raises:
        InputError: the experiment was made in Python.
    """
    content = experiment.to_dict()
    if content.get("made_in_python"):
        raise InputError(
            "this experiment was made in Python, so other processes cannot build its task and data; describe it in a "
            "YAML file (docs/experiment_file.md), or run it in this process: lit_cfl.run(experiment, path)"
        )
    return content


@dataclass(eq=False)
class PreparedRun:
    """An experiment with its data loaded and its engine built, for one seed.

    Args:
        experiment: The experiment.
        seed: Seed of the run.
        data: Data of all clients.
        engine: Engine that trains and scores them.
        cohorts: Cohort of each round.
        totals: Counts over the rounds that have run.
    """

    experiment: Experiment
    seed: int
    data: FederatedData
    engine: Engine
    cohorts: Cohorts
    totals: RunTotals = field(default_factory=RunTotals)

    __repr__ = short_repr

    def rounds(self, after: Round | None = None) -> Iterator[Round]:
        """Runs the rounds and yields each, from the start or after a given round."""
        completed = rounds(
            self.experiment.algorithm,
            self.engine,
            self.data,
            self.cohorts,
            seed=self.seed,
            num_rounds=self.experiment.rounds,
            shifts=self.experiment.data.shift,
            after=after,
        )
        self.totals = RunTotals() if after is None else self.totals
        del after  # otherwise the next round could not free its state
        with name_clients(self.data.names):
            yield from map(self._count, completed)  # `map` keeps no round, so that its state can be freed

    def _count(self, r: Round) -> Round:
        self.totals.count(r)
        self.totals.compare(r, self.experiment.algorithm, self.experiment.tracking.snapshots_every)
        return r

    def evaluate(self, r: Round) -> Row:
        """Evaluates the round that `rounds` has just yielded, once.

        Returns:
            its row of `metrics.csv` without times; unknown values are missing or nan. Churn and counts of skipped or
            shifted clients are those since the round evaluated before.
        """
        return self.row(r, self.score(r))

    def score(self, r: Round) -> Evaluation:
        """Scores the models of a round."""
        given = (self.experiment.algorithm, r.state, self.engine, r.data, self.experiment.evaluation)
        with note_on_error(lambda: f"in the evaluation of round {r.number}"):
            evaluation = evaluate(*given, round=r.index, before=self.totals.members)
        self.totals.take(r, evaluation, self.experiment.tracking.snapshots_every)
        return evaluation

    def row(self, r: Round, evaluation: Evaluation) -> Row:
        """Builds the row of a scored round, and starts new counts."""
        sent = self.experiment.algorithm.sent_columns(self.engine.layout)
        mib = sent * self.engine.plan.dtype.itemsize / 2**20
        row: Row = {"round": r.number, "train/loss": r.info.loss} | evaluation.metrics | r.info.scores
        rates = self.engine.rates(r.index)
        row |= {} if rates is None else {RATE: rates[0]}
        return row | traffic_row(r, mib) | costs_row(r) | self.totals.row(bool(self.experiment.data.shift))

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """SHA-256 digests of data, w_0, layers, tensors outside of rows, and the optimizer's classes and numbers."""
        digests = {"partition": partition_hash(self.data), "scale of the inputs": _digest_of_scale(self.data.examples)}
        initial = sha256(self.engine.initial(0).contiguous().numpy().data)
        constants = digest_of_constants(self.engine.template, self.engine.layout)
        with self.engine.own_stream("optimizer"):
            optimizer = digest_of_optimizers(self.engine.template)
        layers = digest_of_layers(self.engine.template)
        digests |= {"initial model": initial.hexdigest(), "net": layers, CONSTANTS: constants, "optimizer": optimizer}
        return digests

    def config(self) -> dict[str, Any]:
        """Returns the configuration with the plan, and with the data set's commit on the Hub if it has one."""
        commit = self.experiment.data.commit
        loaded = {} if commit is None else {"data_commit": commit}
        return self.experiment.to_dict() | loaded | {"plan": asdict(self.engine.plan)}


def _require_training_data(data: FederatedData) -> None:
    empty = data.population[data.num_examples[data.population] == 0]
    if len(empty):
        raise InputError(
            f"client {int(empty[0])} has no training data ({len(empty)} such clients in all); "
            "use fewer clients, or smaller test and validation shares"
        )


def _digest_of_scale(examples: Examples) -> str:
    parts = (torch.as_tensor(part, dtype=torch.float64) for part in (examples.scale, examples.offset))
    return sha256(b"".join(part.cpu().contiguous().numpy().tobytes() for part in parts)).hexdigest()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        content = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        # the class of an algorithm itself, not of its wrapper for the server's optimizer
        return (
            {"class_path": _path(plain_kind(value)), "init_args": content} if isinstance(value, Algorithm) else content
        )
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, partial):
        given = [*map(_plain, value.args), *(f"{name}={_plain(part)}" for name, part in value.keywords.items())]
        return {"class_path": _path(value), "made": f"{_path(value.func)}({', '.join(map(str, given))})"}
    return {"class_path": _path(value if isinstance(value, type) or callable(value) else type(value))}


def _path(of: Any) -> str:
    return f"{of.__module__}.{getattr(of, '__qualname__', type(of).__name__)}"
