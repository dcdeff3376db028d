"""The cost of reaching a target."""

from collections.abc import Sequence
from math import ceil, floor

from lit_cfl.metric_names import Row, main_column
from lit_cfl.scores import CLASSIFIER, Score, Scores


def common_target(finals: Sequence[float | None], score: Score = CLASSIFIER[0]) -> float | None:
    """The worst figure that a run ends with, rounded to three decimals so that every run reaches it."""
    known = [value for value in finals if value is not None]
    if not known:
        return None
    return floor(min(known) * 1000) / 1000 if score.higher_is_better else ceil(max(known) * 1000) / 1000


def cost_of(rows: Sequence[Row], target: float | None, scores: Scores = CLASSIFIER) -> tuple[int, float] | None:
    """Rounds and MiB until the first score on test data reaches a target for the first time; None where it never does.

    Rounds in which some clients have no model yet do not count: only the others are scored in them.

    Args:
        rows: of `metrics.csv`.
        target: None = nobody asks.
        scores: of the task.
    """
    column = main_column(scores, "test")
    for row in rows if target is not None else ():
        value = row[column]
        if value is None or target is None or row["clusters/unobserved"]:
            continue
        if value == target or scores[0].better(value, target):
            return int(row["round"]), float(row["traffic/mib"])
    return None
