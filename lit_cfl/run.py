"""Runs into directories: one a seed, and the baseline beside each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal

from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.recorder import Recorder, Row
from lit_cfl.run_directory import RunDirectory, claim, write_json
from lit_cfl.tracking import Trackers


@dataclass
class Finished:
    """What a run leaves.

    Args:
        path: its directory.
        summary: content of `summary.json`.
        baseline: the baseline's, if there was one.
    """

    path: Path
    summary: Row
    baseline: "Finished | None" = None


@dataclass
class Watch:
    """What the caller wants to be told while runs go on.

    Args:
        started: called with a title and the number of rounds when a run begins.
        row: called with each row of `metrics.csv`.
        ended: called when a run ends, with the reason if it was stopped early.
    """

    started: Callable[[str, int], None] = field(default=lambda title, rounds: None)
    row: Callable[[Row], None] = field(default=lambda row: None)
    ended: Callable[[str | None], None] = field(default=lambda reason: None)


def run(experiment: Experiment, path: Path, watch: Watch | None = None) -> Finished:
    """Runs an experiment, and its baseline, for all its seeds.

    With one seed, `path` is the run directory; with several, `path/seed-<s>/` are, and `path/summary.json` holds
    the means of their figures.
    """
    watch = watch or Watch()
    if len(experiment.seeds) == 1:
        return _run_seed(experiment, path, watch)
    claim(path, experiment.described())
    parts = [_run_seed(experiment.of_seed(seed), path / f"seed-{seed}", watch) for seed in experiment.seeds]
    finished = Finished(path, mean_summary([part.summary for part in parts]))
    baselines = [part.baseline.summary for part in parts if part.baseline is not None]
    if baselines:
        finished.baseline = Finished(path, mean_summary(baselines))
    write_json(path / "summary.json", finished.summary)
    return finished


def _run_seed(experiment: Experiment, path: Path, watch: Watch) -> Finished:
    finished = Finished(path, _run_one(experiment, path, watch))
    if experiment.baseline is not None:
        beside = path / "baseline"
        finished.baseline = Finished(beside, _run_one(experiment.of_baseline(), beside, watch))
    return finished


def mean_summary(summaries: Sequence[Row]) -> Row:
    """Means of the numbers over the seeds; None where a seed has none."""
    keys = [key for key, value in summaries[0].items() if isinstance(value, (int, float)) or value is None]
    known = {key: [summary[key] for summary in summaries if summary.get(key) is not None] for key in keys}
    means = {key: fmean(found) if len(found) == len(summaries) else None for key, found in known.items()}
    return {"algorithm": summaries[0]["algorithm"], "seeds": len(summaries)} | means


def _run_one(experiment: Experiment, path: Path, watch: Watch) -> Row:
    prepared = experiment.prepare(experiment.seeds[0])
    config = prepared.config()
    directory = RunDirectory(path, config, experiment.algorithm.score_columns)
    trackers = Trackers(experiment.tracking, experiment.name, path, config)
    status: Literal["success", "failed"] = "failed"
    reason = None
    watch.started(type(experiment.algorithm).__name__, experiment.rounds)
    try:
        recorder = Recorder(prepared, directory, trackers)
        reason = recorder.run(watch.row)
        summary = recorder.finish(reason)
        status = "success"
    except InputError:
        if not directory.rows:  # nothing was trained: the user mends the input and may use the same path
            directory.discard()
        raise
    finally:
        trackers.finish(status)
        watch.ended(reason)
    return summary
