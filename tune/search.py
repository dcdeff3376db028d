"""Runs a study: all trials in Ray Tune, then the best and the default setting on new seeds."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from secrets import token_hex
from shlex import quote

from ray import tune as ray_tune

from lit_cfl.errors import InputError, prefix_errors
from lit_cfl.runs.run import require_unchanged_data
from lit_cfl.storage.config_file import stored_config
from lit_cfl.storage.lock import lock_directory
from lit_cfl.tune.callbacks import stoppable
from lit_cfl.tune.check import PreparedStudy, notices, prepare
from lit_cfl.tune.cluster import connect_to_ray, require_room, require_shared_folder
from lit_cfl.tune.options import StudyRequest
from lit_cfl.tune.progress_lines import ProgressLines
from lit_cfl.tune.record import (
    CLIENTS,
    DEFAULT,
    FINISHED_STATUS,
    FRONT,
    PICTURES,
    REPEATS,
    ROUNDS,
    STUDY,
    TRIALS,
    TrialRecord,
    describe_uneven,
    read_recorded_scores,
    read_study_id,
)
from lit_cfl.tune.repeats import read_repeated, repeat
from lit_cfl.tune.searchers import make_searcher
from lit_cfl.tune.study import Study
from lit_cfl.tune.study_result import StudyFiles, StudyResult
from lit_cfl.tune.trial import run_trial, share
from lit_cfl.tune.trials import Trials
from lit_cfl.tune.tuner import end_line, new_tuner
from lit_cfl.tune.wandb_run import track_study

_RAY = "ray"  # folder of a study directory
_PENDING = "TUNE_MAX_PENDING_TRIALS_PG"  # number of settings that Ray requests before it can start them


def run_study(request: StudyRequest, say: Callable[[str], None] = print) -> StudyResult:
    """Runs or resumes a study in its directory, and returns its results.

    Args:
        request: The study, its directory, and the options of its run.
        say: Prints a line.

    Raises:
        InputError: The study cannot be run, or its files are damaged; nothing was started then.
        Interrupted: SIGINT or SIGTERM arrived; the study can be resumed.
    """
    study, path, resume = request.study, request.directory, request.resume
    if not resume:
        require_unused(path)
    lines = ProgressLines(say)
    with lock_directory(path, "--study_dir"), lines.breaking_silence():
        require_room(str(path))
        if resume:
            for config in islice((path / TRIALS).glob("*/config.yaml"), 1):
                stored_config(config.parent)  # refuses a study of another format
        study_id = read_study_id(path) if resume else token_hex(4)
        finished = _read_finished(study, path, study_id, lines) if resume else None
        if finished is not None:
            return finished
        prepared = prepare(study, path)
        trials = _trials(prepared, path, study_id)
        if resume:
            trials.load(study.limits.trial_minutes)
            _require_same_data(prepared, trials)
        with stoppable(path):
            try:
                with connect_to_ray(request.address, study.resources):
                    result = _run(prepared, trials, path, lines)
            finally:
                trials.seal()
        return replace(result, to_upload=track_study(prepared, result))


def _read_finished(study: Study, path: Path, study_id: str, say: ProgressLines) -> StudyResult | None:
    """Returns the results of a finished study without loading data or Ray; None if something is left to train."""
    scores = read_recorded_scores(path)
    if scores is None:
        return None
    prepared = prepare(study, path, scores)
    trials = _trials(prepared, path, study_id)
    trials.load(study.limits.trial_minutes)
    if not trials.over and _find_target(prepared, trials) is None:
        return None
    result = StudyFiles(prepared, trials, path).write()
    if result.best is not None and prepared.study.num_repeats:
        repeated = read_repeated(prepared, result.best, path)
        if repeated is None:
            return None
        result = replace(result, repeated=repeated)
    trials.seal()
    _say_uneven(prepared, trials, say)
    say("all trials have finished; --limits.trials with a larger number adds trials")
    return replace(result, to_upload=track_study(prepared, result))


def _require_same_data(prepared: PreparedStudy, trials: Trials) -> None:
    """Checks that a finished trial of a resumed study had the data and the initial model that new trials will have.

    Raises:
        InputError: the parts that differ.
    """
    records = trials.records.values()
    trial = next((one for one in records if one.status == FINISHED_STATUS and one.repeats is None), None)
    if trial is None:
        return
    experiment = prepared.job.of_setting(trial.number, trial.values)
    folder, seed = trials.folder / trial.trial_id, prepared.job.seeds[0]
    with prefix_errors("further trials could not be compared with finished ones"):
        require_unchanged_data(
            experiment.for_seed(seed), folder if len(prepared.job.seeds) == 1 else folder / f"seed-{seed}"
        )


def _run(prepared: PreparedStudy, trials: Trials, path: Path, say: ProgressLines) -> StudyResult:
    """Runs the remaining part of a study; requires a connection to Ray."""
    say.describe_progress = partial(describe_progress, trials, prepared.default.rounds, len(prepared.job.seeds))
    require_shared_folder(str(path.absolute()))
    notes = [f"Note: {notice}." for notice in notices(prepared.study, prepared.default)]
    say("\n".join([f"{prepared.size}; their files: {path / TRIALS}", *notes]))
    prepared.study.write(path / STUDY, trials.study_id)
    (path / REPEATS / "repeats.json").unlink(missing_ok=True)  # further trials may change the best setting
    prepared = replace(prepared, job=replace(prepared.job, data=share(prepared.default)))
    files = StudyFiles(prepared, trials, path)
    _search(prepared, trials, files, path, say)
    result = files.write()
    _say_uneven(prepared, trials, say)
    if result.best is None:
        return result
    say(f"best trial: {result.best['trial_id']}; see {path / 'best.yaml'}")
    num_runs = prepared.study.num_repeats * (1 if result.best["origin"] == DEFAULT else 2)
    say.describe_progress = partial(describe_repeats, path / REPEATS, num_runs)
    return replace(result, repeated=repeat(prepared, result.best, path, say))


def _say_uneven(prepared: PreparedStudy, trials: Trials, say: Callable[[str], None]) -> None:
    """Prints a note if trials were scored on different numbers of clients, unless data options are searched."""
    finished = [record for record in trials.records.values() if record.status == FINISHED_STATUS]
    found = describe_uneven({one.trial_id: one.last_result.get(CLIENTS) for one in finished})
    if found is not None and not prepared.study.search_space.changes_data:
        say(f"Note: {found}.")


def describe_progress(trials: Trials, rounds: int, seeds: int = 1) -> str:
    """Describes in a line how many trials have finished, and the last reported rounds of running trials.

    Args:
        trials: Trials of the study.
        rounds: Rounds of a whole trial.
        seeds: Seeds of a trial; a trial reports the rounds of the first one.
    """

    def where(number: int, round: int) -> str:
        finished = len(list((trials.folder / f"{number:04}").glob("seed-*/summary.json")))
        part = f"seed {min(finished + 1, seeds)} of {seeds}" if finished else f"round {round} of {rounds}"
        return f"{number:04} {part}"

    live = dict(trials.live)  # a copy, since another thread may change the dict
    at = {number: int(last_result.get(ROUNDS, 0)) for number, last_result in sorted(live.items())}
    running = [where(number, round) for number, round in at.items() if round]
    waiting = f"; {len(at) - len(running)} waiting or in round 1" if len(running) < len(at) else ""
    shown = f"{', '.join(running) or 'none yet'}{waiting}"
    return f"{trials.num_over} of {trials.limit} trials have finished; running: {shown}"


def describe_repeats(folder: Path, num_runs: int) -> str:
    """Describes in a line how many runs on new seeds have finished.

    Args:
        folder: Folder of the runs on new seeds.
        num_runs: Number of all runs.
    """
    return f"training on new seeds: {len(list(folder.glob('*/*/summary.json')))} of {num_runs} runs have finished"


def _trials(prepared: PreparedStudy, path: Path, study_id: str) -> Trials:
    study = prepared.study
    return Trials(
        path.absolute() / TRIALS,
        prepared.first,
        make_searcher(study, prepared.job.objective),
        prepared.limit,
        study.limits.concurrent,
        study_id=study_id,
    )


def require_unused(path: Path) -> None:
    """Raises InputError if a directory already contains a study, a run, or files that a study would write."""
    if (path / STUDY).exists():
        raise InputError(
            f"{path} already holds a study; choose another --study_dir, or resume with --resume {quote(str(path))}"
        )
    if (path / "config.yaml").exists():
        raise InputError(f"{path} holds a run, not a study; choose another --study_dir")
    for name in (TRIALS, _RAY, REPEATS, PICTURES, FRONT):
        if (path / name).exists():
            raise InputError(f"{path} holds {name!r}, which does not belong to a study; choose another --study_dir")


def _search(prepared: PreparedStudy, trials: Trials, files: StudyFiles, path: Path, say: Callable[[str], None]) -> None:
    """Deletes Ray's records of an earlier process, and runs all remaining trials."""
    trainable = ray_tune.with_parameters(run_trial, job=prepared.job)
    resources = prepared.study.resources
    trainable = ray_tune.with_resources(trainable, {"CPU": resources.cpus, "GPU": resources.gpus})
    shutil.rmtree(path / _RAY, ignore_errors=True)
    learns = trials.searcher is not None and trials.searcher.learns
    os.environ[_PENDING] = "1" if learns else str(trials.limit)

    def after_step() -> None:
        trials.seal_ended()
        files.refresh()

    try:
        new_tuner(prepared, trials, trainable, path.absolute() / _RAY, say, after_step).fit()
    finally:
        for record in trials.close():
            say(end_line(trials, record, prepared.job.objective.metric))
    why_over = _why_over(prepared, trials)
    if why_over is not None:
        say(why_over)


def _why_over(prepared: PreparedStudy, trials: Trials) -> str | None:
    """Explains why a study ended before `limits.trials`; None if it did not."""
    limits = prepared.study.limits
    reached = _find_target(prepared, trials)
    if reached is not None:
        return f"trial {reached.trial_id} has reached limits.target ({limits.target:g}), which ends the study"
    if trials.over or limits.minutes is None:
        return trials.why_over
    counted = f"{trials.num_over} of {trials.limit} trials have finished"
    return f"limits.minutes ({limits.minutes:g}) have passed, which ends the study; {counted}"


def _find_target(prepared: PreparedStudy, trials: Trials) -> TrialRecord | None:
    """Finds the first finished trial that reaches `limits.target`; None if none does."""
    target, objective = prepared.study.limits.target, prepared.job.objective
    finished = (record for record in trials.records.values() if record.status == FINISHED_STATUS)
    if target is None:
        return None
    return next((one for one in finished if objective.is_reached(one.last_result[objective.metric], target)), None)
