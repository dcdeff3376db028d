"""Tests the objective of a study."""

import pytest

from lit_cfl.errors import InputError
from lit_cfl.scores import Score
from lit_cfl.tune.objective import Objective


def test_lower_is_better_for_losses_and_deviations_alone():
    modes = {name: Objective(f"val/{name}").mode for name in ("weighted_accuracy", "loss", "std_accuracy")}
    assert modes == {"weighted_accuracy": "max", "loss": "min", "std_accuracy": "min"}
    assert Objective("val/loss").is_reached(0.3, 0.3)
    assert not Objective().is_reached(0.3, 0.31)


def test_a_score_is_judged_in_its_own_direction():
    error, gain = (Objective.of(None, (Score("figure", up),)) for up in (False, True))
    assert error.metric == "val/weighted_figure"
    assert (error.mode, gain.mode) == ("min", "max")
    rows = [{"id": k, error.metric: value, "traffic/mib": 1.0} for k, value in enumerate([-2.0, -5.0, 3.0])]
    assert (error.best(rows)["id"], gain.best(rows)["id"]) == (1, 2)
    assert (error.is_reached(2.0, 2.5), gain.is_reached(2.0, 2.5)) == (True, False)
    with pytest.raises(InputError, match=r"metric is 'val/weighted_accuracy'.*one of val/weighted_figure, "):
        Objective.of("val/weighted_accuracy", error.scores)


def test_ties_go_to_lower_traffic_then_to_the_earlier_trial():
    rows = [
        {"id": 0, "val/weighted_accuracy": 0.8, "traffic/mib": 9.0},
        {"id": 1, "val/weighted_accuracy": 0.9, "traffic/mib": 5.0},
        {"id": 2, "val/weighted_accuracy": 0.9, "traffic/mib": 4.0},
        {"id": 3, "val/weighted_accuracy": 0.9, "traffic/mib": 4.0},
        {"id": 4, "val/weighted_accuracy": float("nan"), "traffic/mib": 0.0},
        {"id": 5, "val/weighted_accuracy": None, "traffic/mib": 0.0},
    ]
    best = Objective().best(rows)
    assert best is not None
    assert best["id"] == 2
    assert Objective().best(rows[4:]) is None


def test_a_second_objective_is_traffic_and_low():
    two = Objective("val/loss", second="traffic/mib")
    assert (two.metrics, two.directions) == (["val/loss", "traffic/mib"], ["minimize", "minimize"])
    assert Objective(second="traffic/mib").directions == ["maximize", "minimize"]
    assert Objective().directions == ["maximize"]
