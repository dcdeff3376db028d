"""Runs the jobs of a comparison in Ray, each in a separate process."""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from time import monotonic

from ray.exceptions import RayError

from lit_cfl.activity import Activity
from lit_cfl.compare.jobs import Job, run_job
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.ray import cluster as ray_cluster
from lit_cfl.engines.ray.tasks import run_tasks
from lit_cfl.errors import InputError, Notice
from lit_cfl.metric_names import Row
from lit_cfl.progress.live import Display
from lit_cfl.runs.run import RunCallbacks
from lit_cfl.storage.csv_log import read_table

_NOTE_SECONDS = 0.5  # minimum time between two notes of a worker
_WORKER_DEATHS = 2  # worker deaths that one run survives
JobResult = tuple[str | None, list[str]]  # why a run failed, and its notices


def side_by_side(
    jobs: Sequence[Job], display: Display, check: Callable[[], None], plan: Plan, at_once: int
) -> Iterator[tuple[Job, str | None]]:
    """Runs the jobs in Ray, starting and stopping Ray unless it already runs. Yields each job, and its error if any.

    Args:
        jobs: Jobs to run, in this order.
        display: Shows the progress of the jobs.
        check: Called twice a second; may raise an error to end the comparison.
        plan: Plan of every run.
        at_once: Number of runs at the same time.
    """
    share = _connect(jobs[0].path, Plan(device=plan.device, threads=plan.threads, workers=at_once))
    notes = TemporaryDirectory(prefix="lit-cfl-compare-", ignore_cleanup_errors=True)
    note_of = {job: Path(notes.name) / f"{number}.json" for number, job in enumerate(jobs)}
    try:
        running: set[Job] = set()

        def show_start(job: Job) -> None:
            running.add(job)
            display.started(str(job), 0, job.rounds)

        def between() -> None:
            check()
            for job in running:
                _show(job, note_of[job], display)

        arguments = {job: (job, note) for job, note in note_of.items()}
        for job, result in run_tasks(in_worker, arguments, share, _WORKER_DEATHS, between, at_once, show_start):
            running.remove(job)
            error, notices = _outcome(result)
            for notice in notices:
                warnings.warn(Notice(notice), stacklevel=2)  # Python shows each text once
            yield job, error
    finally:
        ray_cluster.disconnect()
        notes.cleanup()


def _connect(path: Path, plan: Plan) -> ray_cluster.Resources:
    try:
        return ray_cluster.connect(plan)
    except InputError as error:
        again = f"lit-cfl compare --resume {quote(str(path))} --num_cpus 1"
        raise InputError(f"{error}. To run them one after another, without Ray: {again}") from error


class ActivityFile:
    """Writes a worker's current activity into a file that the driver reads.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.written, self.last = path, float("-inf"), ""

    def write(self, activity: Activity) -> None:
        """Writes an activity; at most twice a second if only the client count has changed."""
        if activity.what == self.last and monotonic() - self.written < _NOTE_SECONDS:
            return
        self.last, self.written = activity.what, monotonic()
        with suppress(OSError):  # a worker on another machine does not have this folder
            self.path.write_text(json.dumps(asdict(activity)), "utf-8")


def in_worker(job: Job, note: Path) -> JobResult:
    """Runs a job in a worker. Notices are returned with the result, as a worker's output is not shown.

    Args:
        job: Job to run.
        note: File for the worker's current activity.
    """
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", Notice)
        error = run_job(job, RunCallbacks(activity=ActivityFile(note).write))
    return error, [str(one.message) for one in given if one.category is Notice]


def _outcome(result: JobResult | RayError) -> JobResult:
    if isinstance(result, RayError):
        return f"its process died ({type(result).__name__}); if memory is short, give a smaller --num_cpus", []
    return result


def _show(job: Job, note: Path, display: Display) -> None:
    """Shows a worker's run in the display: the last row of its metrics, and its current activity."""
    rows: list[Row] = []
    with suppress(OSError, ValueError, TypeError):  # the last row may be incomplete
        rows = read_table(job.folder / "metrics.csv")
    if rows:
        display.row(str(job), rows[-1])
    with suppress(OSError, ValueError):  # the file may not exist yet, or be incomplete
        display.activity(str(job), Activity(**json.loads(note.read_text("utf-8"))))
