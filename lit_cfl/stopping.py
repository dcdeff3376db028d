"""When a run ends before its last round. Test metrics can never decide it."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from lit_cfl.columns import CHOOSABLE, LOWER_IS_BETTER
from lit_cfl.errors import InputError


@dataclass(frozen=True)
class StopRule:
    """Early stopping.

    Args:
        metric: a `val/...` or `train/...` column of `metrics.csv`; lower is better for a loss, the
            discrepancy and the deviation, higher for all else.
        patience: stop after so many evaluations without a better value; None = never.
        target: stop once the metric is this good; None = never.
        max_minutes: stop at the first evaluation after so much time; None = never. Not to be repeated exactly.
    """

    metric: str = "val/weighted_accuracy"
    patience: int | None = None
    target: float | None = None
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        require_choosable(self.metric)
        if self.patience is not None and self.patience < 1:
            raise InputError(f"stop.patience is {self.patience}; it must be 1 or more, or null for never")
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise InputError(f"stop.max_minutes is {self.max_minutes}; it must be above 0, or null for never")

    def reason(self, rows: Sequence[dict[str, Any]], seconds: float) -> str | None:
        """Why to stop now, or None.

        Args:
            rows: of `metrics.csv`, up to now.
            seconds: since the start of the run.

        Raises:
            InputError: the run does not report the metric.
        """
        if rows and rows[0].get(self.metric) is None:
            raise InputError(f"stop.metric is {self.metric!r}, which this algorithm and data do not report")
        sign = -1.0 if self.metric.endswith(LOWER_IS_BETTER) else 1.0
        values = [sign * row[self.metric] for row in rows if row.get(self.metric) is not None]
        best = max(range(len(values)), key=values.__getitem__, default=0)  # the first of equals
        if self.target is not None and values and values[-1] >= sign * self.target:
            return f"{self.metric} reached {self.target}"
        if self.patience is not None and len(values) - 1 - best >= self.patience:
            return f"{self.metric} has not improved in {self.patience} evaluations"
        if self.max_minutes is not None and seconds >= 60 * self.max_minutes:
            return f"{self.max_minutes} minutes are over"
        return None


def require_choosable(metric: str) -> None:
    """Raises InputError for a metric that must not choose anything, or is none."""
    if metric.startswith("test/"):
        raise InputError(f"{metric!r} cannot choose anything: test data only report; use val/{metric[5:]}")
    if metric not in CHOOSABLE:
        close = get_close_matches(metric, CHOOSABLE, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise InputError(f"{metric!r} is no metric to choose by{hint}. There are: {', '.join(CHOOSABLE)}")
