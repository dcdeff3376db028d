"""A study from its first trial to its table: all trials in Ray Tune, then the best one and the default repeated."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ray import tune as ray_tune

from lit_cfl.errors import InputError
from lit_cfl.resume import stored_config
from lit_cfl.run_directory import locked
from lit_cfl.tune.check import notices
from lit_cfl.tune.cluster import connected, require_room, require_seen_by_all
from lit_cfl.tune.importance import importance
from lit_cfl.tune.leaving import leavable
from lit_cfl.tune.outcome import Outcome
from lit_cfl.tune.pictures import draw
from lit_cfl.tune.prepared import TRIALS, Prepared, prepare
from lit_cfl.tune.repeats import repeat
from lit_cfl.tune.results import FINISHED_STATUS, Row, trial_rows, write_best, write_trials
from lit_cfl.tune.sharing import share
from lit_cfl.tune.study import Study
from lit_cfl.tune.telling import telling
from lit_cfl.tune.trial import run_trial
from lit_cfl.tune.tuner import new_tuner, restored_tuner
from lit_cfl.tune.wandb_run import track_study

_RAY, _REPEATS, PICTURES = "ray", "repeats", "pictures"  # folders of a study directory


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
    if not resume:
        _refuse_used(path)
    with locked(path, "--study_dir"):
        require_room(str(path))
        if resume:
            require_own(path / _RAY)
            for config in islice((path / TRIALS).glob("*/config.yaml"), 1):
                stored_config(config.parent)  # refuses a study of another format
        prepared = prepare(study, path)
        with leavable(path), connected(address, study.resources):
            require_seen_by_all(str(path.absolute()))
            say("\n".join([_beginning(prepared, path), *notices(prepared.space)]))
            prepared.study.write(path / "study.yaml")
            prepared = replace(prepared, job=replace(prepared.job, data=share(prepared.default)))
            results = _search(prepared, path, resume, say)
            rows = trial_rows(results, prepared.job)
            _remove_orphans(path / TRIALS, rows)
            write_trials(path / "trials.csv", rows, prepared.job)
            objective = prepared.job.objective
            shares = importance(rows, prepared.space, objective)
            draw(path / PICTURES, rows, prepared.space, objective, shares)
            best = objective.best([row for row in rows if row["status"] == FINISHED_STATUS])
            outcome = Outcome(path, rows, best, shares, None, objective=objective)
            if best is not None:
                say(f"best trial: {best['trial_id']}; see {path / 'best.yaml'}")
                whole = write_best(path / "best.yaml", path / TRIALS / best["trial_id"], prepared.job, best)
                repeated = repeat(prepared.study, prepared.job, whole, path / _REPEATS, say)
                outcome = replace(outcome, repeated=repeated)
        return replace(outcome, to_upload=track_study(prepared, outcome))


def _beginning(prepared: Prepared, path: Path) -> str:
    seeds = prepared.job.seeds
    under = f"seed {seeds[0]}" if len(seeds) == 1 else f"the seeds {', '.join(map(str, seeds))} each"
    return f"{prepared.study.num_trials} trials of {prepared.rounds} rounds under {under}; their files: {path / TRIALS}"


def _refuse_used(path: Path) -> None:
    if (path / "study.yaml").exists():
        raise InputError(f"{path} already holds a study; choose another --study_dir, or go on with --resume {path}")
    if (path / "config.yaml").exists():
        raise InputError(f"{path} holds a run, not a study; choose another --study_dir")
    for name in (TRIALS, _RAY, _REPEATS, PICTURES):
        if (path / name).exists():
            raise InputError(f"{path} holds {name!r} that is no study's; choose another --study_dir")


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
        tuner = restored_tuner(prepared, trainable, records)
    else:
        shutil.rmtree(records, ignore_errors=True)
        tuner = new_tuner(prepared, trainable, records)
    with telling(say):
        return tuner.fit()


def _remove_orphans(trials: Path, rows: list[Row]) -> None:
    """Trials that a killed driver had begun in its last second, and that Ray has no record of."""
    known = {row["trial_id"] for row in rows}
    for path in trials.glob("*"):
        if path.is_dir() and path.name not in known:
            shutil.rmtree(path)
