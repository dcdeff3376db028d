"""What a study maximises, or minimises: a validation figure, never a test figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

from lit_cfl.columns import CHOOSABLE, higher_is_better
from lit_cfl.config_errors import nearest
from lit_cfl.errors import InputError
from lit_cfl.experiment import Prepared
from lit_cfl.scores import CLASSIFIER

DEFAULT = "val/weighted_accuracy"
TRAFFIC = "traffic/mib"  # decides ties
_NO_LOSS_IS_HIGHER = 1e9
_VALIDATION = tuple(name for name in CHOOSABLE if name.startswith("val/"))


@dataclass(frozen=True)
class Objective:
    """A metric and its better side.

    Args:
        metric: a `val/...` column of `metrics.csv`; lower is better for a loss and a deviation, higher for all else.
    """

    metric: str = DEFAULT

    def __post_init__(self) -> None:
        if self.metric.startswith("test/"):
            raise InputError(
                f"metric is {self.metric!r}, but a study on test data would report how well it was fitted to them; "
                f"use val/{self.metric[5:]}: the test figures of the best trial are read once, at the end"
            )
        if self.metric not in _VALIDATION:
            raise InputError(
                f"metric is {self.metric!r}{nearest(self.metric, _VALIDATION)}; "
                f"a study is judged by one of {', '.join(_VALIDATION)}"
            )

    @property
    def mode(self) -> str:
        """`max` or `min`, as Ray Tune says it."""
        return "max" if higher_is_better(self.metric, CLASSIFIER) else "min"

    @property
    def worst(self) -> float:
        """What a trial that failed counts as."""
        return _NO_LOSS_IS_HIGHER if self.mode == "min" else 0.0

    def reached(self, value: float, target: float) -> bool:
        """Whether a value is as good as the target."""
        return value <= target if self.mode == "min" else value >= target

    def best(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """The best row that has the metric; ties go to lower traffic, then to the earlier one."""
        sign = 1.0 if self.mode == "min" else -1.0
        known = [row for row in rows if row.get(self.metric) is not None and isfinite(row[self.metric])]
        return min(known, key=lambda row: (sign * row[self.metric], row[TRAFFIC]), default=None)


def mean_over_seeds(values: Sequence[float | None]) -> float | None:
    """The mean; None where a seed has no value."""
    known = [value for value in values if value is not None]
    return fmean(known) if values and len(known) == len(values) else None


def require_validation(prepared: Prepared) -> None:
    """Raises InputError where the data have nothing that a study may choose by."""
    if not prepared.data.validation.sizes.any():
        raise InputError(
            "the base's data have no validation part, and test data must not choose anything; "
            "set data.validation, for example to 0.25"
        )
