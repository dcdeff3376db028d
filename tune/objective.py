"""The objective of a study, maximised or minimised: a validation metric, never a test metric."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from lit_cfl.errors import InputError
from lit_cfl.experiment import PreparedRun
from lit_cfl.metric_names import Row, choosable_columns, higher_is_better, main_column, suggest_column
from lit_cfl.scores import CLASSIFIER, Scores

TRAFFIC = "traffic/mib"  # column that decides ties


@dataclass(frozen=True)
class Objective:
    """The validation metric that a study optimises, and optionally the traffic as a second objective.

    Args:
        metric: Column `val/...` of `metrics.csv`; lower is better for losses and deviations, and for scores that
            declare it.
        scores: Scores of the task.
        second: Second objective, `traffic/mib`, lower is better; None = none.
    """

    metric: str = main_column(CLASSIFIER)
    scores: Scores = CLASSIFIER
    second: str | None = None

    def __post_init__(self) -> None:
        known = tuple(name for name in choosable_columns(self.scores) if name.startswith("val/"))
        if self.metric not in known:
            raise InputError(
                f"metric is {self.metric!r}{suggest_column(self.metric, known)}; give one of {', '.join(known)}"
            )
        if self.second not in (None, TRAFFIC):
            raise InputError(f"second_metric is {self.second!r}; only {TRAFFIC} can be a second objective")

    @classmethod
    def of(cls, metric: str | None, scores: Scores, second: str | None = None) -> "Objective":
        """Makes the objective of a study; its metric is the task's main score by default."""
        return cls(main_column(scores) if metric is None else metric, scores, second)

    @property
    def metrics(self) -> list[str]:
        """The optimised metrics."""
        return [self.metric] if self.second is None else [self.metric, self.second]

    @property
    def directions(self) -> list[Literal["minimize", "maximize"]]:
        """The directions of the optimised metrics, in Optuna's terms."""
        first: Literal["minimize", "maximize"] = "minimize" if self.mode == "min" else "maximize"
        return [first] if self.second is None else [first, "minimize"]

    @property
    def mode(self) -> str:
        """`max` or `min`, in Ray Tune's terms."""
        return "max" if higher_is_better(self.metric, self.scores) else "min"

    @property
    def is_global(self) -> bool:
        """Whether the metric belongs to a global model, which only some algorithms have."""
        return self.metric in {f"val/global_{score.name}" for score in self.scores}

    @property
    def usual(self) -> str:
        """The task's main validation metric, which every trial reports."""
        return main_column(self.scores)

    def is_reached(self, value: float, target: float) -> bool:
        """Returns whether a value is at least as good as the target."""
        return value <= target if self.mode == "min" else value >= target

    def best(self, rows: Sequence[Row]) -> Row | None:
        """Returns the row with the best finite metric; ties go to lower traffic, then to the earlier trial.

        Args:
            rows: Rows of trials by number.
        """
        sign = 1.0 if self.mode == "min" else -1.0
        known = [row for row in rows if row.get(self.metric) is not None and isfinite(row[self.metric])]
        return min(known, key=lambda row: (sign * row[self.metric], row[TRAFFIC]), default=None)

    def front(self, rows: Sequence[Row]) -> list[Row]:
        """Returns the Pareto-optimal rows in metric and traffic, lowest traffic first."""
        sign = 1.0 if self.mode == "min" else -1.0
        front: list[Row] = []
        for row in sorted(rows, key=lambda row: (row[TRAFFIC], sign * row[self.metric])):
            if not front or sign * row[self.metric] < sign * front[-1][self.metric]:
                front.append(row)
        return front


def require_validation(prepared: PreparedRun) -> None:
    """Raises InputError if the data have no validation part, on which a study must be based."""
    if not prepared.data.validation.sizes.any():
        raise InputError(
            "the base's data have no validation part, and test data must not choose anything; "
            "set data.validation, for example to 0.25"
        )
