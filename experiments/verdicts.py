"""Compares our numbers with a paper's by fixed rules, which give each cell one verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Literal

from experiments.cells import Cell
from experiments.files import Row
from lit_cfl.statistics import interval

Verdict = Literal["matches", "explained", "not reproduced", "not run", "no value"]
ACCURACY_POINTS = 1.5  # tolerance for accuracies, in percentage points
DISCREPANCY_SHARE = 0.1
VARIANCE_FACTOR = 1.5
ROUNDS_SHARE, ROUNDS_LEAST = 0.2, 1.0
EXPLAINING_SEEDS = 3
POPULATIONS = 5  # minimum number of populations if the paper drew its data without a seed
_ROUNDING = 1e-9  # tolerance, since 94.3 - 92.8 is not exactly 1.5 in floating point


@dataclass(frozen=True)
class Measured:
    """Our results for one setting: values by seed, and clusters.

    Args:
        values: Value of the cell's metric per seed; None if the run has none (85 % was never reached).
        last: Accuracy of the last round per seed, in percent.
        rounds: Number of rounds of every run.
        seconds: Total seconds of all runs.
        clusters: Mean number of clusters after the last round, over the seeds.
        ari: Mean adjusted Rand index with the true clusters, over the seeds; None if not recorded.
    """

    values: tuple[float | None, ...]
    last: tuple[float, ...]
    rounds: int
    seconds: float
    clusters: float
    ari: float | None

    @property
    def mean(self) -> float | None:
        """Returns the mean over the seeds; None if a run has no value."""
        return interval(self.values).mean

    @property
    def std(self) -> float | None:
        """Returns the standard deviation over the seeds (n - 1); None for fewer than two."""
        return interval(self.values).deviation


def summarise_runs(metric: str, rows: Sequence[Row]) -> Measured | None:
    """Summarises rows of `runs.csv` for a metric; returns None without rows."""
    if not rows:
        return None
    indices = [row["ari"] for row in rows]
    return Measured(
        tuple(row[metric] for row in rows),
        tuple(row["last_weighted_test_accuracy"] for row in rows),
        int(rows[0]["rounds"]),
        sum(float(row["seconds"]) for row in rows),
        fmean(row["num_clusters"] for row in rows),
        None if None in indices else fmean(indices),
    )


def agrees(metric: str, paper: float, ours: float | None) -> bool:
    """Returns whether our number matches the paper's, by the rule of its metric.

    * accuracies: within 1.5 percentage points;
    * the mean of the discrepancy: within 10 % of the paper's; its variance: within a factor of 1.5;
    * rounds to a target: within 20 % of the paper's, or within one round.
    """
    if ours is None:
        return False
    gap = abs(ours - paper) - _ROUNDING
    if metric == "discrepancy_mean":
        return gap <= DISCREPANCY_SHARE * paper
    if metric == "discrepancy_variance":
        return ours > 0 and max(ours / paper, paper / ours) - _ROUNDING <= VARIANCE_FACTOR
    if metric == "rounds_to_85":
        return gap <= max(ROUNDS_LEAST, ROUNDS_SHARE * paper)
    return gap <= ACCURACY_POINTS


def agrees_with_populations(paper: float, values: Sequence[float | None]) -> bool:
    """Returns whether the paper's number is plausible for one more population drawn like ours.

    This is so if it lies in the 95 % prediction interval: mean +- t * s * sqrt(1 + 1/n), with Student's t.

    Args:
        values: Our numbers, one per population; at least `POPULATIONS` of them.
    """
    known = [value for value in values if value is not None]
    if len(known) < max(POPULATIONS, len(values)):
        return False
    margin = interval(known).margin or 0.0
    return abs(fmean(known) - paper) <= margin * sqrt(len(known) + 1)


def judge_cell(
    cell: Cell, not_run: str | None, default: Measured | None, published: Measured | None, redraws: bool = False
) -> Verdict:
    """Judges a cell by the rules of this module.

    Args:
        cell: The paper's cell.
        not_run: Reason why it cannot be run; None if it can.
        default: Our numbers under the default options.
        published: Our numbers under the published code's options, which the table's file named before any run.
        redraws: True if each run has a separate population; then `POPULATIONS` of them are needed, and the rule is
            `agrees_with_populations`.

    Returns:
        `no value` if the paper's cell is empty; `not run` without numbers, or with too few populations; `matches` if
        the default agrees; `explained` if the published code's options agree on three seeds; else `not reproduced`.
    """
    if cell.value is None:
        return "no value"
    if not_run is not None or default is None or (redraws and len(default.values) < POPULATIONS):
        return "not run"
    if _agrees(cell, default, redraws):
        return "matches"
    if published is not None and len(published.values) >= EXPLAINING_SEEDS and _agrees(cell, published, redraws):
        return "explained"
    return "not reproduced"


def _agrees(cell: Cell, found: Measured, redraws: bool) -> bool:
    paper = cell.value or 0.0
    return agrees_with_populations(paper, found.values) if redraws else agrees(cell.metric, paper, found.mean)
