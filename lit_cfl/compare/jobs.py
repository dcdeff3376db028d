"""One run of a comparison, or of several experiments: its files, and how it is run."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment, content_for_processes
from lit_cfl.metric_names import Row
from lit_cfl.runs.resume import read_finished_summary
from lit_cfl.runs.run import RunCallbacks, run
from lit_cfl.storage.atomic_writes import name_write_errors
from lit_cfl.storage.config_file import stored_config, write_config
from lit_cfl.storage.digests import find_changed
from lit_cfl.storage.error_file import ERROR_FILE, write_error
from lit_cfl.storage.lock import wait_until_free

_READ = ("summary.json", "metrics.csv", "clients.csv")  # files of each run that a comparison reads


@dataclass(frozen=True)
class Job:
    """One of several runs, in `<path>/<name>/seed-<seed>`; `<path>/<name>/config.yaml` describes its experiment.

    Args:
        path: Directory of all experiments.
        name: Name of the experiment.
        seed: Seed of the run.
        rounds: Rounds of the run.
    """

    path: Path
    name: str
    seed: int
    rounds: int = field(compare=False)

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self.path / self.name / f"seed-{self.seed}"

    @property
    def summary(self) -> Row | None:
        """Content of `summary.json`; None if the run has not finished."""
        return read_finished_summary(self.folder, self.rounds)

    @property
    def is_whole(self) -> bool:
        """Whether the run has finished and its tables are undamaged."""
        return self.summary is not None and find_changed(self.folder, _READ) == []

    def __str__(self) -> str:
        return f"{self.name} seed {self.seed}"


def write_experiment(folder: Path, experiment: Experiment) -> None:
    """Writes an experiment's configuration into its folder. Raises InputError if the experiment was made in Python."""
    content = content_for_processes(experiment)
    with name_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, content)


def read_experiment(folder: Path) -> Experiment:
    """Reads an experiment from its folder. Raises InputError if the file is missing, damaged or of another format."""
    file = folder / "config.yaml"
    if not file.is_file():
        raise InputError(f"{file} is missing; put the original back, or start another comparison")
    stored_config(folder)  # refuses a run that is damaged, or of another format
    return parse_run(["--config", str(file)], prog="lit-cfl compare", opened=folder.parent).experiment


def run_job(job: Job, callbacks: RunCallbacks, built: Experiment | None = None) -> str | None:
    """Runs or resumes one job. Returns the reason if it failed; the traceback is in `error.txt`.

    Args:
        job: Job to run.
        callbacks: Callbacks of the run; its notices are dropped, as they concern all runs.
        built: The job's experiment; None = it is read from its file.
    """
    try:
        wait_until_free(job.folder)
        experiment = built or read_experiment(job.path / job.name)
        threads = (experiment.plan and experiment.plan.threads) or 1
        callbacks = replace(callbacks, notice=lambda line: None)
        with threadpool_limits(threads):  # also limits NumPy and scikit-learn, whose sums depend on it
            run(experiment.for_seed(job.seed), job.folder, callbacks, mode="resume")
        (job.folder / ERROR_FILE).unlink(missing_ok=True)
    except Exception as error:  # a user's net or data may raise anything: the other runs continue
        return write_error(job.folder, error)
    return None
