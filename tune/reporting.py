"""What Ray Tune is told of a trial."""

import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from ray import tune as ray_tune

from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.runs.resume import finished_summary
from lit_cfl.runs.run import FinishedRun
from lit_cfl.tune.job import Job
from lit_cfl.tune.objective import TRAFFIC, mean_over_seeds
from lit_cfl.tune.replay import saved_copy

ROUNDS = "rounds"  # what schedulers count: rounds that were run
FINISHED = "finished"  # whether the trial ran to its own end
ERROR = "error"  # why it did not
SECONDS = "seconds"
_SECONDS_UNWATCHED = 1.0  # between reports that nobody judges by: each costs the trial 5 ms
_REPORTED = ("val/", "train/", "clusters/", "traffic/")  # test figures never reach the search


@dataclass
class Report:
    """Tells Ray Tune how a trial goes.

    The rounds of the first seed are reported one by one, so that a scheduler can stop a bad trial before its other
    seeds cost anything; without such a scheduler, no more than one a second. The last report is of all seeds.
    """

    job: Job
    path: Path
    _first_seed: bool = True
    _rounds: int = 0
    _last: dict[str, Any] = field(default_factory=dict)
    _told: float = -inf  # when Ray Tune was told of a round

    def begin(self, experiment: Experiment) -> None:
        self._rounds = experiment.rounds
        several = len(self.job.seeds) > 1
        first = self.path / f"seed-{self.job.seeds[0]}" if several else self.path
        done = first.exists() and finished_summary(first, experiment.rounds) is not None
        self._seeds_begun = 1 if done else 0

    def started(self, title: str, first: int, rounds: int, seed: int) -> None:
        self._seeds_begun += 1
        self._first_seed = self._seeds_begun == 1

    def row(self, row: Mapping[str, Any]) -> None:
        """A round is over. Raises InputError where it cannot give the metric."""
        if row.get(self.job.objective.metric) is None and row.get(self.job.objective.usual) is not None:
            raise self._never_reported()
        if not self._first_seed or row["round"] >= self._rounds or row.get(self.job.objective.metric) is None:
            return
        self._last = _reported(row) | {ROUNDS: row["round"], SECONDS: row["time/elapsed_seconds"]}
        if self.job.watched or monotonic() - self._told >= _SECONDS_UNWATCHED:
            self._told = monotonic()
            self._send(self._last | {FINISHED: False}, saved=self.job.pauses)

    def end(self, finished: FinishedRun) -> None:
        """All seeds are over."""
        metric = self.job.objective.metric
        parts = [part.summary for part in finished.seeds or [finished]]
        mean = mean_over_seeds([part.get(metric) for part in parts])
        if mean is None:
            raise self._never_reported()
        each = {f"seed {part['seed']}": part[metric] for part in parts}
        whole = {
            metric: mean,
            TRAFFIC: mean_over_seeds([part[TRAFFIC] for part in parts]),
            ROUNDS: max(part["round"] for part in parts),
            SECONDS: sum(part["time/elapsed_seconds"] for part in parts),
        }
        self._send(_reported(parts[0]) | each | whole | {FINISHED: True})

    def _never_reported(self) -> InputError:
        metric, usual = self.job.objective.metric, self.job.objective.usual
        return InputError(f"{metric} was never reported: this algorithm and these data do not give it; use {usual}")

    def failed(self, error: Exception) -> None:
        """The trial cannot go on."""
        text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):  # no room for the story
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "error.txt").write_text("".join(traceback.format_exception(error)))
        objective = self.job.objective
        self._send({ROUNDS: 0} | self._last | {objective.metric: objective.worst, FINISHED: False, ERROR: text})

    def _send(self, metrics: dict[str, Any], saved: bool = False) -> None:
        """Reports; `saved`: with a checkpoint, which is a mark only where no other trial may go on from it."""
        if not saved or (self.job.evolves and not (self.path / "checkpoint.pt").exists()):
            ray_tune.report(metrics)
            return
        with TemporaryDirectory(prefix="lit-cfl-") as folder:
            if self.job.evolves:
                saved_copy(self.path, Path(folder))
            else:
                (Path(folder) / "trial.txt").write_text(str(self.path))
            ray_tune.report(metrics, checkpoint=ray_tune.Checkpoint.from_directory(folder))


def _reported(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith(_REPORTED) and value is not None}
