"""Runs missing experiments, and records every finished run."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from experiments.files import Row, read_yaml
from experiments.ledger import Ledger, read_results_version
from experiments.plan import PlannedRun, estimate_seconds, format_time
from experiments.scores import read_curve, read_scores
from lit_cfl import run_many

TRIAL = "trial"  # prefix of the variant of a search's trial
DIVERGED = "diverged in round"  # part of the error message of a run whose loss became infinite or nan
NO_SCORES: Row = {"rounds": 1, "seconds": 0.0}


@dataclass
class LedgerRecorder:
    """Runs planned runs, and records each one when it has finished.

    Args:
        table: Name of the table.
        ledger: Ledger of finished runs.
        work: Folder of the run directories.
        write: Function called with the ledger after every run, which writes pages and returns the progress.
        curves: True to keep the curves of runs.
    """

    table: str
    ledger: Ledger
    work: Path
    write: Callable[[Ledger], str]
    curves: bool = True

    def run(self, todo: Sequence[PlannedRun], device: str | None, cores: int | None) -> dict[PlannedRun, str]:
        """Runs the planned runs; returns the errors of those that failed.

        A search's trial that diverges is recorded without scores: it has been tried, and cannot be the best.
        """
        runs = {self._folder(run, device): run for run in todo}
        left = dict(runs)

        def ended(directory: Path) -> str:
            run = left.pop(directory.parent)
            curve = read_curve(directory) if self.curves else None
            self.ledger = self.ledger.with_run(make_ledger_row(run, directory), self.table, curve)
            done = self.write(self.ledger)
            return f"{done}, {format_time(estimate_seconds(run, self.ledger) for run in left.values())} left"

        words = ["--pictures.formats", "[]", *([] if device is None else ["--device", device])]
        experiments = {folder: run.setting.build(run.seed, words) for folder, run in runs.items()}
        failed = {runs[directory.parent]: error for directory, error in run_many(experiments, cores, ended).items()}
        for run in [
            run for run, error in failed.items() if run.setting.variant.startswith(TRIAL) and DIVERGED in error
        ]:
            self.ledger = self.ledger.with_run(identify(run) | NO_SCORES, self.table)
            del failed[run]
        return failed

    def _folder(self, run: PlannedRun, device: str | None) -> Path:
        """Returns the folder of a run.

        Its name contains the version of the results and the device, so that a stale run, or one resumed on another
        device, starts from scratch.
        """
        asked = "" if device is None else f"-{device.replace(':', '')}"
        return (self.work / f"{run.key}-{read_results_version(run.algorithm)}{asked}" / run.setting.slug).resolve()


def make_ledger_row(run: PlannedRun, directory: Path) -> Row:
    """Returns the row of `runs.csv` for a finished run."""
    plan = read_yaml(directory / "config.yaml")["plan"]
    environment = json.loads((directory / "environment.json").read_text("utf-8"))
    return (
        identify(run)
        | read_scores(directory)
        | {
            "device": plan["device"],
            "processor": environment.get("processor"),
            "torch": environment["packages"]["torch"],
            "plan": plan,
        }
    )


def identify(run: PlannedRun) -> Row:
    """Returns the columns of a run's row that are known before it runs."""
    return {
        "run": run.key,
        "seed": run.seed,
        "algorithm": run.algorithm,
        "results_version": read_results_version(run.algorithm),
        "version": version("lit-cfl"),
        "commit": _read_commit(),
        "command": run.setting.command(run.seed),
    }


def _read_commit() -> str:
    """Returns the commit of the code's checkout, or an empty string outside a checkout."""
    git = shutil.which("git")
    if git is None:
        return ""
    words = [git, "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
