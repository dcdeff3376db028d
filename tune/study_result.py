"""The results of a study as files: `trials.csv` (one row per trial), `best.yaml`, `front/`, the pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from lit_cfl.metric_names import Row
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.statistics import Interval
from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.config_file import as_yaml
from lit_cfl.storage.csv_log import read_frame, write_rows
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.check import PreparedStudy
from lit_cfl.tune.objective import TRAFFIC, Objective
from lit_cfl.tune.pictures import draw, importance
from lit_cfl.tune.record import (
    DEFAULT,
    ERROR,
    FAILED_STATUS,
    FINISHED_STATUS,
    FRONT,
    PICTURES,
    ROUNDS,
    RUNNING,
    SECONDS,
    STOPPED_STATUS,
    TRIALS,
    TrialRecord,
)
from lit_cfl.tune.repeats import Repeated
from lit_cfl.tune.trial import TrialJob
from lit_cfl.tune.trials import Trials

if TYPE_CHECKING:
    from pandas import DataFrame


def trial_rows(trials: Trials, job: TrialJob) -> list[Row]:
    """Makes the rows of `trials.csv`: one per trial, in the order of their numbers."""
    return [_row(trials, record, job) for _, record in sorted(trials.records.items())]


def _row(trials: Trials, record: TrialRecord, job: TrialJob) -> Row:
    result = trials.result_of(record)
    last_result, metric = trials.last_figures(result), job.objective.metric
    status = STOPPED_STATUS if result.status == RUNNING else result.status
    row: Row = {"trial_id": record.trial_id, "status": status, "rounds": int(last_result.get(ROUNDS, 0))}
    row |= {"origin": record.origin, "repeats": "" if record.repeats is None else result.trial_id}
    row |= {"seeds": len(job.seeds), "seconds": last_result.get(SECONDS), TRAFFIC: last_result.get(TRAFFIC)}
    row |= record.values
    row |= {f"seed {seed}": last_result.get(f"seed {seed}") for seed in job.seeds}
    return row | {metric: None if status == FAILED_STATUS else last_result.get(metric), ERROR: last_result.get(ERROR)}


def columns(job: TrialJob) -> list[str]:
    """Lists the columns of `trials.csv`."""
    seeds = [f"seed {seed}" for seed in job.seeds]
    first = ["trial_id", "status", "origin", "repeats", "rounds", "seeds", "seconds", TRAFFIC]
    front = ["front"] if job.objective.second else []
    return [*first, *job.study.search_space.distributions(), *seeds, job.objective.metric, *front, ERROR]


def write_trials(path: Path, rows: Sequence[Row], job: TrialJob, front: Sequence[str] = ()) -> None:
    """Writes `trials.csv`, in which the trials named in `front` are marked as Pareto-optimal."""
    write_rows(path, columns(job), [row | {"front": "yes" if row["trial_id"] in front else ""} for row in rows])


def write_best(path: Path, trial: Path, job: TrialJob, row: Row) -> None:
    """Writes the best trial's experiment as `best.yaml`."""
    metric = job.objective.metric
    note = f"expect the same {metric}, {row[metric]:.4f}"
    _write_config(path, trial, f"The best trial of {job.study.name}, {trial.name}; {note}")


def write_front(folder: Path, trials: Path, job: TrialJob, rows: Sequence[Row]) -> None:
    """Writes the experiments of the Pareto-optimal trials into a folder, and removes those of other trials."""
    folder.mkdir(exist_ok=True)
    metric = job.objective.metric
    for row in rows:
        name = row["trial_id"]
        note = f"expect the same {metric}, {row[metric]:.4f}, at {row[TRAFFIC]:.3f} {TRAFFIC}"
        _write_config(
            folder / f"{name}.yaml", trials / name, f"On the Pareto front of {job.study.name}, {name}; {note}"
        )
    for file in folder.glob("*.yaml"):
        if file.stem not in [row["trial_id"] for row in rows]:
            file.unlink()


def _write_config(path: Path, trial: Path, comment: str) -> None:
    """Writes a trial's configuration, with its plan, below a comment."""
    content: dict[str, Any] = parse_yaml((trial / "config.yaml").read_text("utf-8"))
    seeds = content["seeds"]
    if len(seeds) > 1:
        content["plan"] = parse_yaml((trial / f"seed-{seeds[0]}" / "config.yaml").read_text("utf-8"))["plan"]
    write_text(path, f"# {comment}\n" + as_yaml(content))


@dataclass(frozen=True)
class StudyResult:
    """The results of a study.

    Args:
        path: Directory of the study, with `best.yaml`, `trials/` and `pictures/`.
        rows: Rows of `trials.csv`.
        best: Row of the best finished trial, or None if no trial ran to its end.
        importance: Importance of each parameter, highest first; empty with few trials.
        repeated: Results of the best and of the default setting on new seeds, or None.
        to_upload: Command that uploads offline W&B runs, or None.
        objective: Objective by which the trials were compared.
    """

    path: Path
    rows: list[Row] = field(repr=False)
    best: Row | None
    importance: dict[str, float]
    repeated: Repeated | None
    to_upload: str | None = None
    objective: Objective = Objective()

    @property
    def gain(self) -> Interval | None:
        """Gain of the best setting over the default, in the test metric on new seeds; None if unknown."""
        return None if self.repeated is None else self.repeated.gain

    @cached_property
    def trials(self) -> "DataFrame":
        """One row per trial, with the columns of `trials.csv`; NaN = unknown."""
        return read_frame(self.path / "trials.csv", "trial_id", "repeats")

    @cached_property
    def repeats(self) -> "DataFrame":
        """Results of the best and the default setting on new seeds: one row per setting and metric."""
        from pandas import DataFrame

        rows = [
            [setting, metric, one.mean, one.low, one.high, one.count]
            for setting, figures in (self.repeated.figures.items() if self.repeated else ())
            for metric, one in figures.items()
        ]
        return DataFrame(rows, columns=["setting", "metric", "mean", "low", "high", "seeds"])


_SHARE = 0.05  # maximum share of time for drawing while trials run


@dataclass
class StudyFiles:
    """Writes `trials.csv`, `best.yaml`, `front/` and the pictures.

    Args:
        prepared: Checked study.
        trials: Trials so far.
        path: Directory of the study.
    """

    prepared: PreparedStudy
    trials: Trials
    path: Path
    _ended: int = 0
    _drawn: float = -inf  # time of the last drawing
    _took: float = 0.0  # duration of the last drawing in seconds
    _guard: DrawingGuard = field(default_factory=DrawingGuard)

    def refresh(self) -> None:
        """Writes the files if a trial has finished since the last call; pictures less often."""
        ended = sum(record.status == FINISHED_STATUS for record in self.trials.records.values())
        if ended == self._ended:
            return
        self._ended = ended
        self._write(pictures=monotonic() - self._drawn > self._took / _SHARE)

    def write(self) -> StudyResult:
        """Writes all files."""
        return self._write(pictures=True)

    def _write(self, pictures: bool) -> StudyResult:
        job, objective = self.prepared.job, self.prepared.job.objective
        rows = trial_rows(self.trials, job)
        trained = [row for row in rows if not row["repeats"]]
        finished = [row for row in trained if row["status"] == FINISHED_STATUS]
        front = objective.front(finished) if objective.second else []
        write_trials(self.path / "trials.csv", rows, job, [row["trial_id"] for row in front])
        best = objective.best(finished)
        if best is not None:
            write_best(self.path / "best.yaml", self.path / TRIALS / best["trial_id"], job, best)
        if objective.second:
            write_front(self.path / FRONT, self.path / TRIALS, job, front)
        inside = [row for row in trained if row["origin"] != DEFAULT or self.prepared.first[0].inside]
        shares = self._guard("importance", lambda: importance(inside, job.study.search_space, objective)) or {}
        if pictures:
            self._draw(trained, shares)
        return StudyResult(self.path, rows, best, shares, None, objective=objective)

    def _draw(self, rows: Sequence[Row], shares: dict[str, float]) -> None:
        begun, job = monotonic(), self.prepared.job
        draw(
            self.path / PICTURES, rows, list(job.study.search_space.distributions()), job.objective, shares, self._guard
        )
        self._drawn = monotonic()
        self._took = self._drawn - begun
