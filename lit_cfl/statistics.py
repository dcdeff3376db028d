"""Statistics over several seeds and several data sets.

Over seeds: means, deviations, and 95 % intervals by Student's t, which are valid for three seeds, too. Over data sets:
Friedman's test and Nemenyi's critical difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from math import isfinite, sqrt
from statistics import covariance, fmean, stdev

import numpy as np
from scipy.stats import friedmanchisquare, nct, norm, rankdata, studentized_range
from scipy.stats import t as student

from lit_cfl.errors import InputError

__all__ = ["Interval", "Ranking", "critical_difference", "friedman", "interval", "paired_difference"]

LEVEL = 0.95
_POWER = 0.8


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its confidence interval.

    Args:
        mean: Mean; None without seeds, or if it is unknown for one.
        margin: Half the interval; None with fewer than two seeds.
        count: Number of seeds.
        deviation: Standard deviation of a sample (n - 1); None with fewer than two seeds.
    """

    mean: float | None = None
    margin: float | None = None
    count: int = 0
    deviation: float | None = None

    @property
    def low(self) -> float | None:
        """The lower end of the interval."""
        return None if self.mean is None or self.margin is None else self.mean - self.margin

    @property
    def high(self) -> float | None:
        """The upper end of the interval."""
        return None if self.mean is None or self.margin is None else self.mean + self.margin

    def __str__(self) -> str:
        mean = "-" if self.mean is None else f"{self.mean:.4f}"
        return mean if self.margin is None else f"{mean} ± {self.margin:.4f}"


def interval(values: Sequence[float | None]) -> Interval:
    """Computes the mean with its 95 % confidence interval, as `scipy.stats.ttest_1samp` does.

    Args:
        values: Value of each seed; if one is unknown, None, so is the interval.
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Interval()
    if len(known) == 1:
        return Interval(fmean(known), None, 1)
    deviation = stdev(known)
    return Interval(fmean(known), _quantile(len(known)) * deviation / sqrt(len(known)), len(known), deviation)


def _quantile(count: int) -> float:
    """Returns the quantile of Student's t that bounds 95 % intervals of means of this many values."""
    return float(student.ppf((1 + LEVEL) / 2, count - 1))


def paired_difference(mine: Mapping[int, float | None], first: Mapping[int, float | None]) -> Interval:
    """Computes the mean of `mine` minus `first` over their common seeds, with its 95 % interval.

    Args:
        mine, first: Values by seed; None = unknown.
    """
    pairs = ((mine[seed], first[seed]) for seed in sorted(mine.keys() & first.keys()))
    return interval([a - b for a, b in pairs if a is not None and b is not None])


def p_value(found: Interval) -> float:
    """Computes the p value of a mean of 0, as `scipy.stats.ttest_1samp` does; 1 without an interval."""
    if found.mean is None or found.margin is None:
        return 1.0
    if found.margin == 0:
        return float(found.mean == 0)
    return float(2 * student.sf(abs(found.mean) / found.margin * _quantile(found.count), found.count - 1))


def seeds_needed(difference: float, deviation: float) -> int:
    """Computes the seeds that a two-sided paired t test at 5 % needs to find a difference with a power of 0.8.

    By the noncentral t distribution (Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988), without the
    negligible chance of a significant difference in the wrong direction.

    Args:
        difference: True mean difference, above 0.
        deviation: Standard deviation of the paired differences over seeds.
    """
    effect = min(difference / deviation, 50.0) if deviation else 50.0  # two seeds tell this effect
    fewest = int(((norm.ppf((1 + LEVEL) / 2) + norm.ppf(_POWER)) / effect) ** 2)  # if the deviation were known
    numbers = count(max(2, fewest))
    return next(n for n in numbers if nct.sf(_quantile(n), n - 1, effect * sqrt(n)) >= _POWER)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p values for the number of tests (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    found = accumulate((min(1.0, (len(order) - k) * p_values[i]) for k, i in enumerate(order)), max)
    return [value for _, value in sorted(zip(order, found, strict=True))]


def ratio_of_means(part: Sequence[float], whole: Sequence[float]) -> tuple[float, float, float] | None:
    """Computes the ratio of two means over the same seeds, with its 95 % interval by Fieller's theorem.

    The interval has the ratios r for which the mean of part - r * whole cannot be told from 0 by Student's t (Fieller,
    Journal of the Royal Statistical Society B 16, 1954). It has ends only if the mean of `whole` can be told from 0.

    Returns:
        The ratio, the lower and the upper end; None if the mean of `whole` cannot be told from 0.
    """
    if len(whole) < 2:
        return None
    factor = _quantile(len(whole)) ** 2 / len(whole)
    pairs = ((whole, whole), (part, whole), (part, part))
    a, b, c = (fmean(x) * fmean(y) - factor * covariance(x, y) for x, y in pairs)
    if a <= 0:
        return None
    root = sqrt(max(0.0, b * b - a * c))  # the ends are the zeros of a r^2 - 2 b r + c
    return fmean(part) / fmean(whole), (b - root) / a, (b + root) / a


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean rank over data sets, and the significant differences between them.

    Args:
        mean_ranks: Mean ranks of each method, 1 = best on every data set; the best method first. Methods that tie
            share the mean of their ranks.
        data_sets: Number of data sets.
        statistic: Friedman's chi-square with k - 1 degrees of freedom, corrected for ties.
        p_value: P value of the hypothesis that all methods are equal.
        critical_difference: Nemenyi's critical difference at 5 %: methods whose mean ranks differ by more differ
            significantly.
    """

    mean_ranks: Mapping[str, float]
    data_sets: int
    statistic: float
    p_value: float
    critical_difference: float

    def differ(self, one: str, other: str) -> bool:
        """Returns whether Nemenyi's test separates two methods; valid only if `p_value` is below 0.05."""
        return abs(self.mean_ranks[one] - self.mean_ranks[other]) > self.critical_difference

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The largest groups of methods without significant differences: the bars of the diagram."""
        names = list(self.mean_ranks)
        ends = [sum(not self.differ(first, other) for other in names[i:]) + i for i, first in enumerate(names)]
        starts = [0, *(i for i, (before, end) in enumerate(pairwise(ends), 1) if end > before)]
        return [tuple(names[i : ends[i]]) for i in starts if ends[i] > i + 1]


def critical_difference(methods: int, data_sets: int) -> float:
    """Computes Nemenyi's critical difference of mean ranks at 5 % (Demsar, JMLR 7, 2006, Section 3.2.2)."""
    quantile = studentized_range.ppf(LEVEL, methods, np.inf) / sqrt(2)
    return float(quantile * sqrt(methods * (methods + 1) / (6 * data_sets)))


def friedman(scores: Mapping[str, Mapping[str, float]], higher_is_better: bool = True) -> Ranking:
    """Ranks methods over data sets by Friedman's test, as Demsar (JMLR 7, 2006) recommends.

    A score is one figure of a method on a data set, such as the mean over seeds: seeds of one data set are not
    independent, so they do not count as data sets.

    Args:
        scores: Scores of each method, by data set: `scores[data_set][method]`.
        higher_is_better: False for losses and errors.

    Raises:
        InputError: fewer than three methods, or a method without a score on a data set.
    """
    tables = {data: dict(row) for data, row in scores.items()}
    names = list(dict.fromkeys(name for row in tables.values() for name in row))
    if len(names) < 3:
        raise InputError(
            f"friedman needs three or more methods, but got {', '.join(names) or 'none'}; give more, or use "
            "paired_difference for two"
        )
    for data, row in tables.items():
        for name in names:
            value = row.get(name)
            if value is None or not isfinite(value):
                raise InputError(f"{name} has the score {value} on {data}; friedman needs a number for each")
    sign = -1 if higher_is_better else 1
    values = np.array([[sign * float(row[name]) for name in names] for row in tables.values()])
    ranks = rankdata(values, axis=1).mean(0)
    alike = bool((values == values[:, :1]).all())  # scipy would divide by 0
    test = (0.0, 1.0) if alike else friedmanchisquare(*values.T)
    ordered = sorted(zip(names, ranks.tolist(), strict=True), key=lambda pair: pair[1])
    difference = critical_difference(len(names), len(tables))
    return Ranking(dict(ordered), len(tables), float(test[0]), float(test[1]), difference)
