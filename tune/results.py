"""What a study writes: `trials.csv`, a row a trial, and `best.yaml`, a whole experiment."""

import csv
from collections.abc import Sequence
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import yaml

from lit_cfl.checkpoint import write_atomically
from lit_cfl.tables import blank_nan
from lit_cfl.tune.job import Job
from lit_cfl.tune.objective import TRAFFIC
from lit_cfl.tune.reporting import ERROR, FINISHED, ROUNDS, SECONDS

Row = dict[str, Any]
FINISHED_STATUS, STOPPED_STATUS, FAILED_STATUS = "finished", "stopped", "failed"


def trial_rows(results: Any, job: Job) -> list[Row]:
    """A row a trial, in the order in which they were begun: what Ray Tune was told of each last."""
    return sorted((_row(result, job) for result in results), key=lambda row: _begun(job.folder / row["trial_id"]))


def _begun(trial: Path) -> float:
    """When a trial was begun; Ray itself forgets it when a study is resumed."""
    written = [*trial.glob("environment.json"), *trial.glob("seed-*/environment.json")]
    return min((file.stat().st_mtime for file in written), default=inf)


def _row(result: Any, job: Job) -> Row:
    told = result.metrics or {}
    error = told.get(ERROR) or (None if result.error is None else f"{type(result.error).__name__}: its worker died")
    status = FAILED_STATUS if error else FINISHED_STATUS if told.get(FINISHED) else STOPPED_STATUS
    metric = job.objective.metric
    row: Row = {"trial_id": Path(result.path).name, "status": status, "rounds": int(told.get(ROUNDS, 0))}
    row |= {"seeds": len(job.seeds), "seconds": told.get(SECONDS), TRAFFIC: told.get(TRAFFIC)}
    row |= job.space.values_of(result.config or {})
    row |= {f"seed {seed}": told.get(f"seed {seed}") for seed in job.seeds}
    return row | {metric: None if error else told.get(metric), ERROR: error}


def columns(job: Job) -> list[str]:
    """Of `trials.csv`."""
    several = ["algorithm"] if job.space.algorithms else []
    parameters = [p.key for p in job.space.parameters]
    seeds = [f"seed {seed}" for seed in job.seeds]
    first = ["trial_id", "status", "rounds", "seeds", "seconds", TRAFFIC]
    return [*first, *several, *parameters, *seeds, job.objective.metric, ERROR]


def write_trials(path: Path, rows: Sequence[Row], job: Job) -> None:
    """Writes `trials.csv`."""
    text = StringIO(newline="")
    writer = csv.DictWriter(text, columns(job), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({key: blank_nan(value) for key, value in row.items()} for row in rows)
    write_atomically(path, lambda file: file.write(text.getvalue().encode()))


def write_best(path: Path, trial: Path, job: Job, row: Row) -> dict[str, Any]:
    """Writes `best.yaml`: the trial's configuration with the plan that it ran under. Returns its content."""
    content: dict[str, Any] = yaml.safe_load((trial / "config.yaml").read_text())
    seeds = content["seeds"]
    if len(seeds) > 1:
        content["plan"] = yaml.safe_load((trial / f"seed-{seeds[0]}" / "config.yaml").read_text())["plan"]
    metric = job.objective.metric
    text = f"# The best trial of {job.study}, {trial.name}; expect its {metric} again: {row[metric]:.4f}\n"
    text += yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_atomically(path, lambda file: file.write(text.encode()))
    return content
