"""Runs what is missing, and records every run that ends."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from benchmarks.reproduction.ledger import Ledger, results_version
from benchmarks.reproduction.plan import PlannedRun, expected_seconds, told_time
from benchmarks.reproduction.scores import run_curve, run_scores
from lit_cfl.activity import Activity
from lit_cfl.compare.command import run_jobs
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.jobs import CompareJob
from lit_cfl.engines.choose_plan import found_device
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import Row
from lit_cfl.progress import Screen
from lit_cfl.progress.live import Display
from lit_cfl.storage.config_file import stored_config, write_config


class LedgerRecorder(Display):
    """Records every run that ends, and passes on to a display what there is to show.

    Args:
        name: of the table.
        ledger: as it is now.
        work: folder of the run directories.
        screen: of the command.
        recorded: called with the ledger after every run; writes what follows from it, and says how much is done.
        curves: whether the curve of a run is kept, too.
    """

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        work: Path,
        screen: Screen,
        recorded: Callable[[Ledger], str],
        curves: bool = True,
    ) -> None:
        super().__init__(screen.out)
        self.name, self.ledger, self.work, self.screen = name, ledger, work, screen
        self.recorded, self.curves = recorded, curves
        self.jobs: dict[str, tuple[CompareJob, PlannedRun]] = {}  # those that have not ended, by the title in a display
        self.display = Display(screen.out)

    def run(
        self, todo: Sequence[PlannedRun], device: str | None, cores: int | None, check: Callable[[], None]
    ) -> dict[str, str]:
        """Runs what is missing; returns why runs failed, by their names."""
        if not todo:
            return {}
        jobs = [self._job(run, device) for run in todo]
        self.jobs = {str(job): (job, run) for job, run in zip(jobs, todo, strict=True)}
        titled = {title: run for title, (_, run) in self.jobs.items()}
        experiments = {job.name: _planned(run, device) for job, run in self.jobs.values()}
        with self.screen.display(len(todo), 0) as self.display:
            failed = run_jobs(jobs, Comparison(self.name, experiments, [0]), cores, self, check)
        return {str(titled[str(job)]): error for job, error in failed.items()}

    def _job(self, run: PlannedRun, device: str | None) -> CompareJob:
        """The run as a job, with its configuration written where the job reads it.

        The folder's name has the version of the results and the device that was asked for: a run that is stale, or goes
        on elsewhere, begins anew.
        """
        asked = "" if device is None else f"-{device.replace(':', '')}"
        folder = self.work / f"{run.key}-{results_version(_algorithm(run))}{asked}"
        job = CompareJob(folder.resolve(), run.setting.slug, run.seed)
        entry = folder / job.name
        entry.mkdir(parents=True, exist_ok=True)
        config = dict(run.experiment.described()) | {"pictures": {"formats": []}, "plan": vars(_plan(run))}
        write_config(entry, config | ({} if device is None else {"device": device}))
        return job

    def started(self, title: str, completed: int, rounds: int) -> None:
        self.display.started(title, completed, rounds)

    def activity(self, title: str, activity: Activity) -> None:
        self.display.activity(title, activity)

    def row(self, title: str, row: Row) -> None:
        self.display.row(title, row)

    def ended(self, title: str, outcome: str | None = None, failed: bool = False) -> None:
        job, run = self.jobs.pop(title)
        if not failed:
            curve = run_curve(job.folder) if self.curves else None
            self.ledger = self.ledger.with_run(_ledger_row(run, job.folder), curve)
            done = self.recorded(self.ledger)
            left = told_time(expected_seconds(run, self.ledger) for _, run in self.jobs.values())
            outcome = f"{outcome or ''}  {done}, {left} left".lstrip()
        self.display.ended(title, outcome, failed)


def _planned(run: PlannedRun, device: str | None) -> Experiment:
    """The experiment with the device that it will find: the number of runs at once depends on it."""
    plan = _plan(run)
    return replace(
        run.experiment, plan=replace(plan, device=plan.device or found_device(device or run.experiment.device))
    )


def _plan(run: PlannedRun) -> PlanOptions:
    """The experiment's plan, in one thread unless it says otherwise: runs go on side by side."""
    plan = run.experiment.plan or PlanOptions()
    return replace(plan, threads=plan.threads or 1)


def _ledger_row(run: PlannedRun, folder: Path) -> Row:
    scores = run_scores(folder)
    plan = (stored_config(folder) or {})["plan"]
    algorithm = _algorithm(run)
    return scores | {
        "run": run.key,
        "seed": run.seed,
        "algorithm": algorithm,
        "results_version": results_version(algorithm),
        "version": version("lit-cfl"),
        "commit": _commit(),
        "device": plan["device"],
        "plan": plan,
        "command": run.setting.command(run.seed),
    }


def _algorithm(run: PlannedRun) -> str:
    return type(run.experiment.algorithm).__name__


def _commit() -> str:
    """The commit of the checkout that the code is in; empty without one."""
    git = shutil.which("git")
    if git is None:
        return ""
    words = [git, "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
