"""Runs into directories: one a seed, and the baseline beside each. All of it can be resumed."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Literal

from lit_cfl.activity import Activity, Report, unreported
from lit_cfl.errors import InputError, Notice, SaveError
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import Row
from lit_cfl.pictures.folder import draw_both
from lit_cfl.runs.recorder import Recorder
from lit_cfl.runs.resume import (
    finished_summary,
    require_agreement,
    with_own_partition,
    with_stored_code,
    with_stored_plan,
)
from lit_cfl.runs.run_directory import RunDirectory, default_run_directory
from lit_cfl.storage.atomic_writes import write_json
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.config_file import refuse_used, stored_config, write_config
from lit_cfl.storage.digests import damaged, renew_sums
from lit_cfl.storage.lock import locked
from lit_cfl.tracking import Trackers
from lit_cfl.tracking.background import Guard
from lit_cfl.tracking.offline import sync_line

Going = Literal["new", "resume", "new_plan"]


@dataclass
class Finished:
    """What a run leaves.

    Args:
        path: its directory.
        summary: content of `summary.json`.
        baseline: the baseline's, if there was one.
        seeds: with several seeds, each one's.
    """

    path: Path
    summary: Row
    baseline: "Finished | None" = None
    seeds: Sequence["Finished"] = ()


@dataclass
class Watch:
    """What the caller wants to be told while runs go on.

    Args:
        between_clients: called before a client is trained; may raise to end the run, which saves itself.
        doing: called with what is being done, from the loading of the data on; often, so it should only take notes.
        started: called when the rounds begin or go on: a title, the rounds completed before, of how many, and the seed.
        row: called with each row of `metrics.csv`.
        ended: called when a run ends, with the reason if it was stopped early.
        told: called once, at the end of all, with what the user should know: how to upload what W&B kept offline.
    """

    started: Callable[[str, int, int, int], None] = field(default=lambda title, completed, rounds, seed: None)
    between_clients: Callable[[], None] = field(default=lambda: None)
    row: Callable[[Row], None] = field(default=lambda row: None)
    ended: Callable[[str | None], None] = field(default=lambda reason: None)
    doing: Report = unreported
    told: Callable[[str], None] = field(default=lambda line: warnings.warn(Notice(line), stacklevel=3))


def run(
    experiment: Experiment, path: Path | str | None = None, watch: Watch | None = None, going: Going = "new"
) -> Finished:
    """Runs an experiment, and its baseline, for all its seeds.

    With one seed, `path` is the run directory; with several, `path/seed-<s>/` are, and `path/summary.json` holds
    the means of their figures.

    Args:
        path: of the directory to make or to go on with; None = runs/<name>-<time>.
        watch: is called while the runs go on.
        going: `new`: the directory must hold no run; `resume`: go on with what is there, under the plan recorded;
            `new_plan`: the same under a plan for this machine, with the parts that the experiment's `plan` sets.

    Raises:
        InputError: another configuration than the one recorded, files that were changed, a directory in use.
    """
    path = default_run_directory(experiment.name) if path is None else Path(path)
    watch = watch or Watch()
    if len(experiment.seeds) == 1:
        finished = _run_seed(experiment, path, watch, going)
    else:
        finished = _run_seeds(experiment, path, watch, going)
    line = sync_line([path, *sorted(path.glob("seed-*"))])
    if line is not None:
        watch.told(line)
    return finished


def _run_seeds(experiment: Experiment, path: Path, watch: Watch, going: Going) -> Finished:
    with locked(path):
        stored = None if going == "new" else stored_config(path)
        if stored is None:
            refuse_used(path)
        else:
            require_agreement(path, stored, experiment.described(), going == "new_plan")
            experiment = with_stored_code(experiment, stored)
        try:
            write_config(path, experiment.described())
            parts = [
                _run_seed(experiment.of_seed(seed), path / f"seed-{seed}", watch, going) for seed in experiment.seeds
            ]
        except InputError:
            if stored is None and not list(path.glob("seed-*")):  # nothing was trained
                (path / "config.yaml").unlink(missing_ok=True)
            raise
        finished = Finished(path, mean_summary([part.summary for part in parts]), seeds=parts)
        baselines = [part.baseline for part in parts if part.baseline is not None]
        if baselines:
            finished.baseline = Finished(path, mean_summary([part.summary for part in baselines]), seeds=baselines)
        both = {"baseline": finished.baseline.summary} if finished.baseline else {}
        write_json(path / "summary.json", finished.summary | both)
    return finished


def _run_seed(experiment: Experiment, path: Path, watch: Watch, going: Going) -> Finished:
    finished = Finished(path, _run_one(experiment, path, watch, going))
    if experiment.baseline is not None:
        beside = path / "baseline"
        finished.baseline = Finished(beside, _run_one(experiment.of_baseline(), beside, watch, going))
        Guard("The drawing of the learning curve")(partial(_draw_with_baseline, experiment, finished))
    return finished


def _draw_with_baseline(experiment: Experiment, finished: Finished) -> None:
    if finished.baseline is not None:
        path, beside, formats = finished.path, finished.baseline.path, experiment.pictures.formats
        renew_sums(path, draw_both(path, beside, finished.summary, finished.baseline.summary, formats))


def mean_summary(summaries: Sequence[Row]) -> Row:
    """Means of the numbers over the seeds; None where a seed has none."""
    keys = [key for key, value in summaries[0].items() if "/" in key and not isinstance(value, str)]
    known = {key: [summary[key] for summary in summaries if summary.get(key) is not None] for key in keys}
    means = {key: fmean(found) if len(found) == len(summaries) else None for key, found in known.items()}
    return {"algorithm": summaries[0]["algorithm"], "seeds": len(summaries)} | means


def _run_one(experiment: Experiment, path: Path, watch: Watch, going: Going) -> Row:
    with locked(path):
        stored = None if going == "new" else stored_config(path)
        if stored is None:
            refuse_used(path)
            return _start(experiment, path, watch)
        require_agreement(path, stored, experiment.described() | {"plan": stored.get("plan")}, going == "new_plan")
        experiment = with_stored_code(experiment, stored)
        summary = finished_summary(path, experiment.rounds)
        if summary is not None and damaged(path) == []:
            return summary
        if going == "resume":
            experiment = with_stored_plan(experiment, stored)
        return _go_on(experiment, path, watch, going == "new_plan")


def _start(experiment: Experiment, path: Path, watch: Watch) -> Row:
    recorder = _recorder(experiment, path, watch)
    directory = recorder.directory
    directory.create(recorder.prepared.config(), recorder.prepared.data)
    try:
        return _record(recorder, watch, logged=0)
    except InputError as error:
        begun = directory.rows or recorder.checkpoint.path.exists() or isinstance(error, SaveError)
        if not begun:  # nothing was trained: the same path may be used again
            directory.discard()
        raise


def _go_on(experiment: Experiment, path: Path, watch: Watch, new_plan: bool) -> Row:
    """Puts a run back where its checkpoint was made, and runs the rest of it, if only its end."""
    checkpoint = Checkpoint(path)
    saved = checkpoint.load()
    recorder = _recorder(with_own_partition(experiment, path, saved), path, watch, checkpoint)
    if saved is not None:
        recorder.restore(saved, new_plan)
    logged = recorder.directory.reopen(recorder.prepared.config(), recorder.prepared.data, saved)
    checkpoint.remove_superseded()
    if saved is not None and new_plan:
        recorder.save_again()
    return _record(recorder, watch, logged)


def _recorder(experiment: Experiment, path: Path, watch: Watch, checkpoint: Checkpoint | None = None) -> Recorder:
    prepared = experiment.prepare(experiment.seeds[0], watch.doing)
    algorithm, shifting = experiment.algorithm, bool(experiment.data.shift)
    directory = RunDirectory(path, algorithm.score_columns, algorithm.tables, shifting, prepared.engine.scores)
    return Recorder(prepared, directory, checkpoint or Checkpoint(path))


def _record(recorder: Recorder, watch: Watch, logged: int) -> Row:
    experiment, directory = recorder.experiment, recorder.directory
    config = recorder.prepared.config()
    watch.doing(Activity("starting what tracks the run"))
    trackers = Trackers(
        experiment.tracking,
        experiment.name,
        directory.path,
        config,
        directory.run_id,
        directory.rows,
        logged,
        experiment.pictures.formats,
    )
    status: Literal["success", "failed"] = "failed"
    reason = None
    recorder.engine.between_clients = watch.between_clients
    watch.started(type(experiment.algorithm).__name__, recorder.completed, experiment.rounds, recorder.prepared.seed)
    try:
        reason = recorder.run(lambda row: trackers.log(row, recorder.look()), watch.row)
        summary = recorder.finish(reason)
        trackers.conclude(summary, recorder.look(), recorder.models)
        status = "success"
    except SystemExit:  # a search has stopped its trial: no failure
        status = "success"
        raise
    finally:
        recorder.engine.close()
        shown = trackers.finish(status)
        watch.ended(reason)
    if shown:  # else the next resume draws what is missing
        directory.conclude(recorder.checkpoint.row_files)
    return summary
