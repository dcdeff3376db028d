"""Figures of several seeds: means, deviations, and 95 % intervals by Student's t, which hold with three seeds, too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from scipy.stats import t as student

__all__ = ["Interval", "Spread", "interval", "paired_difference", "spread"]

LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """Of one figure over seeds.

    Args:
        mean: None where a run does not know the figure, or there is none.
        deviation: standard deviation of a sample (n - 1); None with fewer than two.
    """

    mean: float | None = None
    deviation: float | None = None


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its confidence interval.

    Args:
        mean: None where no seed has the figure.
        margin: half the interval; None with fewer than two seeds.
        count: Number of seeds.
    """

    mean: float | None = None
    margin: float | None = None
    count: int = 0

    @property
    def low(self) -> float | None:
        """The lower end."""
        return None if self.mean is None or self.margin is None else self.mean - self.margin

    @property
    def high(self) -> float | None:
        """The upper end."""
        return None if self.mean is None or self.margin is None else self.mean + self.margin

    def __str__(self) -> str:
        mean = "-" if self.mean is None else f"{self.mean:.4f}"
        return mean if self.margin is None else f"{mean} ± {self.margin:.4f}"


def spread(values: Sequence[float | None]) -> Spread:
    """Computes mean and standard deviation."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Spread()
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None)


def interval(values: Sequence[float]) -> Interval:
    """Computes the mean and its 95 % interval, that of `scipy.stats.ttest_1samp` (which warns of equal values)."""
    if len(values) < 2:
        return Interval(fmean(values) if values else None, None, len(values))
    quantile = float(student.ppf((1 + LEVEL) / 2, len(values) - 1))
    return Interval(fmean(values), quantile * stdev(values) / sqrt(len(values)), len(values))


def paired_difference(mine: Mapping[int, float | None], first: Mapping[int, float | None]) -> Interval:
    """Computes the mean of mine minus first over the seeds that have both, and its 95 % interval.

    Args:
        mine, first: a figure by seed; None = not known.
    """
    pairs = ((mine[seed], first[seed]) for seed in sorted(mine.keys() & first.keys()))
    return interval([a - b for a, b in pairs if a is not None and b is not None])
