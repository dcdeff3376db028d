"""The runs of a comparison, and how one is run: in order or in Ray, with the same bits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from lit_cfl.compare.comparison import Comparison, recorded
from lit_cfl.engines.plan import Plan
from lit_cfl.metric_names import Row
from lit_cfl.progress import Display
from lit_cfl.runs.resume import read_finished_summary
from lit_cfl.runs.run import RunCallbacks, run
from lit_cfl.storage.digests import damaged
from lit_cfl.storage.error_file import ERROR_FILE, write_error
from lit_cfl.storage.lock import wait_until_free

_READ = ("summary.json", "metrics.csv", "clients.csv")  # files of each run that a comparison reads


@dataclass(frozen=True)
class CompareJob:
    """One run of a comparison: `<path>/<name>/seed-<seed>` is its run directory."""

    path: Path
    name: str
    seed: int

    @property
    def folder(self) -> Path:
        return self.path / self.name / f"seed-{self.seed}"

    def __str__(self) -> str:
        return f"{self.name} seed {self.seed}"


def jobs_of(comparison: Comparison, path: Path) -> list[CompareJob]:
    """Lists all runs, seed by seed, so that an interrupted comparison has complete pairs."""
    return [CompareJob(path, name, seed) for seed in comparison.seeds for name in comparison.names]


def unfinished(comparison: Comparison, path: Path) -> list[CompareJob]:
    """Lists the remaining runs."""
    jobs = jobs_of(comparison, path)
    return [job for job in jobs if summary_of(job, comparison) is None or damaged(job.folder, _READ) != []]


def summary_of(job: CompareJob, comparison: Comparison) -> Row | None:
    """Reads `summary.json` of a finished run; None if the run has not finished."""
    return read_finished_summary(job.folder, comparison.experiments[job.name].rounds)


def processes(plan: Plan, num_cpus: int | None, jobs: int) -> int:
    """Returns how many runs go at once: as many as Ray has cores for their threads, or GPUs; 1 without Ray."""
    if find_spec("ray") is None or plan.workers or num_cpus == 1 or jobs < 2:
        return 1
    from lit_cfl.engines.ray import cluster  # imports Ray

    room = cluster.count_room(plan.threads)
    cores = room.places if num_cpus is None else num_cpus // plan.threads
    return max(1, min((cores if plan.device == "cpu" else room.gpus) or 1, jobs))


def one_by_one(
    jobs: Sequence[CompareJob], rounds: Mapping[str, int], display: Display, check: Callable[[], None]
) -> Iterator[tuple[CompareJob, str | None]]:
    """Runs the jobs in this process. Yields each job, and the reason if it failed.

    Args:
        jobs: Jobs to run, in this order.
        rounds: Rounds of each algorithm, by its name.
        display: shows their progress.
        check: called before each client; may raise to end the comparison.
    """
    for job in jobs:
        check()
        display.started(str(job), 0, rounds[job.name])
        callbacks = RunCallbacks(
            between_clients=check, row=partial(display.row, str(job)), activity=partial(display.activity, str(job))
        )
        yield job, run_job(job, callbacks)


def run_job(job: CompareJob, callbacks: RunCallbacks) -> str | None:
    """Runs or resumes one job. Returns the reason if it failed; the traceback is in `error.txt`.

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
        (job.folder / ERROR_FILE).unlink(missing_ok=True)
    except Exception as error:  # a user's net or data may raise anything: the other runs continue
        return write_error(job.folder, error)
    return None
