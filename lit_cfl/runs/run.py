"""Runs experiments into directories, one per seed with its baseline; interrupted runs can be resumed."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, get_args

from lit_cfl.activity import Activity, Report, ignore_activity
from lit_cfl.algorithms.automatic_clusters import chooses_number
from lit_cfl.engines.plan import Plan, release_freed_memory
from lit_cfl.errors import InputError, Notice, SaveError, collect_notices, name_clients
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import CHOSEN, ENTROPY, RATE, Row, tuned_columns
from lit_cfl.notebook import MAIN, as_html, shorten
from lit_cfl.pictures.folder import draw_both
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.options import Format
from lit_cfl.runs.recorder import Recorder
from lit_cfl.runs.resume import (
    disagreements,
    edited_config,
    read_finished_summary,
    require_agreement,
    require_same_digests,
    with_own_partition,
    with_stored_code,
    with_stored_plan,
)
from lit_cfl.runs.run_directory import RunDirectory, default_run_directory
from lit_cfl.scores import read_scores
from lit_cfl.storage.atomic_writes import write_json
from lit_cfl.storage.checkpoint import Checkpoint, read_fingerprint, read_saved_config, share_initial_model
from lit_cfl.storage.config_file import require_unused, stored_config, write_config
from lit_cfl.storage.csv_log import read_table
from lit_cfl.storage.digests import find_changed, renew_sums
from lit_cfl.storage.lock import lock_directory
from lit_cfl.tracking.offline import sync_line
from lit_cfl.tracking.trackers import Trackers

if TYPE_CHECKING:
    from pandas import DataFrame

SAME_START = (
    "The runs of all seeds started from one initial model: the module sets a seed itself, or starts from constants or "
    "from a file, so the spread over seeds comes only from clients, cohorts and mini-batches"
)
ResumeMode = Literal["new", "resume", "new_plan"]


@dataclass
class FinishedRun:
    """Directory and summary of a finished run.

    Args:
        path: Directory of the run.
        summary: Content of `summary.json`.
        baseline: Finished run of the baseline, if there was one.
        seeds: Finished run of each seed, if there are several.
    """

    path: Path
    summary: Row = field(repr=False)  # about fifty entries, too many to print
    baseline: "FinishedRun | None" = None
    seeds: Sequence["FinishedRun"] = ()

    def __repr__(self) -> str:
        name = f"test/weighted_{read_scores(self.summary)[0].name}"
        score = "" if (value := self.summary.get(name)) is None else f", {name} {value:.3f}"
        return shorten(f"<FinishedRun {self.path}: {self.summary.get('algorithm')}{score}>")

    def _repr_html_(self) -> str:
        return as_html(self, (self.seeds or [self])[0].path, self.runs.filter(regex=MAIN))

    @cached_property
    def runs(self) -> "DataFrame":
        """One row per seed of the run, then of its baseline, with the numbers of `summary.json`."""
        from pandas import DataFrame

        baselines = [] if self.baseline is None else self.baseline.seeds or [self.baseline]
        return DataFrame([one.summary for one in (*(self.seeds or [self]), *baselines)])


@dataclass
class RunCallbacks:
    """Functions that are called during runs.

    Args:
        between_clients: Called before a client is trained; may raise to end the run, which saves itself.
        activity: Called with the current activity, starting with the loading of the data; often, so it should return
            fast.
        started: Called before the first round with a title, the rounds completed before, all rounds, and the seed.
        row: Called with each row of `metrics.csv`.
        ended: Called when a run ends, with the reason if it was stopped early.
        notice: Called at the end of a run with notices for the user: why there is no clustering, and at the end of all
            runs how to upload what W&B kept offline.
    """

    started: Callable[[str, int, int, int], None] = field(default=lambda title, completed, rounds, seed: None)
    between_clients: Callable[[], None] = field(default=lambda: None)
    row: Callable[[Row], None] = field(default=lambda row: None)
    ended: Callable[[str | None], None] = field(default=lambda reason: None)
    activity: Report = ignore_activity
    notice: Callable[[str], None] = field(default=lambda line: warnings.warn(Notice(line), stacklevel=3))


def run(
    experiment: Experiment,
    path: Path | str | None = None,
    callbacks: RunCallbacks | None = None,
    mode: ResumeMode = "new",
) -> FinishedRun:
    """Runs an experiment, and its baseline, for all its seeds.

    With one seed, `path` is the run directory; with several, `path/seed-<s>/` are, and `path/summary.json` holds
    the means of their numbers.

    Args:
        path: Directory to create or to resume; None = runs/<name>-<time>.
        callbacks: Functions called during the runs.
        mode: `new`: the directory must hold no run; `resume`: resumes the run in it, if any, under the recorded plan;
            `new_plan`: resumes it under a plan for this machine, with the parts that the experiment's `plan` sets.

    Raises:
        InputError: a configuration other than the recorded one, files that were changed, a directory in use.
    """
    if not isinstance(experiment, Experiment):
        raise InputError(
            f"run needs an Experiment, not {experiment!r:.60}; "
            "lit_cfl.load_experiment(FILE) reads one from a configuration"
        )
    if callbacks is not None and not isinstance(callbacks, RunCallbacks):
        raise InputError(
            f"callbacks is {callbacks!r:.60}; give "
            + (f"mode={callbacks!r}" if callbacks in get_args(ResumeMode) else "RunCallbacks(...)")
        )
    path = default_run_directory(experiment.name) if path is None else Path(path)
    callbacks = callbacks or RunCallbacks()
    if mode != "new":
        runs = _list_runs(experiment, path)
        others = [file.parent.name for file in sorted(path.glob("seed-*/config.yaml")) if file.parent not in runs]
        if others and (stored_config(path) or {}).get("seeds") == experiment.seeds:  # so config.yaml was edited
            raise edited_config(path, [f"seeds: {experiment.seeds}, without {', '.join(others)}"])
        require_comparable_runs(runs)
    if len(experiment.seeds) == 1:
        finished = _run_seed(experiment, path, callbacks, mode)
    else:
        finished = _run_seeds(experiment, path, callbacks, mode)
    line = sync_line([path, *sorted(path.glob("seed-*"))])
    if line is not None:
        callbacks.notice(line)
    return finished


def _list_runs(experiment: Experiment, path: Path) -> dict[Path, Experiment]:
    """Maps each run directory to its experiment, for all seeds and their baselines."""
    runs = {
        path if len(experiment.seeds) == 1 else path / f"seed-{s}": experiment.for_seed(s) for s in experiment.seeds
    }
    baselines = {folder / "baseline": one.for_baseline() for folder, one in runs.items() if one.baseline is not None}
    return runs | baselines


def _run_seeds(experiment: Experiment, path: Path, callbacks: RunCallbacks, mode: ResumeMode) -> FinishedRun:
    with lock_directory(path):
        stored = None if mode == "new" else stored_config(path)
        if stored is not None:
            require_agreement(path, stored, experiment.to_dict(), mode == "new_plan")
            experiment = with_stored_code(experiment, stored)
            begun = _require_recorded_config(experiment, path, stored)
            # an extension that was killed has not written the outer file yet
            experiment = experiment.with_options(rounds=max(experiment.rounds, begun))
        else:
            require_unused(path)
        try:
            if stored is None:
                write_config(path, experiment.to_dict())
            parts = [
                _run_seed(experiment.for_seed(seed), path / f"seed-{seed}", callbacks, mode)
                for seed in experiment.seeds
            ]
        except InputError:
            if stored is None and not list(path.glob("seed-*")):  # nothing was trained, so the path may be used again
                with suppress(OSError):
                    (path / "config.yaml").unlink(missing_ok=True)
            raise
        if stored is not None:  # last, so that the runs have at least its rounds; those that stopped early keep theirs
            rounds = max(config["rounds"] for config in _saved_configs(experiment, path).values())
            write_config(path, experiment.to_dict() | {"rounds": rounds})
        if share_initial_model([part.path for part in parts]):
            warnings.warn(SAME_START, Notice, stacklevel=2)
        finished = FinishedRun(path, mean_summary([part.summary for part in parts]), seeds=parts)
        baselines = [part.baseline for part in parts if part.baseline is not None]
        if baselines:
            finished.baseline = FinishedRun(path, mean_summary([part.summary for part in baselines]), seeds=baselines)
        of_baseline = {"baseline": finished.baseline.summary} if finished.baseline else {}
        write_json(path / "summary.json", finished.summary | of_baseline)
    return finished


def _saved_configs(experiment: Experiment, path: Path) -> dict[Path, dict[str, Any]]:
    """Maps the directories of runs that have been saved to the configurations in their checkpoints."""
    found = {folder: read_saved_config(folder) for folder in _list_runs(experiment, path)}
    return {folder: config for folder, config in found.items() if config is not None}


def _require_recorded_config(experiment: Experiment, path: Path, stored: Mapping[str, Any]) -> int:
    """Checks that the outer `config.yaml` is the one that the runs of all seeds were saved with.

    Returns:
        The number of rounds of the runs, which may be higher than in the file.

    Raises:
        InputError: the options that differ.
    """
    runs, saved = _list_runs(experiment, path), _saved_configs(experiment, path)
    for folder, config in saved.items():
        if found := disagreements(config, runs[folder].to_dict(), {"rounds"}, new_plan=True):
            raise edited_config(path, found)
    rounds: int = max((config["rounds"] for config in saved.values()), default=stored["rounds"])
    if stored["rounds"] > rounds:
        raise edited_config(path, [f"rounds: {rounds} -> {stored['rounds']}"])
    return rounds


def _run_seed(experiment: Experiment, path: Path, callbacks: RunCallbacks, mode: ResumeMode) -> FinishedRun:
    finished = FinishedRun(path, _run_one(experiment, path, callbacks, mode))
    if experiment.baseline is not None:
        folder, baseline = path / "baseline", with_own_partition(experiment.for_baseline(), path, None)
        plan = Plan(**(stored_config(path) or {})["plan"]) if mode == "new" else None  # of this process, a moment ago
        finished.baseline = FinishedRun(folder, _run_one(baseline, folder, callbacks, mode, plan))
        draw = partial(_draw_with_baseline, finished, finished.baseline, experiment.pictures.formats)
        DrawingGuard(passed=(SaveError,))("pictures/curve with the baseline", draw)
    return finished


def _draw_with_baseline(finished: FinishedRun, baseline: FinishedRun, formats: Sequence[Format]) -> None:
    with lock_directory(finished.path):
        written = draw_both(finished.path, baseline.path, finished.summary, baseline.summary, formats)
        renew_sums(finished.path, written)


def mean_summary(summaries: Sequence[Row]) -> Row:
    """Averages the metrics of summaries over the seeds; a metric that a seed lacks is None."""
    keys = [key for key, value in summaries[0].items() if "/" in key and not isinstance(value, str)]
    known = {key: [summary[key] for summary in summaries if summary.get(key) is not None] for key in keys}
    means = {key: fmean(found) if len(found) == len(summaries) else None for key, found in known.items()}
    notes = list(dict.fromkeys(note for summary in summaries for note in summary.get("notes", ())))
    own = {"algorithm": summaries[0]["algorithm"], "scores": summaries[0]["scores"], "notes": notes}
    return own | {"seeds": len(summaries)} | means


def _run_one(
    experiment: Experiment, path: Path, callbacks: RunCallbacks, mode: ResumeMode, plan: Plan | None = None
) -> Row:
    """Starts the run of one seed in its directory, under a plan if it is known, or resumes it. Returns the summary."""
    with lock_directory(path), collect_notices() as notices:
        stored = None if mode == "new" else stored_config(path)
        if stored is None:
            return _start(experiment, path, callbacks, plan, notices)
        require_agreement(path, stored, experiment.to_dict() | {"plan": stored.get("plan")}, mode == "new_plan")
        summary = read_finished_summary(path, experiment.rounds)
        experiment = with_stored_code(experiment, stored)
        if summary is None or find_changed(path) != []:  # rounds remain, or files are damaged
            return _record(_restore_recorder(experiment, path, stored, callbacks, mode), callbacks, notices)
        if stored.get("made_in_python"):  # config.yaml describes such an experiment only in part
            require_unchanged_data(experiment, path)
        return summary


def require_unchanged_data(experiment: Experiment, path: Path) -> None:
    """Checks that a finished run had the data, initial model and optimizer that its experiment has now.

    Args:
        experiment: Experiment of the run, with its seed.
        path: Run directory.

    Raises:
        InputError: the parts that differ.
    """
    if recorded := read_fingerprint(path):
        # the recorded plan may be for another machine
        here = with_own_partition(experiment, path, None).with_options(plan=None, device="auto")
        prepared, _ = here.try_out(experiment.seeds[0])
        require_same_digests(path, recorded, prepared.fingerprint)
        prepared.engine.close()


def require_comparable_runs(runs: Mapping[Path, Experiment]) -> None:
    """Checks that data, initial model and optimizer still match the first finished run, before further runs train.

    A run that has begun is checked when it is resumed, in `Recorder.restore`.

    Args:
        runs: Experiments, with their seeds, by the run directory.

    Raises:
        InputError: the data, the initial model or the optimizer have changed since the first finished run.
    """
    stored = {path: stored_config(path) for path, one in runs.items() if read_finished_summary(path, one.rounds)}
    path = next(iter(stored), None)
    if path is None or len(stored) == len(runs):
        return
    found, now = stored[path] or {}, runs[path].to_dict()
    if not disagreements(found, now, {"rounds"}, new_plan=True):  # if options differ, resuming that run reports them
        require_unchanged_data(with_stored_code(runs[path], found), path)


def _start(
    experiment: Experiment, path: Path, callbacks: RunCallbacks, plan: Plan | None, notices: Sequence[str]
) -> Row:
    """Runs an experiment from its first round. Leaves no files if it cannot be trained."""
    require_unused(path)
    recorder = _recorder(experiment, path, callbacks, plan=plan)
    directory, checkpoint = recorder.directory, recorder.checkpoint
    directory.create(recorder.prepared.config(), recorder.prepared.data)
    try:
        return _record(recorder, callbacks, notices)
    except InputError as error:
        if not (directory.rows or checkpoint.path.exists() or isinstance(error, SaveError)):
            directory.discard()  # nothing was trained: the same path may be used again
        raise


def _restore_recorder(
    experiment: Experiment, path: Path, stored: Mapping[str, Any], callbacks: RunCallbacks, mode: ResumeMode
) -> Recorder:
    """Builds the recorder of a run to be resumed, and restores the run from its checkpoint if there is one.

    The checkpoint's memory is freed on return, except for the state, which the next round replaces.
    """
    checkpoint = Checkpoint(path)
    saved = checkpoint.load()
    if mode == "resume":  # after a kill, config.yaml may have a newer plan than the checkpoint
        experiment = with_stored_plan(experiment, stored if saved is None else json.loads(saved["config"]))
    recorder = _recorder(with_own_partition(experiment, path, saved), path, callbacks, checkpoint)
    if saved is not None:
        recorder.restore(saved, stored, new_plan=mode == "new_plan")
    recorder.directory.reopen(recorder.prepared.data, saved, recorder.engine.plan)
    del saved  # a traceback that somebody keeps may keep this frame
    recorder.write_config()
    checkpoint.remove_superseded()
    return recorder


def _recorder(
    experiment: Experiment,
    path: Path,
    callbacks: RunCallbacks,
    checkpoint: Checkpoint | None = None,
    plan: Plan | None = None,
) -> Recorder:
    """Builds the recorder of a run, after loading its data and building its engine. Writes nothing."""
    prepared = experiment.prepare(experiment.seeds[0], callbacks.activity, plan)
    algorithm, shifting = experiment.algorithm, bool(experiment.data.shift)
    scores = prepared.engine.scores
    columns = (*algorithm.score_columns, *((RATE,) if experiment.local.lr_schedule else ()))
    columns += (ENTROPY,) if algorithm.mixes_models else ()
    columns += (CHOSEN,) if chooses_number(algorithm) else ()
    columns += tuned_columns(scores) if experiment.evaluation.fine_tune else ()
    directory = RunDirectory(path, columns, algorithm.tables, shifting, scores)
    return Recorder(prepared, directory, checkpoint or Checkpoint(path))


def _record(recorder: Recorder, callbacks: RunCallbacks, notices: Sequence[str]) -> Row:
    """Runs the remaining rounds, and writes all files of the run. Returns the summary.

    Args:
        notices: Notices given so far, to which later ones are added while the run lasts.
    """
    recorder.keep(notices)
    callbacks.activity(Activity("starting the trackers"))
    experiment, directory, config = recorder.experiment, recorder.directory, recorder.prepared.config()
    known = (directory.run_id, directory.rows, directory.rounds_logged)
    formats = experiment.pictures.formats
    trackers = Trackers(experiment.tracking, experiment.name, directory.path, config, *known, formats)
    status: Literal["success", "failed"] = "failed"
    reason = None
    recorder.engine.between_clients = callbacks.between_clients
    algorithm, rounds = experiment.algorithm, experiment.rounds
    callbacks.started(type(algorithm).__name__, recorder.completed, rounds, recorder.prepared.seed)
    try:
        release_freed_memory()  # memory used while the data were loaded
        with name_clients(recorder.prepared.data.names):
            reason = recorder.run(lambda row: trackers.log(row, recorder.round_view()), callbacks.row)
            release_freed_memory()
            if text := algorithm.explain_result(partial(read_table, directory.path / "clusters.csv")):
                callbacks.notice(text)
            summary = recorder.finish(reason)
        trackers.conclude(summary, recorder.round_view(), recorder.models)
        status = "success"
    except SystemExit:  # a search has stopped its trial, which is not a failure
        status = "success"
        raise
    finally:
        recorder.engine.close()
        shown = trackers.finish(status)
        callbacks.ended(reason)
    if trackers.unwritten is not None:
        raise trackers.unwritten
    if shown:  # otherwise the run stays open, so that a resume draws the missing pictures
        directory.conclude(recorder.checkpoint.row_files)
    return summary
