"""The share of the gap between FedAvg and Oracle that an algorithm closes, by hand."""

from typing import Any

import pytest

from lit_cfl.compare.results import gaps_closed
from lit_cfl.scores import CLASSIFIER, Score

CLASSES = {"mine": "IFCA", "average": "FedAvg", "bound": "Oracle", "equal": "FedAvg"}
ACCURACIES = {"mine": (0.5, 0.75), "average": (0.25, 0.5), "bound": (0.75, 0.875), "equal": (0.0, 0.0)}


def runs(accuracies: dict[str, tuple[float | None, ...]], name: str = "accuracy") -> list[dict[str, Any]]:
    return [
        {"algorithm": algorithm, "seed": seed, f"test_{name}": value, "not_scored": 0}
        for algorithm, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


ROWS = [{"algorithm": name, "class": kind} for name, kind in CLASSES.items()]


def test_share_is_that_of_means_over_seeds_and_the_first_fedavg_counts():
    found = gaps_closed(ROWS, runs(ACCURACIES), CLASSIFIER[0])
    gap = (0.75 + 0.875 - 0.25 - 0.5) / 2
    assert found == {"mine": 0.25 / gap, "average": 0.0, "bound": 1.0, "equal": -0.375 / gap}


def test_only_seeds_count_under_which_all_three_score_everyone():
    some = runs(ACCURACIES | {"bound": (0.75, None)})
    assert gaps_closed(ROWS, some, CLASSIFIER[0])["mine"] == 0.5
    for run in some:
        run["not_scored"] = 3 if (run["algorithm"], run["seed"]) == ("average", 0) else 0
    assert gaps_closed(ROWS, some, CLASSIFIER[0]) == {}


def test_there_is_no_share_without_both_or_without_a_gap():
    assert gaps_closed(ROWS[:2], runs(ACCURACIES), CLASSIFIER[0]) == {}
    assert gaps_closed(ROWS, runs(ACCURACIES | {"bound": (0.25, 0.5)}), CLASSIFIER[0]) == {}
    lower = Score("error", higher_is_better=False)
    assert gaps_closed(ROWS, runs(ACCURACIES, "error"), lower) == {}
    errors = {name: tuple(1 - value for value in values) for name, values in ACCURACIES.items()}
    assert gaps_closed(ROWS, runs(errors, "error"), lower)["mine"] == pytest.approx(0.25 / 0.4375)
