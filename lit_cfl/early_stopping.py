"""Early stopping of a run by a validation or training metric, never by a test metric."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from lit_cfl.errors import InputError, suggest_share
from lit_cfl.metric_names import choosable_columns, higher_is_better, main_column, suggest_column
from lit_cfl.options import ABOVE_0, FROM_1, bounded, require_options
from lit_cfl.scores import CLASSIFIER, Scores

_COMPARABLE = 0.9  # an earlier round counts only if it scored at least this share of the clients scored now


@dataclass(frozen=True)
class StopRule:
    """When to stop a run early.

    Args:
        metric: A `val/...` or `train/...` column of `metrics.csv`; None = `val/weighted_` of the task's first score.
            Lower is better for a loss, the discrepancy and deviations; each score defines its own direction.
        patience: Number of evaluations without a better value after which the run stops; None = never. Evaluations that
            scored less than 0.9 times as many clients as the present one do not count: at first few have a model.
        target: Value of the metric at which the run stops; None = never.
        max_minutes: Minutes after which the run stops at the next evaluation; None = never. Not exactly repeatable.
    """

    metric: str | None = None
    patience: int | None = bounded(None, FROM_1)
    target: float | None = None
    max_minutes: float | None = bounded(None, ABOVE_0)

    def __post_init__(self) -> None:
        require_options(self, "stop.")
        if self.metric is not None and self.metric.startswith("test/"):
            raise InputError(
                f"{self.metric!r} cannot be a criterion: test data are for reports only; use val/{self.metric[5:]}"
            )

    def metric_of(self, scores: Scores) -> str:
        """Returns the metric to watch for this task. Raises InputError if the metric or the target cannot be used."""
        metric = main_column(scores) if self.metric is None else self.metric
        choosable = choosable_columns(scores)
        if metric not in choosable:
            hint = suggest_column(metric, choosable)
            raise InputError(f"cannot choose by {metric!r}{hint}; give one of {', '.join(choosable)}")
        require_possible_target(metric, self.target, scores, "stop.target")
        return metric

    def reason(self, rows: Sequence[dict[str, Any]], seconds: float, scores: Scores = CLASSIFIER) -> str | None:
        """Returns the reason to stop now, or None.

        Args:
            rows: Rows of `metrics.csv` so far.
            seconds: Seconds since the start of the run.
            scores: Scores of the task.

        Raises:
            InputError: the run does not report the metric.
        """
        metric = self.metric_of(scores)
        split = metric.partition("/")[0]
        loss = f"{split}/loss"  # blank in rounds in which no client trained, or could be scored
        of_sets = [f"{split}/undefined_{score.name}" for score in scores if metric.endswith(f"_{score.name}")]
        complete = (row for row in rows if row.get(loss) is not None and not any(row.get(one) for one in of_sets))
        first = next((row for row in complete if isfinite(row[loss])), None)
        if first is not None and first.get(metric) is None:
            raise InputError(f"stop.metric is {metric!r}, which this algorithm and data do not report; give another")
        sign = 1.0 if higher_is_better(metric, scores) else -1.0
        known = [row for row in rows if row.get(metric) is not None]
        clients = [row.get("clients/evaluated", 0) for row in known]  # in early rounds, few clients have a model
        values = [
            sign * row[metric]
            for row, scored in zip(known, clients, strict=True)
            if metric.startswith("train/") or scored >= _COMPARABLE * clients[-1]
        ]
        best = max(range(len(values)), key=values.__getitem__, default=0)  # ties: the first round
        if self.target is not None and values and values[-1] >= sign * self.target:
            return f"{metric} reached {self.target}"
        if self.patience is not None and len(values) - 1 - best >= self.patience:
            return f"{metric} has not improved in {self.patience} evaluations"
        if self.max_minutes is not None and seconds >= 60 * self.max_minutes:
            return f"{self.max_minutes} minutes have passed"
        return None


def require_possible_target(metric: str, target: float | None, scores: Scores, option: str) -> None:
    """Raises InputError for a target outside of (0, 1] if the metric is a share, such as accuracy.

    Args:
        option: Option that gives the target, for the message.
    """
    means = ("weighted", "mean", "worst10", "global", "tuned", "mean_tuned", "worst10_tuned")
    of_share = metric in {f"val/{mean}_{score.name}" for mean in means for score in scores if score.is_share}
    if target is not None and of_share and not 0 < target <= 1:
        raise InputError(
            f"{option} is {target:g}, but {metric} is a share; give a number above 0 and at most 1"
            f"{suggest_share(target)}"
        )
