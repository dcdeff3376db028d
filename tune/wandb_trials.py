"""Makes whole what W&B has of trials that were stopped early: their process may have ended before W&B had begun."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from lit_cfl.runs.run_directory import RunDirectory
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tracking import Trackers, Tracking
from lit_cfl.tracking.offline import last_kept_round


def complete(trials: Sequence[Path]) -> None:
    """Gives W&B the rows that it lacks of trials that run no more."""
    for trial in trials:
        for path in _runs(trial):
            _complete(path)


def _runs(trial: Path) -> Iterator[Path]:
    """The run directories of a trial: its own, or with several seeds one a seed."""
    for metrics in sorted([*trial.glob("metrics.csv"), *trial.glob("seed-*/metrics.csv")]):
        yield metrics.parent


def _complete(path: Path) -> None:
    rows, run_id = read_table(path / "metrics.csv"), RunDirectory(path).run_id
    if not rows or last_kept_round(path / "wandb", run_id, rows[-1]["round"]) >= rows[-1]["round"]:
        return
    config = yaml.safe_load((path / "config.yaml").read_text())
    tracking = Tracking(**(config["tracking"] | {"loggers": []}))
    Trackers(tracking, config["name"], path, config, run_id, rows).finish("success")
