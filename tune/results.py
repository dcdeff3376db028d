"""What a study writes: `trials.csv`, a row a trial, and `best.yaml`, a whole experiment."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from lit_cfl.metric_names import Row
from lit_cfl.storage.atomic_writes import write_atomically
from lit_cfl.storage.csv_log import blank_nan
from lit_cfl.tune.job import Job
from lit_cfl.tune.objective import TRAFFIC
from lit_cfl.tune.record import FAILED_STATUS, RUNNING, STOPPED_STATUS, TrialRecord
from lit_cfl.tune.reporting import ERROR, ROUNDS, SECONDS
from lit_cfl.tune.trials import Trials


def trial_rows(trials: Trials, job: Job) -> list[Row]:
    """A row a trial, by number."""
    return [_row(trials, record, job) for _, record in sorted(trials.records.items())]


def _row(trials: Trials, record: TrialRecord, job: Job) -> Row:
    result = trials.result_of(record)
    told, metric = trials.last_told(result), job.objective.metric
    status = STOPPED_STATUS if result.status == RUNNING else result.status
    row: Row = {"trial_id": record.trial_id, "status": status, "rounds": int(told.get(ROUNDS, 0))}
    row |= {"origin": record.origin, "repeats": "" if record.repeats is None else result.trial_id}
    row |= {"seeds": len(job.seeds), "seconds": told.get(SECONDS), TRAFFIC: told.get(TRAFFIC)}
    row |= record.values
    row |= {f"seed {seed}": told.get(f"seed {seed}") for seed in job.seeds}
    return row | {metric: None if status == FAILED_STATUS else told.get(metric), ERROR: told.get(ERROR)}


def columns(job: Job) -> list[str]:
    """Of `trials.csv`."""
    several = ["algorithm"] if job.space.algorithms else []
    parameters = [p.key for p in job.space.parameters]
    seeds = [f"seed {seed}" for seed in job.seeds]
    first = ["trial_id", "status", "origin", "repeats", "rounds", "seeds", "seconds", TRAFFIC]
    front = ["front"] if job.objective.second else []
    return [*first, *several, *parameters, *seeds, job.objective.metric, *front, ERROR]


def write_trials(path: Path, rows: Sequence[Row], job: Job, front: Sequence[str] = ()) -> None:
    """Writes `trials.csv`; `front`: names of the trials that none beats in both objectives."""
    text = StringIO(newline="")
    writer = csv.DictWriter(text, columns(job), lineterminator="\n", restval="", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        marked = row | {"front": "yes" if row["trial_id"] in front else ""}
        writer.writerow({key: blank_nan(value) for key, value in marked.items()})
    write_atomically(path, lambda file: file.write(text.getvalue().encode()))


def write_best(path: Path, trial: Path, job: Job, row: Row) -> dict[str, Any]:
    """Writes `best.yaml`. Returns its content."""
    metric = job.objective.metric
    return _write_config(path, trial, f"The best trial of {job.study}", f"{metric} again: {row[metric]:.4f}")


def write_front(folder: Path, trials: Path, job: Job, rows: Sequence[Row]) -> None:
    """Writes an experiment for each trial that none beats in both objectives, and removes those of others."""
    folder.mkdir(exist_ok=True)
    metric = job.objective.metric
    for row in rows:
        expected = f"{metric} {row[metric]:.4f} at {row[TRAFFIC]:.3f} {TRAFFIC} again"
        name = row["trial_id"]
        _write_config(folder / f"{name}.yaml", trials / name, f"On the Pareto front of {job.study}", expected)
    for file in folder.glob("*.yaml"):
        if file.stem not in [row["trial_id"] for row in rows]:
            file.unlink()


def _write_config(path: Path, trial: Path, what: str, expected: str) -> dict[str, Any]:
    """Writes a trial's configuration with the plan that it ran under. Returns its content."""
    content: dict[str, Any] = yaml.safe_load((trial / "config.yaml").read_text())
    seeds = content["seeds"]
    if len(seeds) > 1:
        content["plan"] = yaml.safe_load((trial / f"seed-{seeds[0]}" / "config.yaml").read_text())["plan"]
    text = f"# {what}, {trial.name}; expect its {expected}\n"
    text += yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_atomically(path, lambda file: file.write(text.encode()))
    return content
