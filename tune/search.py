"""A study from its first trial to its table: all trials in Ray Tune, then the best one and the default repeated."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray import tune as ray_tune
from ray.tune import Stopper
from ray.tune.experiment import Trial

from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.run_directory import locked
from tune.candidate import build
from tune.check import check_space, first_clustering_round
from tune.cluster import connected, ended_by_signals, require_room, threads_of
from tune.domains import domains, is_population_based, scheduler, searcher
from tune.objective import Objective
from tune.repeats import Repeated, repeat
from tune.results import FINISHED_STATUS, Row, trial_rows, write_best, write_trials
from tune.spaces import Space
from tune.study import Study
from tune.trial import FINISHED, Job, run_trial

_RAY, _TRIALS, _REPEATS = "ray", "trials", "repeats"  # folders of a study directory
_WORKER_DEATHS = 3  # of one trial, that are survived
_DEFAULT_TRIALS = 20


@dataclass(frozen=True)
class Outcome:
    """What a study leaves.

    Args:
        path: its directory.
        rows: of `trials.csv`.
        best: the best of the trials that ran their full budget, or None.
        repeated: figures of the best and of the default on new seeds, or None.
    """

    path: Path
    rows: list[Row]
    best: Row | None
    repeated: Repeated | None


@dataclass(frozen=True)
class Prepared:
    """A study that was checked.

    Args:
        study: as given.
        space: parsed.
        job: what its trials share.
        default: the base's experiment.
        rounds: T.
        first_clustering_round: no trial is stopped before it.
    """

    study: Study
    space: Space
    job: Job
    default: Experiment
    rounds: int
    first_clustering_round: int


def prepare(study: Study, path: Path) -> Prepared:
    """Checks all of a study and starts nothing. Raises InputError."""
    space, objective = study.searched(), study.objective
    if not isinstance(study.base, dict):
        raise InputError("the base has to be read first; see tune.candidate.base_config")
    trials = study.limits.trials
    if space.grid and trials is not None and trials < space.size:
        raise InputError(f"limits.trials is {trials}, but the grid has {space.size} points; leave it out")
    seeds = study.seeds or build(study.base).seeds
    with_seeds = replace(study, seeds=seeds)
    default, *corners = check_space(study.base, space, seeds)
    threads, evolves = threads_of(study.resources), is_population_based(study)
    job = Job(study.base, space, seeds, objective, path.absolute() / _TRIALS, threads, evolves)
    prepared = Prepared(with_seeds, space, job, default, default.rounds, first_clustering_round(corners))
    searcher(with_seeds, space)
    scheduler(with_seeds, space, default.rounds, prepared.first_clustering_round)
    return prepared


def run_study(
    study: Study, path: Path, resume: bool = False, address: str | None = None, say: Callable[[str], None] = print
) -> Outcome:
    """Runs a study into its directory.

    Args:
        resume: go on with what is there.
        address: of a Ray cluster; None = this machine.
        say: told what happens, a line at a time.

    Raises:
        InputError: a study that cannot be run; nothing was started then.
        Interrupted: SIGINT or SIGTERM came; the study can be resumed.
    """
    if not resume and (path / "study.yaml").exists():
        raise InputError(f"{path} already holds a study; choose another --study_dir, or go on with --resume {path}")
    if (path / "config.yaml").exists():
        raise InputError(f"{path} holds a run, not a study; choose another --study_dir")
    with locked(path):
        require_room(str(path))
        if resume:
            require_own(path / _RAY)
        prepared = prepare(study, path)
        with ended_by_signals(), connected(address, study.resources):
            prepared.study.write(path / "study.yaml")
            results = _search(prepared, path, resume, say)
            rows = trial_rows(results, prepared.job)
            _remove_orphans(path / _TRIALS, rows)
            write_trials(path / "trials.csv", rows, prepared.job)
            best = study.objective.best([row for row in rows if row["status"] == FINISHED_STATUS])
            if best is None:
                return Outcome(path, rows, None, None)
            say(f"best trial: {best['trial_id']}; see {path / 'best.yaml'}")
            whole = write_best(path / "best.yaml", path / _TRIALS / best["trial_id"])
            repeated = repeat(prepared.study, prepared.job, whole, path / _REPEATS, say)
    return Outcome(path, rows, dict(best), repeated)


def require_own(path: Path) -> None:
    """Raises InputError where Ray's records, which hold pickles, are not this user's own: reading them runs code."""
    for file in (path, *path.rglob("*")) if path.exists() else ():
        if file.lstat().st_uid != os.getuid() or file.is_symlink():
            raise InputError(f"{file} is not yours: Ray's records may hold code, so only your own studies are resumed")


def _search(prepared: Prepared, path: Path, resume: bool, say: Callable[[str], None]) -> Any:
    trainable = ray_tune.with_parameters(run_trial, job=prepared.job)
    resources = prepared.study.resources
    trainable = ray_tune.with_resources(trainable, {"CPU": resources.cpus, "GPU": resources.gpus})
    records = path.absolute() / _RAY
    if resume and any(records.glob("experiment_state-*.json")):
        tuner = ray_tune.Tuner.restore(str(records), trainable=trainable, param_space=domains(prepared.space))
    else:
        shutil.rmtree(records, ignore_errors=True)
        tuner = _new_tuner(prepared, trainable, records)
    say(f"trials go to {path / _TRIALS}")
    return tuner.fit()


def _new_tuner(prepared: Prepared, trainable: Any, records: Path) -> ray_tune.Tuner:
    study, space, limits = prepared.study, prepared.space, prepared.study.limits
    samples = 1 if space.grid else limits.trials or _DEFAULT_TRIALS
    objective = study.objective
    chosen = searcher(study, space)
    conditional = space.algorithms and getattr(chosen, "_space", None) is not None
    return ray_tune.Tuner(
        trainable,
        param_space={} if conditional else domains(space),
        tune_config=ray_tune.TuneConfig(
            metric=None if conditional else study.metric,
            mode=None if conditional else objective.mode,
            search_alg=chosen,
            scheduler=scheduler(study, space, prepared.rounds, prepared.first_clustering_round),
            num_samples=samples,
            max_concurrent_trials=limits.concurrent,
            time_budget_s=None if limits.minutes is None else 60 * limits.minutes,
            reuse_actors=True,
            trial_dirname_creator=_directory_name,
        ),
        run_config=ray_tune.RunConfig(
            name=records.name,
            storage_path=str(records.parent),
            failure_config=ray_tune.FailureConfig(max_failures=_WORKER_DEATHS),
            checkpoint_config=ray_tune.CheckpointConfig(num_to_keep=2),
            stop=TargetReached(objective, limits.target),
            verbose=0,
        ),
    )


def _directory_name(trial: Trial) -> str:
    return str(trial.trial_id)


class TargetReached(Stopper):
    """Ends a study once a trial that ran to its end is good enough."""

    def __init__(self, objective: Objective, target: float | None) -> None:
        self._objective, self._target, self._reached = objective, target, False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if self._target is not None and result.get(FINISHED):
            self._reached |= self._objective.reached(result[self._objective.metric], self._target)
        return False

    def stop_all(self) -> bool:
        return self._reached


def _remove_orphans(trials: Path, rows: list[Row]) -> None:
    """Trials that a killed driver had begun in its last second, and that Ray has no record of."""
    known = {row["trial_id"] for row in rows}
    for path in trials.glob("*"):
        if path.is_dir() and path.name not in known:
            shutil.rmtree(path)
