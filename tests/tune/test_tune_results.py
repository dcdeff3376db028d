"""Tests what a study writes and prints about its trials."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from studies import ALGORITHMS, base
from tune_trials import new_trials

from lit_cfl.config.variants import build
from lit_cfl.errors import InputError
from lit_cfl.runs.run import FinishedRun
from lit_cfl.tune import repeats, trial
from lit_cfl.tune.objective import TRAFFIC, Objective
from lit_cfl.tune.record import NUMBER
from lit_cfl.tune.study import Resources, Study
from lit_cfl.tune.study_result import StudyResult, trial_rows, write_best, write_front, write_trials
from lit_cfl.tune.trial import TrialJob
from lit_cfl.tune.trials import GivenSetting
from lit_cfl.tune.tuner import TrialSource, describe_end

METRIC = "val/weighted_accuracy"


@pytest.fixture
def job(tmp_path: Path) -> TrialJob:
    study = Study(base(), {"algorithm": ALGORITHMS}, "s", seeds=[4, 2])
    return TrialJob(study, Objective(), tmp_path / "trials")


def with_study(job: TrialJob, **changes: Any) -> TrialJob:
    return replace(job, study=replace(job.study, **changes))


def last_result(rounds: int, **more: Any) -> dict[str, Any]:
    return {"rounds": rounds, "seconds": 1.5, "traffic/mib": 2.0, METRIC: 0.5} | more


def test_null_as_a_choice_differs_from_a_parameter_that_a_trial_does_not_have(job: TrialJob, tmp_path: Path):
    job = with_study(job, space={"stop": {"choice": [None, {"class_path": "StopRule"}]}})
    rows = [{"trial_id": "0000", "stop": "null"}, {"trial_id": "0001"}]
    write_trials(tmp_path / "trials.csv", rows, job)
    found = StudyResult(tmp_path, rows, None, {}, None).trials["stop"]
    assert found[0] == "null"
    assert found.isna().tolist() == [False, True]


@pytest.mark.parametrize(("scheduler", "expected"), [(None, [1, 2, 3, 4, 5]), ("FIFOScheduler", [1, 3, 4])])
def test_rounds_that_no_scheduler_judges_by_are_reported_once_a_second(
    scheduler: str | None, expected: list[int], job: TrialJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock, sent = [0.0], []
    monkeypatch.setattr(trial, "monotonic", lambda: clock[0])
    monkeypatch.setattr(trial.ray_tune, "report", lambda metrics: sent.append(metrics["rounds"]))
    report = trial.TrialReport(with_study(job, scheduler=scheduler), tmp_path, _rounds=9)
    for number, clock[0] in enumerate([5.0, 5.9, 6.0, 7.5, 8.0], 1):
        report.row({"round": number, METRIC: 0.5, "time/elapsed_seconds": 1.0})
    assert sent == expected
    report.report_error(RuntimeError("gone"))
    assert sent[-1] == 5  # the last round is sent in any case


@pytest.mark.parametrize(
    ("gpus", "changes", "device"),
    [
        (0.0, {}, "cpu"),  # Ray does not hide GPUs from a worker that asks for none
        (0.25, {}, None),
        (0.0, {"engine": "ray"}, None),
        (0.0, {"plan": {"device": "cuda:0"}}, "cuda:0"),
        (0.0, {"device": "cuda"}, None),  # the device is set explicitly; a study checks it before it starts
    ],
)
def test_a_trial_without_a_share_of_a_gpu_trains_on_the_cpu(
    gpus: float, changes: dict[str, Any], device: str | None, job: TrialJob
):
    experiment = with_study(job, resources=Resources(gpus=gpus)).of_trial(build(base(**changes)), "0001")
    assert experiment.plan is not None
    assert experiment.plan.device == device
    assert experiment.to_dict()["plan"]["device"] == device


@pytest.mark.parametrize(("gpus", "expected"), [(0.25, [0.25]), (1.0, []), (2.0, []), (0.0, [])])
def test_trials_and_runs_on_new_seeds_hold_their_share_of_a_gpus_memory(
    gpus: float, expected: list[float], job: TrialJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    held: list[float] = []
    monkeypatch.setenv("TUNE_FUNCTION_THREAD_TIMEOUT_S", "60")  # a trial sets it, usually in a separate process
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", held.append)
    monkeypatch.setattr(trial.ray_tune, "report", lambda *_, **__: None)
    of_gpu = with_study(job, resources=Resources(gpus=gpus))
    trial.run_trial({NUMBER: 1, "no": "such option"}, of_gpu)
    assert held == expected
    with pytest.raises(InputError):
        repeats._summary({"no": "such option"}, "best", 1, tmp_path, of_gpu)
    assert held == expected * 2


def test_a_trial_of_several_seeds_reports_means_of_score_and_traffic_and_the_time_of_all(
    job: TrialJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(trial.ray_tune, "report", sent.append)
    parts = [
        {"seed": 4, METRIC: 0.25, TRAFFIC: 2.0, "round": 5, "time/elapsed_seconds": 7.0, "train/loss": 0.5},
        {"seed": 2, METRIC: 0.75, TRAFFIC: 4.0, "round": 3, "time/elapsed_seconds": 4.0, "train/loss": 1.5},
    ]
    means = {METRIC: 0.5, TRAFFIC: 3.0, "test/weighted_accuracy": 0.875}
    seeds = [FinishedRun(tmp_path, part) for part in parts]
    trial.TrialReport(job, tmp_path).end(FinishedRun(tmp_path, means, seeds=seeds))
    (whole,) = sent
    assert {key: whole[key] for key in (METRIC, TRAFFIC, "seed 4", "seed 2", "rounds", "seconds", "finished")} == {
        METRIC: 0.5,
        TRAFFIC: 3.0,
        "seed 4": 0.25,
        "seed 2": 0.75,
        "rounds": 5,
        "seconds": 11.0,
        "finished": True,
    }
    assert not [key for key in whole if key.startswith("test/")]


LOSS, GLOBAL = "val/loss", "val/global_accuracy"


@pytest.mark.parametrize(
    ("metric", "found", "said"),
    [
        (GLOBAL, {METRIC: 0.5, LOSS: 1.0}, "val/global_accuracy was never reported: .*; use val/weighted_accuracy"),
        (LOSS, {METRIC: 0.1}, "val/loss is blank in round 5 .seed 2.: the loss of a validation example is not finite"),
        ("val/std_accuracy", {METRIC: 0.1, LOSS: 2.0}, r"val/std_accuracy is blank in round 5 .* use val/weighted_acc"),
        (METRIC, {}, "val/weighted_accuracy is blank in round 5 .seed 2.: no client that was scored has validation"),
        (LOSS, {}, "val/loss is blank in round 5 .seed 2.: no client that was scored has validation examples"),
    ],
)
def test_a_trial_without_its_metric_says_why(
    metric: str, found: dict[str, float], said: str, job: TrialJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(trial.ray_tune, "report", sent.append)
    report = trial.TrialReport(replace(job, objective=Objective(metric)), tmp_path, _rounds=9)
    row = {"round": 1, "time/elapsed_seconds": 1.0} | found
    if metric == GLOBAL:  # no round will have this metric, so the trial ends at once
        with pytest.raises(InputError, match="was never reported"):
            report.row(row)
    else:
        report.row(row)
        report.row(row | {"round": 2, metric: 0.25})  # a later round may have the metric
        assert [line[metric] for line in sent] == [0.25]
    known = {"seed": 4, "round": 5, TRAFFIC: 1.0, "time/elapsed_seconds": 1.0, metric: 0.5}
    seeds = [FinishedRun(tmp_path, known), FinishedRun(tmp_path, {"seed": 2, "round": 5} | found)]
    with pytest.raises(InputError, match=said):
        report.end(FinishedRun(tmp_path, {metric: None}, seeds=seeds))


def test_each_trial_has_a_row_by_number(job: TrialJob, tmp_path: Path):
    ifca, group = {"algorithm": "IFCA", "IFCA.num_clusters": 2}, {"algorithm": "FedGroup", "FedGroup.eta_g": 0.1}
    settings = [group, ifca, {**ifca, "IFCA.num_clusters": 3}, {**group, "FedGroup.eta_g": 0.2}]
    trials = new_trials(job.folder, settings, first=[GivenSetting("default", {"algorithm": "IFCA"}, inside=False)])
    for _ in range(5):
        trials.next()
    trials.end(2, last_result(4, finished=True, **{"seed 4": 0.4, "seed 2": 0.6}))
    trials.end(3, last_result(3), died=True)
    trials.end(1, last_result(2, error="too warm"))
    trials.report(4, last_result(1))
    rows = trial_rows(trials, job)
    write_trials(tmp_path / "trials.csv", rows, job)
    with (tmp_path / "trials.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [(row["trial_id"], row["status"], row["rounds"]) for row in written] == [
        ("0000", "stopped", "0"),
        ("0001", "failed", "2"),
        ("0002", "finished", "4"),
        ("0003", "failed", "3"),
        ("0004", "stopped", "1"),
    ]
    assert written[2] == {
        "trial_id": "0002",
        "status": "finished",
        "origin": "search",
        "repeats": "",
        "rounds": "4",
        "seeds": "2",
        "seconds": "1.5",
        "traffic/mib": "2.0",
        "algorithm": "IFCA",
        "IFCA.num_clusters": "2",
        "FedGroup.num_clusters": "",
        "FedGroup.eta_g": "",
        "seed 4": "0.4",
        "seed 2": "0.6",
        METRIC: "0.5",
        "error": "",
    }
    assert [row["error"] for row in written] == ["", "too warm", "", "its worker died", ""]
    assert [row[METRIC] for row in written] == ["", "", "0.5", "", "0.5"]


def test_the_row_of_a_repeated_setting_names_the_trial_and_has_its_result(job: TrialJob):
    trials = new_trials(job.folder, [{"algorithm": "IFCA", "IFCA.num_clusters": 2}] * 2)
    trials.next()
    trials.next()
    trials.end(1, last_result(4, finished=True))
    trials.next()
    rows = trial_rows(trials, job)
    assert [row["repeats"] for row in rows[:3]] == ["", "", "0001"]
    assert (rows[2]["status"], rows[2][METRIC], rows[2]["rounds"]) == ("finished", 0.5, 4)


def test_two_objectives_mark_the_front_and_write_an_experiment_for_each_of_it(job: TrialJob, tmp_path: Path):
    job = replace(job, objective=Objective(second=TRAFFIC))
    for name in ("0001", "0002"):
        (job.folder / name).mkdir(parents=True)
        (job.folder / name / "config.yaml").write_text(yaml.safe_dump(base(seeds=[4])))
    rows = [
        {"trial_id": name, METRIC: f, TRAFFIC: mib}
        for name, f, mib in (("0000", 0.4, 3.0), ("0001", 0.5, 2.0), ("0002", 0.6, 2.5))
    ]
    write_trials(tmp_path / "trials.csv", rows, job, ["0001", "0002"])
    with (tmp_path / "trials.csv").open() as file:
        assert [row["front"] for row in csv.DictReader(file)] == ["", "yes", "yes"]
    for front in (rows[1:], rows[2:]):
        write_front(tmp_path / "front", job.folder, job, front)
        assert sorted(file.stem for file in (tmp_path / "front").iterdir()) == [row["trial_id"] for row in front]
    text = (tmp_path / "front" / "0002.yaml").read_text()
    assert text.startswith("# On the Pareto front of s, 0002; expect the same val/weighted_accuracy, 0.6000, at 2.500 ")
    assert yaml.safe_load(text) == base(seeds=[4])


def test_best_yaml_has_the_plan_that_the_seeds_ran_under(job: TrialJob, tmp_path: Path):
    trial = tmp_path / "trials" / "a1"
    (trial / "seed-4").mkdir(parents=True)
    (trial / "config.yaml").write_text(yaml.safe_dump(base(seeds=[4, 2], plan={"threads": 1, "lanes": None})))
    (trial / "seed-4" / "config.yaml").write_text(yaml.safe_dump(base(plan={"threads": 1, "lanes": 3})))
    write_best(tmp_path / "best.yaml", trial, job, {METRIC: 0.87654})
    text = (tmp_path / "best.yaml").read_text()
    assert text.splitlines()[0] == f"# The best trial of s, a1; expect the same {METRIC}, 0.8765"
    assert yaml.safe_load(text) == base(seeds=[4, 2], plan={"threads": 1, "lanes": 3})


def test_the_end_of_a_trial_is_described_in_a_line():
    assert describe_end(last_result(4, finished=True), METRIC) == f"finished: {METRIC} 0.5000"
    assert describe_end(last_result(3, finished=False), METRIC) == f"stopped after 3 rounds: {METRIC} 0.5000"
    assert describe_end(last_result(3, error="too warm\nand"), METRIC) == "failed after 3 rounds: too warm"
    assert describe_end({"error": "its worker died"}, METRIC) == "failed after 0 rounds: its worker died"


def test_trials_are_counted_over_a_resume(tmp_path: Path):
    settings = [{"algorithm.eta_g": 0.25 * number} for number in range(1, 9)]
    before = new_trials(tmp_path, settings)
    for record in [before.next() for _ in range(4)]:
        assert record is not None
        before.end(record.number, last_result(6, finished=True))
    trials = new_trials(tmp_path, settings)
    trials.load()
    lines: list[str] = []
    source = TrialSource(trials, METRIC, lines.append)
    for name in ("a", "b", "c", "d", "e"):
        source.suggest(name)
    source.on_trial_result("b", last_result(3))
    source.on_trial_complete("a", last_result(6, finished=True))
    source.on_trial_complete("b", error=True)
    source.on_trial_complete("c", last_result(3, error="too warm"))
    source.on_trial_complete("d")  # as if the study had ended before the trial started
    assert lines == [
        f"5/9 0004 finished: {METRIC} 0.5000 (algorithm.eta_g = 1)",
        "6/9 0005 failed after 3 rounds: its worker died (algorithm.eta_g = 1.25)",
        "7/9 0006 failed after 3 rounds: too warm (algorithm.eta_g = 1.5)",
    ]
