"""Tests the scores that are read from a run against values worked out by hand from its table and summary."""

import json
from pathlib import Path

import pytest

from experiments.scores import CURVE, SCORES, read_curve, read_scores

# Round 1 has no cluster yet and scores nobody. Round 3 reaches 85 % exactly, round 4 is the best, round 5 the last.
METRICS = """\
round,test/weighted_accuracy,train/loss,train/discrepancy,traffic/models_down,traffic/models_up,clusters/count
1,,2.5,,30,10,1
2,0.5,1.23456789,1.0,60,20,3
3,0.85,0.5,2.0,90,30,3
4,0.9,0.25,4.0,120,40,2
5,0.6,0.125,7.0,150,50,2
"""
SUMMARY = {
    "round": 5,
    "time/elapsed_seconds": 12.5,
    "test/max_weighted_accuracy": 0.875,  # the best of the rounds that scored every client, not of all rounds
    "test/weighted_accuracy": 0.6,
    "test/mean_accuracy": 0.55,
    "test/global_accuracy": 0.45,
    "val/weighted_accuracy": 0.65,
    "test/worst10_accuracy": 0.125,
    "test/newcomers_accuracy": 0.35,
    "test/mean_tuned_accuracy": 0.7,
    "test/worst10_tuned_accuracy": 0.375,
    "val/tuned_accuracy": 0.725,
    "local/steps": 1200,
    "traffic/models_down": 150,
    "traffic/models_up": 50,
    "clusters/count": 2,
    "clusters/ari": 0.75,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "metrics.csv").write_text(METRICS)
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    return tmp_path


def test_every_score_is_that_of_its_definition(run: Path):
    scores = read_scores(run)
    assert scores == pytest.approx(
        {
            "max_weighted_test_accuracy": 87.5,
            "last_weighted_test_accuracy": 60.0,
            "accuracy_max": 90.0,
            "accuracy_median": (60.0 + 85.0) / 2,  # the median of 50, 60, 85 and 90
            "rounds_to_85": 3,
            "discrepancy_mean": (1 + 2 + 4 + 7) / 4,  # 3.5
            "discrepancy_variance": (2.5**2 + 1.5**2 + 0.5**2 + 3.5**2) / 4,  # divided by n, not n - 1
            "test_accuracy": 55.0,
            "global_accuracy": 45.0,
            "traffic": 150 + 50,
            "num_clusters": 2,
            "ari": 0.75,
            "validation_accuracy": 65.0,
            "worst10_accuracy": 12.5,
            "newcomers_accuracy": 35.0,
            "tuned_accuracy": 70.0,
            "worst10_tuned_accuracy": 37.5,
            "tuned_validation_accuracy": 72.5,
            "local_steps": 1200,
            "rounds": 5,
            "seconds": 12.5,
        }
    )
    assert set(scores) == {*SCORES, "rounds", "seconds"}


def test_a_score_that_a_run_lacks_is_unknown(run: Path):
    few = {key: SUMMARY[key] for key in ("round", "time/elapsed_seconds", "traffic/models_down", "traffic/models_up")}
    (run / "summary.json").write_text(json.dumps(few))
    (run / "metrics.csv").write_text(METRICS.partition("3,0.85")[0].replace("2,0.5", "2,0.849"))
    known = {name for name, value in read_scores(run).items() if value is not None}
    assert known == {
        *("rounds", "seconds", "traffic", "accuracy_max", "accuracy_median"),
        *("discrepancy_mean", "discrepancy_variance"),
    }


def test_curve_has_each_round_with_five_digits(run: Path):
    curve = read_curve(run)
    assert [tuple(row) for row in curve] == [CURVE] * 5
    assert list(curve[0].values()) == [1, None, 2.5, None, 30, 10, 1]
    assert list(curve[1].values()) == [2, 0.5, 1.2346, 1.0, 60, 20, 3]
