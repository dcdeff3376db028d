"""Tests times and sizes of a run under a test clock: a round takes ten seconds, an evaluation one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from digits_experiment import digits

from lit_cfl.algorithms import CFL, FedAvg
from lit_cfl.early_stopping import StopRule
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.runs import recorder
from lit_cfl.runs.run import run
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tracking.options import Tracking

TIMES = ("training", "evaluation", "elapsed")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    def taking(seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            now[0] += seconds
            return work(*arguments, **options)

        return timed

    monkeypatch.setattr(recorder, "monotonic", lambda: now[0])
    monkeypatch.setattr(recorder, "evaluate", taking(1.0, recorder.evaluate))
    monkeypatch.setattr(FedAvg, "round", taking(10.0, FedAvg.round))


def seconds(path: Path) -> list[tuple[float, ...]]:
    """Returns, for each row, the round and the seconds of training, of evaluation, and since the start."""
    return [
        (row["round"], *(row[f"time/{name}_seconds"] for name in TIMES)) for row in read_table(path / "metrics.csv")
    ]


def test_times_are_since_the_last_evaluation_and_a_resume_adds_to_the_earlier_ones(tmp_path: Path):
    stop = StopRule(max_minutes=1)
    run(digits(algorithm=FedAvg(), rounds=3, stop=stop), tmp_path / "run")
    assert seconds(tmp_path / "run") == [(1, 10, 1, 11), (2, 10, 1, 22), (3, 10, 1, 33)]
    longer = run(digits(algorithm=FedAvg(), rounds=9, stop=stop), tmp_path / "run", mode="resume").summary
    assert seconds(tmp_path / "run")[3:] == [(4, 10, 1, 44), (5, 10, 1, 55), (6, 10, 1, 66)]
    assert (longer["stopped"], longer["time/elapsed_seconds"]) == ("1 minutes have passed", 66)


def test_rounds_that_are_not_evaluated_count_in_the_next_row(tmp_path: Path):
    run(digits(algorithm=FedAvg(), rounds=5, evaluation=EvaluationPlan(every=2)), tmp_path / "run")
    assert seconds(tmp_path / "run") == [(2, 20, 1, 21), (4, 20, 1, 42), (5, 10, 1, 53)]


def test_a_model_of_float64_is_twice_the_traffic_and_a_round_has_its_own(tmp_path: Path):
    size = (64 * 10 + 10) * 4 / 2**20  # MiB of MCLR, sent to and from five clients per round
    for precision, factor in (("32-true", 1), ("64-true", 2)):
        path = run(digits(algorithm=FedAvg(), rounds=3, precision=precision), tmp_path / precision).path
        rows = [(row["traffic/mib"], row["traffic/round_mib"]) for row in read_table(path / "metrics.csv")]
        assert rows == [pytest.approx((10 * factor * size * k, 10 * factor * size)) for k in (1, 2, 3)]


def test_the_summary_has_the_silhouette_of_the_last_comparison(tmp_path: Path):
    splitting = CFL(eps1=100.0, eps2=1e-9, warmup_rounds=0)
    experiment = digits(algorithm=splitting, rounds=4, cohort_size=12, tracking=Tracking(snapshots_every=1))
    run(experiment, tmp_path / "run")
    known = [row["clusters/silhouette"] for row in read_table(tmp_path / "run" / "metrics.csv")]
    known = [value for value in known if value is not None]
    assert len(set(known)) > 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["clusters/silhouette"] == known[-1] != known[0]
