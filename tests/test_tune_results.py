"""What a study writes of its trials, and what it says of each."""

import csv
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from studies import ALGORITHMS, base

from lit_cfl.tune import reporting
from lit_cfl.tune.job import Job
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.results import trial_rows, write_best, write_trials
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.telling import outcome

METRIC = "val/weighted_accuracy"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("s", base(), parse_space({"algorithm": ALGORITHMS}), [4, 2], Objective(), tmp_path / "trials")


def begun(job: Job, name: str, second: int, file: str = "environment.json") -> None:
    """A trial's directory, as if it had been begun at that time."""
    path = job.folder / name / file
    path.parent.mkdir(parents=True)
    path.touch()
    os.utime(path, (second, second))


def result(name: str, metrics: dict[str, Any] | None, error: Exception | None = None, **config: Any) -> SimpleNamespace:
    return SimpleNamespace(path=f"/records/{name}", metrics=metrics, error=error, config=config)


def told(rounds: int, **more: Any) -> dict[str, Any]:
    return {"rounds": rounds, "seconds": 1.5, "traffic/mib": 2.0, METRIC: 0.5} | more


@pytest.mark.parametrize(("watched", "expected"), [(True, [1, 2, 3, 4, 5]), (False, [1, 3, 4])])
def test_rounds_that_no_scheduler_judges_by_are_told_once_a_second(
    watched: bool, expected: list[int], job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock, sent = [0.0], []
    monkeypatch.setattr(reporting, "monotonic", lambda: clock[0])
    monkeypatch.setattr(reporting.ray_tune, "report", lambda metrics: sent.append(metrics["rounds"]))
    report = reporting.Report(replace(job, watched=watched), tmp_path, _rounds=9)
    for number, clock[0] in enumerate([5.0, 5.9, 6.0, 7.5, 8.0], 1):
        report.row({"round": number, METRIC: 0.5, "time/elapsed_seconds": 1.0})
    assert sent == expected
    report.failed(RuntimeError("gone"))
    assert sent[-1] == 5  # the last round counts, told or not


def test_each_trial_has_a_row_in_the_order_of_their_beginnings(job: Job, tmp_path: Path):
    begun(job, "late", 300)
    begun(job, "early", 100, "seed-4/environment.json")
    begun(job, "middle", 200)
    ifca = {"algorithm": "IFCA", "IFCA.num_clusters": 2}
    rows = trial_rows(
        [
            result("never", None, **ifca),
            result("late", told(3), RuntimeError("gone"), **ifca),
            result("early", told(4, finished=True) | {"seed 4": 0.4, "seed 2": 0.6}, **ifca, **{"FedGroup.eta_g": 0.1}),
            result("middle", told(2, error="too warm"), algorithm="FedGroup"),
        ],
        job,
    )
    write_trials(tmp_path / "trials.csv", rows, job)
    with (tmp_path / "trials.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [(row["trial_id"], row["status"], row["rounds"]) for row in written] == [
        ("early", "finished", "4"), ("middle", "failed", "2"), ("late", "failed", "3"), ("never", "stopped", "0"),
    ]  # fmt: skip
    assert written[0] == {
        "trial_id": "early", "status": "finished", "rounds": "4", "seeds": "2", "seconds": "1.5", "traffic/mib": "2.0",
        "algorithm": "IFCA", "IFCA.num_clusters": "2", "FedGroup.num_clusters": "", "FedGroup.eta_g": "",
        "seed 4": "0.4", "seed 2": "0.6", METRIC: "0.5", "error": "",
    }  # fmt: skip
    assert [row["error"] for row in written] == ["", "too warm", "RuntimeError: its worker died", ""]
    assert [row[METRIC] for row in written] == ["0.5", "", "", ""]


def test_best_yaml_has_the_plan_that_the_seeds_ran_under(job: Job, tmp_path: Path):
    trial = tmp_path / "trials" / "a1"
    (trial / "seed-4").mkdir(parents=True)
    (trial / "config.yaml").write_text(yaml.safe_dump(base(seeds=[4, 2], plan={"threads": 1, "lanes": None})))
    (trial / "seed-4" / "config.yaml").write_text(yaml.safe_dump(base(plan={"threads": 1, "lanes": 3})))
    content = write_best(tmp_path / "best.yaml", trial, job, {METRIC: 0.87654})
    text = (tmp_path / "best.yaml").read_text()
    assert text.splitlines()[0] == f"# The best trial of s, a1; expect its {METRIC} again: 0.8765"
    assert yaml.safe_load(text) == content == base(seeds=[4, 2], plan={"threads": 1, "lanes": 3})


def test_how_a_trial_ended_is_said_in_a_line():
    assert outcome(told(4, finished=True), METRIC, failed=False) == f"finished: {METRIC} 0.5000"
    assert outcome(told(3, finished=False), METRIC, failed=False) == f"stopped after 3 rounds: {METRIC} 0.5000"
    assert outcome(told(3, error="too warm\nand"), METRIC, failed=False) == "failed after 3 rounds: too warm"
    assert outcome(told(3), METRIC, failed=True) == "failed after 3 rounds: its worker died"
    assert outcome({}, METRIC, failed=True) == "failed after 0 rounds: its worker died"
