"""Means over seeds, paired differences with their intervals, and the cost of reaching a target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import bootstrap

Row = Mapping[str, Any]
ACCURACY = "test/weighted_accuracy"
LEVEL, RESAMPLES, SEED = 0.95, 9999, 0


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
class Difference:
    """Of two algorithms, seed by seed.

    Args:
        mean: of the differences; None where no seed has both.
        low, high: the interval; None with fewer than two pairs.
        pairs: seeds that have both.
    """

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0


def spread(values: Sequence[float | None]) -> Spread:
    """Mean and standard deviation."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Spread()
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None)


def paired_difference(mine: Mapping[int, float | None], first: Mapping[int, float | None]) -> Difference:
    """Mean of mine minus first over the seeds that have both, with a 95 % bootstrap interval.

    Seeds are drawn with replacement, pairs stay together; the interval is between the percentiles of 9,999 means
    (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3), under a fixed seed of its own.

    Args:
        mine, first: a figure by seed; None = not known.
    """
    gains = []
    for seed in sorted(mine.keys() & first.keys()):
        a, b = mine[seed], first[seed]
        if a is not None and b is not None:
            gains.append(a - b)
    if not gains:
        return Difference()
    if len(gains) == 1:
        return Difference(gains[0], pairs=1)
    found = bootstrap(
        (np.array(gains),), np.mean, confidence_level=LEVEL, n_resamples=RESAMPLES, method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval  # fmt: skip
    return Difference(fmean(gains), float(found.low), float(found.high), len(gains))


def common_target(finals: Sequence[float | None]) -> float | None:
    """The lowest accuracy that a run ends with, rounded down to three decimals: every run reaches it."""
    known = [value for value in finals if value is not None]
    return floor(min(known) * 1000) / 1000 if known else None


def cost_of(rows: Sequence[Row], target: float | None) -> tuple[int, float] | None:
    """Rounds and MiB until the test accuracy reaches a target for the first time; None where it never does.

    Rounds in which some clients have no model yet do not count: only the others are scored in them.

    Args:
        rows: of `metrics.csv`.
        target: None = nobody asks.
    """
    for row in rows if target is not None else ():
        accuracy = row[ACCURACY]
        if accuracy is not None and target is not None and accuracy >= target and not row["clusters/unobserved"]:
            return int(row["round"]), float(row["traffic/mib"])
    return None
