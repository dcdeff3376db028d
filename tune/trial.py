"""One trial: a whole run in a separate directory, which reports its progress to Ray Tune."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from ray import tune as ray_tune

from lit_cfl.config.own_code import no_code_from
from lit_cfl.config.variants import build
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.engines.ray.shared_data import SharedData
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.runs.resume import read_finished_summary
from lit_cfl.runs.run import FinishedRun, RunCallbacks, run
from lit_cfl.storage.error_file import write_error
from lit_cfl.storage.lock import wait_until_free
from lit_cfl.tracking.wandb_run import FINISH_SECONDS
from lit_cfl.tune.journal import NUMBER
from lit_cfl.tune.objective import TRAFFIC, Objective
from lit_cfl.tune.record import CLIENTS, ERROR, FINISHED, ROUNDS, SECONDS, trial_id
from lit_cfl.tune.study import Study


@dataclass(frozen=True)
class TrialJob:
    """The common inputs of all trials of a study.

    Args:
        study: The study, with its whole base and its seeds.
        objective: Reported objective.
        folder: Folder of the trials' directories.
        data: Data of the base, already loaded; None = each trial loads its own.
        watched: True to report each round, so that a trial can be stopped early.
    """

    study: Study
    objective: Objective
    folder: Path
    data: SharedData | None = None
    watched: bool = True

    @property
    def seeds(self) -> list[int]:
        """The seeds under which every trial runs."""
        return self.study.seeds or []

    def _device(self, experiment: Experiment, plan: PlanOptions) -> str | None:
        """Returns `cpu` for a trial without a share of a GPU; None leaves the choice to the experiment.

        Ray hides no GPU from a worker that asked for none: all trials of a node would train on its first one.
        """
        by_ray = experiment.engine == "ray" or bool(plan.workers)
        return "cpu" if not self.study.resources.gpus and not by_ray and experiment.device == "auto" else None

    def of_setting(self, number: int, values: Mapping[str, Any]) -> Experiment:
        """Builds the experiment of a trial; number 0 is the base's own setting, which may lie outside the space."""
        space, tracking = self.study.search_space, {}
        own = space.values_of(values) if number else {}
        experiment = build(self.study.whole_base, space.words(own) if number else ())
        if number:
            tracking["notes"] = ", ".join(f"{key} = {value}" for key, value in own.items())
        if self.data is not None:
            self.data.give_to(experiment.data, experiment.to_dict()["data"])
        plan = experiment.plan or PlanOptions()
        device = plan.device or self._device(experiment, plan)
        return experiment.with_options(
            name=f"{self.study.name}-{trial_id(number)}",
            seeds=list(self.seeds),
            plan={"threads": plan.threads or self.study.resources.threads, "device": device},
            tracking=tracking | {"group": experiment.tracking.group or self.study.name},
        )


_SECONDS_UNWATCHED = 1.0  # minimum time between reports that no scheduler needs: each costs the trial 5 ms
_REPORTED = ("val/", "train/", "clusters/", "traffic/", "local/")  # test figures never reach the search


@dataclass
class TrialReport:
    """Reports a trial's progress to Ray Tune.

    The rounds of the first seed are reported one by one, so that a scheduler can stop a bad trial before its other
    seeds cost anything; without such a scheduler, at most one per second. The last report is of all seeds.
    """

    job: TrialJob
    path: Path
    _first_seed: bool = True
    _rounds: int = 0
    _last: dict[str, Any] = field(default_factory=dict)
    _told: float = -inf  # time of the last report to Ray Tune

    def begin(self, experiment: Experiment) -> None:
        self._rounds = experiment.rounds
        several = len(self.job.seeds) > 1
        first = self.path / f"seed-{self.job.seeds[0]}" if several else self.path
        done = first.exists() and read_finished_summary(first, experiment.rounds) is not None
        self._seeds_begun = 1 if done else 0

    def started(self, title: str, first: int, rounds: int, seed: int) -> None:
        self._seeds_begun += 1
        self._first_seed = self._seeds_begun == 1

    def row(self, row: Mapping[str, Any]) -> None:
        """Reports a round of the first seed if a report is due. Raises InputError if no round can have the metric."""
        objective = self.job.objective
        if objective.is_global and row.get(objective.metric) is None and row.get(objective.usual) is not None:
            raise explain_blank(objective, row)
        if not self._first_seed or row["round"] >= self._rounds or row.get(self.job.objective.metric) is None:
            return
        self._last = _reported_values(row) | {ROUNDS: row["round"], SECONDS: row["time/elapsed_seconds"]}
        if self.job.watched or monotonic() - self._told >= _SECONDS_UNWATCHED:
            self._told = monotonic()
            ray_tune.report(self._last | {FINISHED: False})

    def end(self, finished: FinishedRun) -> None:
        """Reports the result after all seeds have finished."""
        metric = self.job.objective.metric
        parts = [part.summary for part in finished.seeds or [finished]]
        mean = finished.summary.get(metric)  # mean over the seeds; None if a seed has none
        if mean is None:
            raise explain_blank(self.job.objective, next(part for part in parts if part.get(metric) is None))
        each = {f"seed {part['seed']}": part[metric] for part in parts}
        whole = {
            metric: mean,
            TRAFFIC: finished.summary[TRAFFIC],
            CLIENTS: finished.summary.get(CLIENTS),
            ROUNDS: max(part["round"] for part in parts),
            SECONDS: sum(part["time/elapsed_seconds"] for part in parts),
        }
        ray_tune.report(_reported_values(parts[0]) | each | whole | {FINISHED: True})

    def report_error(self, error: Exception) -> None:
        """Reports an error, and writes its traceback to `error.txt`."""
        ray_tune.report({ROUNDS: 0} | self._last | {FINISHED: False, ERROR: write_error(self.path, error)})


def explain_blank(objective: Objective, row: Mapping[str, Any]) -> InputError:
    """Makes the error for a round that lacks the metric.

    Args:
        row: Row of `metrics.csv`, or a summary.
    """
    metric, usual = objective.metric, objective.usual
    if row.get(usual) is not None and objective.is_global:
        return InputError(f"{metric} was never reported: this algorithm and these data do not give it; use {usual}")
    of_seed = f" (seed {row['seed']})" if "seed" in row else ""
    blank = f"{metric} is blank in round {row['round']}{of_seed}: "
    if row.get(usual) is not None:
        return InputError(
            f"{blank}the loss of a validation example is not finite, as after training that diverged; lower the "
            f"learning rate, or use {usual}, in which such an example counts as wrong"
        )
    return InputError(
        f"{blank}no client that was scored has validation examples, or none of their scores is finite; give more "
        "clients validation data (data.validation), set evaluation.clients to all, or lower the learning rate"
    )


def _reported_values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith(_REPORTED) and value is not None}


_PATIENCE_SECONDS = int(FINISH_SECONDS) + 60  # time for a stopped trial to end; otherwise the next trial fails, too


def run_trial(config: dict[str, Any], job: TrialJob) -> None:
    """Runs a trial as Ray Tune's trainable. An exception ends only this trial, which gets the worst value."""
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(_PATIENCE_SECONDS)
    path = job.folder / trial_id(config[NUMBER])
    report = TrialReport(job, path)
    try:
        wait_until_free(path)  # an earlier process of this trial may not have ended yet
        # the study's folder may belong to another user, so no code is imported from it
        with no_code_from(job.folder.parent):
            if 0 < (share := job.study.resources.gpus) < 1:
                torch.cuda.set_per_process_memory_fraction(share)
            experiment = job.of_setting(config[NUMBER], config)
            report.begin(experiment)
            # the study itself prints each notice once
            callbacks = RunCallbacks(started=report.started, row=report.row, notice=lambda line: None)
            report.end(run(experiment, path, callbacks, mode="resume"))
    except Exception as error:  # a user's net or data may raise any error, and the other trials have to continue
        report.report_error(error)
