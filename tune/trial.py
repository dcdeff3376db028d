"""One trial: a whole run in a directory of its own, which tells Ray Tune of each round."""

import fcntl
import shutil
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from ray import tune as ray_tune

from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.local.plan import PlanOptions
from lit_cfl.resume import finished_summary
from lit_cfl.run import Finished, Watch, run
from tune.candidate import build
from tune.objective import TRAFFIC, Objective, mean_over_seeds
from tune.replay import Stages, copied, with_stages
from tune.spaces import Space

ROUNDS = "rounds"  # what schedulers count: rounds that were run
FINISHED = "finished"  # whether the trial ran to its own end
ERROR = "error"  # why it did not
SECONDS = "seconds"
_WAIT_SECONDS, _POLL_SECONDS = 60.0, 0.2
_REPORTED = ("val/", "train/", "clusters/", "traffic/")  # test figures never reach the search


@dataclass(frozen=True)
class Job:
    """What all trials of a study share.

    Args:
        base: the experiment.
        space: what is searched.
        seeds: of every trial.
        objective: what is reported.
        folder: of the trials' directories.
        threads: PyTorch's, in each trial, unless the base says otherwise.
        evolves: whether values change in the middle of a trial (PBT).
        pauses: whether the scheduler pauses trials; they then save every round, or a pause would lose many.
    """

    base: Mapping[str, Any]
    space: Space
    seeds: Sequence[int]
    objective: Objective
    folder: Path
    threads: int = 1
    evolves: bool = False
    pauses: bool = False

    def experiment(self, values: Mapping[str, Any]) -> Experiment:
        """The experiment at one point of the space."""
        experiment = build(self.base, self.space.words(values))
        return self.of_trial(experiment)

    def of_trial(self, experiment: Experiment) -> Experiment:
        """An experiment under the seeds and the threads of a trial."""
        plan = experiment.plan or PlanOptions()
        checkpoint = replace(experiment.checkpoint, every_seconds=0.0) if self.pauses else experiment.checkpoint
        plan = replace(plan, threads=plan.threads or self.threads)
        config = dict(experiment.described()) | {"seeds": list(self.seeds), "plan": vars(plan)}
        config["checkpoint"] = vars(checkpoint)
        return replace(experiment, seeds=list(self.seeds), plan=plan, checkpoint=checkpoint, config=config)

    def values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What of Ray's configuration is a value of ours: what does not matter for the algorithm is left out."""
        name = config.get("algorithm", "")
        own = {p.key for p in self.space.of(name)}
        return {key: value for key, value in config.items() if key in own or key == "algorithm"}


def run_trial(config: dict[str, Any], job: Job) -> None:
    """The trainable. An exception ends this trial alone: it is reported as the worst value there is."""
    path = job.folder / ray_tune.get_context().get_trial_id()
    report = Report(job, path)
    try:
        values = job.values(config)
        experiment = _evolving(job, path, values) if job.evolves else job.experiment(values)
        report.end(_run(experiment, path, report))
    except Exception as error:  # whatever a user's net or data raise: the other trials go on
        report.failed(error)


def _run(experiment: Experiment, path: Path, report: "Report") -> Finished:
    report.begin(experiment)
    _wait_until_free(path)
    return run(experiment, path, Watch(started=report.started, row=report.row), going="resume")


def _wait_until_free(path: Path) -> None:
    """The process that ran this trial before may still be about to end."""
    deadline = monotonic() + _WAIT_SECONDS
    while monotonic() < deadline and (path / ".lock").exists():
        with (path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sleep(_POLL_SECONDS)
            else:
                return


def _evolving(job: Job, path: Path, values: Mapping[str, Any]) -> Experiment:
    """Goes on from what Ray hands over, which may be another trial's, with values that may have changed."""
    checkpoint = ray_tune.get_checkpoint()
    stages: Stages = [(0, dict(values))]
    if path.exists():
        shutil.rmtree(path)
    if checkpoint is not None:
        with checkpoint.as_directory() as source:
            stages = copied(Path(source), path, values)
    experiments = [(first, job.experiment(own)) for first, own in stages]
    return with_stages(path, stages, experiments)


@dataclass
class Report:
    """Tells Ray Tune how a trial goes.

    The rounds of the first seed are reported one by one, so that a scheduler can stop a bad trial before its other
    seeds cost anything; the last report is of all seeds.
    """

    job: Job
    path: Path
    _first_seed: bool = True
    _rounds: int = 0
    _last: dict[str, Any] = field(default_factory=dict)

    def begin(self, experiment: Experiment) -> None:
        self._rounds = experiment.rounds
        several = len(self.job.seeds) > 1
        first = self.path / f"seed-{self.job.seeds[0]}" if several else self.path
        done = first.exists() and finished_summary(first, experiment.rounds) is not None
        self._seeds_begun = 1 if done else 0

    def started(self, title: str, first: int, rounds: int) -> None:
        self._seeds_begun += 1
        self._first_seed = self._seeds_begun == 1

    def row(self, row: Mapping[str, Any]) -> None:
        """A round is over."""
        if not self._first_seed or row["round"] + 1 >= self._rounds or row.get(self.job.objective.metric) is None:
            return
        self._last = _reported(row) | {ROUNDS: row["round"] + 1, SECONDS: row["time/elapsed_seconds"]}
        self._send(self._last | {FINISHED: False}, saved=self.job.pauses)

    def end(self, finished: Finished) -> None:
        """All seeds are over."""
        metric = self.job.objective.metric
        parts = [part.summary for part in finished.seeds or [finished]]
        mean = mean_over_seeds([part.get(metric) for part in parts])
        if mean is None:
            raise InputError(f"the metric {metric} was never reported: this algorithm and these data do not give it")
        each = {f"seed {part['seed']}": part[metric] for part in parts}
        whole = {
            metric: mean,
            TRAFFIC: mean_over_seeds([part[TRAFFIC] for part in parts]),
            ROUNDS: max(part["round"] for part in parts) + 1,
            SECONDS: sum(part["time/elapsed_seconds"] for part in parts),
        }
        self._send(_reported(parts[0]) | each | whole | {FINISHED: True})

    def failed(self, error: Exception) -> None:
        """The trial cannot go on."""
        text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "error.txt").write_text("".join(traceback.format_exception(error)))
        objective = self.job.objective
        self._send({ROUNDS: 0} | self._last | {objective.metric: objective.worst, FINISHED: False, ERROR: text})

    def _send(self, metrics: dict[str, Any], saved: bool = False) -> None:
        """Reports; `saved`: with a checkpoint, which is a mark only where no other trial may go on from it."""
        if not saved or (self.job.evolves and not (self.path / "checkpoint.pt").exists()):
            ray_tune.report(metrics)
        elif self.job.evolves:
            ray_tune.report(metrics, checkpoint=ray_tune.Checkpoint.from_directory(str(self.path)))
        else:
            with TemporaryDirectory(prefix="lit-cfl-") as mark:
                (Path(mark) / "trial.txt").write_text(str(self.path))
                ray_tune.report(metrics, checkpoint=ray_tune.Checkpoint.from_directory(mark))


def _reported(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith(_REPORTED) and value is not None}
