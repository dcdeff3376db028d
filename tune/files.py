"""The files of a study: written when a trial has ended, and not only when all have."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic

from lit_cfl.metric_names import Row
from lit_cfl.tune.importance import importance
from lit_cfl.tune.outcome import Outcome
from lit_cfl.tune.pictures import draw, pareto_front
from lit_cfl.tune.prepared import TRIALS, Prepared
from lit_cfl.tune.record import FINISHED_STATUS
from lit_cfl.tune.results import trial_rows, write_best, write_front, write_trials
from lit_cfl.tune.trials import Trials

PICTURES, FRONT = "pictures", "front"  # folders of a study directory
_SHARE = 0.05  # of the time, that drawing may take while trials run


@dataclass
class Files:
    """Writes `trials.csv`, `best.yaml`, `front/` and the pictures.

    Args:
        prepared: the study.
        trials: its trials so far.
        path: its directory.
    """

    prepared: Prepared
    trials: Trials
    path: Path
    _ended: int = 0
    _drawn: float = -inf  # when the pictures were drawn last
    _took: float = 0.0  # seconds that this took

    def refresh(self) -> None:
        """Writes the files where a trial has finished since the last time; pictures only so often."""
        ended = sum(record.status == FINISHED_STATUS for record in self.trials.records.values())
        if ended == self._ended:
            return
        self._ended = ended
        self._write(pictures=monotonic() - self._drawn > self._took / _SHARE)

    def write(self) -> Outcome:
        """Writes all files."""
        return self._write(pictures=True)

    def _write(self, pictures: bool) -> Outcome:
        job, objective = self.prepared.job, self.prepared.job.objective
        rows = trial_rows(self.trials, job)
        trained = [row for row in rows if not row["repeats"]]
        finished = [row for row in trained if row["status"] == FINISHED_STATUS]
        front = pareto_front(finished, objective) if objective.second else []
        write_trials(self.path / "trials.csv", rows, job, [row["trial_id"] for row in front])
        best = objective.best(finished)
        if best is not None:
            write_best(self.path / "best.yaml", self.path / TRIALS / best["trial_id"], job, best)
        if objective.second:
            write_front(self.path / FRONT, self.path / TRIALS, job, front)
        shares = importance(trained, self.prepared.space, objective)
        if pictures:
            self._draw(trained, shares)
        return Outcome(self.path, rows, best, shares, None, objective=objective)

    def _draw(self, rows: Sequence[Row], shares: dict[str, float]) -> None:
        begun = monotonic()
        draw(self.path / PICTURES, rows, self.prepared.space, self.prepared.job.objective, shares)
        self._drawn = monotonic()
        self._took = self._drawn - begun
