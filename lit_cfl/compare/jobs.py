"""The runs of a comparison, one after the other or side by side in Ray; the results are the same to the bit."""

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from lit_cfl.activity import Activity
from lit_cfl.compare.comparison import Comparison, recorded
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.metric_names import Row
from lit_cfl.runs.resume import finished_summary
from lit_cfl.runs.run import RunCallbacks, run
from lit_cfl.storage.atomic_writes import write_atomically
from lit_cfl.storage.digests import damaged
from lit_cfl.storage.lock import wait_until_free

_READ = ("summary.json", "metrics.csv")  # by a comparison, of each run


@dataclass(frozen=True)
class Job:
    """One run of a comparison: `<path>/<name>/seed-<seed>` is its run directory."""

    path: Path
    name: str
    seed: int

    @property
    def folder(self) -> Path:
        return self.path / self.name / f"seed-{self.seed}"

    def __str__(self) -> str:
        return f"{self.name} seed {self.seed}"


class View:
    """Is told how the runs go; see `view`."""

    def began(self, job: Job) -> None:
        """A run starts, or goes on."""

    def doing(self, job: Job, activity: Activity) -> None:
        """A run does this now; called very often."""

    def row(self, job: Job, row: Row) -> None:
        """The latest row of `metrics.csv` of a run."""

    def over(self, job: Job, error: str | None) -> None:
        """A run is over; with an error, it failed."""


def unfinished(comparison: Comparison, path: Path) -> list[Job]:
    """What is left to run, seed by seed: a comparison that is interrupted has whole pairs."""
    jobs = [Job(path, name, seed) for seed in comparison.seeds for name in comparison.names]
    return [job for job in jobs if summary_of(job, comparison) is None or damaged(job.folder, _READ) != []]


def summary_of(job: Job, comparison: Comparison) -> Row | None:
    """`summary.json` of a run that is over, else None."""
    return finished_summary(job.folder, comparison.experiments[job.name].rounds)


def processes(plan: Plan, num_cpus: int | None, jobs: int) -> int:
    """How many runs go on at once: as many as there are cores for their threads, or GPUs; 1 without Ray."""
    if find_spec("ray") is None or plan.engine == "ray" or num_cpus == 1:
        return 1
    cores = num_cpus or os.cpu_count() or 1
    places = cores // plan.threads if plan.device == "cpu" else torch.cuda.device_count()
    return max(1, min(places, jobs))


def one_by_one(jobs: Sequence[Job], view: View, check: Callable[[], None]) -> Iterator[tuple[Job, str | None]]:
    """In this process."""
    for job in jobs:
        check()
        view.began(job)
        yield (
            job,
            run_job(
                job, RunCallbacks(between_clients=check, row=partial(view.row, job), activity=partial(view.doing, job))
            ),
        )


def run_job(job: Job, callbacks: RunCallbacks) -> str | None:
    """Runs, or goes on with, one run. Returns why it failed; the traceback is in `error.txt`.

    Args:
        callbacks: are called as it goes, but not what concerns all runs.
    """
    try:
        wait_until_free(job.folder)
        experiment = recorded(job.path, job.name)
        threads = (experiment.plan and experiment.plan.threads) or 1
        callbacks = replace(callbacks, notice=lambda line: None)  # it is said once, of all runs
        with threadpool_limits(threads):  # NumPy's and scikit-learn's, too: sums depend on their number
            run(experiment.for_seed(job.seed), job.folder, callbacks, mode="resume")
    except Exception as error:  # whatever a user's net or data raise: the other runs go on
        text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        _write_traceback(job.folder, error)
        return text
    (job.folder / "error.txt").unlink(missing_ok=True)
    return None


def _write_traceback(folder: Path, error: Exception) -> None:
    lines = "".join(traceback.format_exception(error)).encode()
    with suppress(OSError, InputError):  # the disk may be full
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "error.txt", lambda file: file.write(lines))
