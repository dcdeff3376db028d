"""Tests what a study writes and prints about its trials."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden_cases import searched_study, study_files
from optuna.trial import TrialState, create_trial
from studies import ALGORITHMS, base

from lit_cfl.config.variants import base_config, build
from lit_cfl.errors import InputError
from lit_cfl.runs.run import FinishedRun
from lit_cfl.storage.csv_log import read_frame, read_table
from lit_cfl.tune import trial
from lit_cfl.tune.check import PreparedStudy
from lit_cfl.tune.journal import NUMBER, REPEATS, RESULT, Journal
from lit_cfl.tune.objective import TRAFFIC, Objective
from lit_cfl.tune.result import StudyFiles
from lit_cfl.tune.study import Resources, Study
from lit_cfl.tune.trial import TrialJob

METRIC = "val/weighted_accuracy"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collects what a trial reports to Ray."""
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(trial.ray_tune, "report", reports.append)
    return reports


@pytest.fixture
def job(tmp_path: Path) -> TrialJob:
    study = Study(base(), {"algorithm": ALGORITHMS}, "s", seeds=[4, 2])
    return TrialJob(study, Objective(), tmp_path / "trials")


def with_study(job: TrialJob, **changes: Any) -> TrialJob:
    return replace(job, study=replace(job.study, **changes))


def last_result(rounds: int, **more: Any) -> dict[str, Any]:
    return {"rounds": rounds, "seconds": 1.5, "traffic/mib": 2.0, METRIC: 0.5} | more


def write_config(job: TrialJob, number: int) -> None:
    (job.folder / f"{number:04d}").mkdir(parents=True)
    (job.folder / f"{number:04d}" / "config.yaml").write_text(yaml.safe_dump(base(seeds=[4])))


def files_of(job: TrialJob, trials: dict[int, Any], directions: tuple[str, ...] = ("maximize",)) -> StudyFiles:
    """Opens the files of a study with these trials, each with its parameters, its state, and its attributes."""
    journal = Journal(job.folder.parent / "study.log", directions)
    space, two = job.study.search_space.distributions(), len(directions) > 1
    for number, (params, state, result, more) in trials.items():
        done = state == TrialState.COMPLETE
        journal.study.add_trial(
            create_trial(
                state=state,
                values=([result[METRIC], result[TRAFFIC]] if two else [result[METRIC]]) if done else None,
                params=params,
                distributions={key: space[key] for key in params},
                user_attrs={NUMBER: number, RESULT: result, **more} if result else {NUMBER: number, **more},
            )
        )
    return StudyFiles(PreparedStudy(job, build(base()), {}, None, None), journal, job.folder.parent)


def test_null_as_a_choice_differs_from_a_parameter_that_a_trial_does_not_have(job: TrialJob, tmp_path: Path):
    job = with_study(
        job, space={"stop": {"choice": [None, {"class_path": "StopRule"}]}, "cohort_size": {"choice": [3]}}
    )
    trials = {
        1: ({"stop": "null"}, TrialState.PRUNED, last_result(3), {}),
        2: ({}, TrialState.PRUNED, last_result(3), {}),
    }
    files_of(job, trials).write()
    found = read_frame(tmp_path / "trials.csv", "trial_id")["stop"]
    assert found[0] == "null"
    assert found.isna().tolist() == [False, True]


@pytest.mark.parametrize(("watched", "expected"), [(True, [1, 2, 3, 4, 5]), (False, [1, 3, 4])])
def test_rounds_by_which_no_trial_is_stopped_are_reported_once_a_second(
    watched: bool, expected: list[int], job: TrialJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: Any
):
    clock = [0.0]
    monkeypatch.setattr(trial, "monotonic", lambda: clock[0])
    report = trial.TrialReport(replace(job, watched=watched), tmp_path, _rounds=9)
    for number, clock[0] in enumerate([5.0, 5.9, 6.0, 7.5, 8.0], 1):
        report.row({"round": number, METRIC: 0.5, "time/elapsed_seconds": 1.0})
    assert [metrics["rounds"] for metrics in sent] == expected
    report.report_error(RuntimeError("gone"))
    assert sent[-1]["rounds"] == 5  # the last round is sent in any case


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
    changed = with_study(job, resources=Resources(gpus=gpus), base=base_config(base(**changes)))
    experiment = changed.of_setting(0, {})
    assert experiment.plan is not None
    assert experiment.plan.device == device
    assert experiment.to_dict()["plan"]["device"] == device


@pytest.mark.parametrize(("gpus", "expected"), [(0.25, [0.25]), (2.0, []), (0.0, [])])
def test_a_trial_holds_its_share_of_a_gpus_memory(
    gpus: float, expected: list[float], job: TrialJob, monkeypatch: pytest.MonkeyPatch, sent: Any
):
    held: list[float] = []
    monkeypatch.setenv("TUNE_FUNCTION_THREAD_TIMEOUT_S", "60")  # a trial sets it, usually in a separate process
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", held.append)
    trial.run_trial({NUMBER: 1, "no": "such option"}, with_study(job, resources=Resources(gpus=gpus)))
    assert held == expected


def test_a_trial_of_several_seeds_reports_means_of_score_and_traffic_and_the_time_of_all(
    job: TrialJob, tmp_path: Path, sent: list[dict[str, Any]]
):
    parts = [
        {"seed": 4, METRIC: 0.25, TRAFFIC: 2.0, "round": 5, "time/elapsed_seconds": 7.0, "train/loss": 0.5},
        {"seed": 2, METRIC: 0.75, TRAFFIC: 4.0, "round": 3, "time/elapsed_seconds": 4.0, "train/loss": 1.5},
    ]
    means = {METRIC: 0.5, TRAFFIC: 3.0}
    seeds = [FinishedRun(tmp_path, part) for part in parts]
    trial.TrialReport(job, tmp_path).end(FinishedRun(tmp_path, means | {"test/weighted_accuracy": 0.875}, seeds=seeds))
    (whole,) = sent
    expected = means | {"seed 4": 0.25, "seed 2": 0.75, "rounds": 5, "seconds": 11.0, "finished": True}
    assert {key: whole[key] for key in expected} == expected
    assert not [key for key in whole if key.startswith("test/")]


LOSS, GLOBAL = "val/loss", "val/global_accuracy"


@pytest.mark.parametrize(
    ("metric", "found", "said"),
    [
        (GLOBAL, {METRIC: 0.5, LOSS: 1.0}, "val/global_accuracy was never reported: .*; use val/weighted_accuracy"),
        (LOSS, {METRIC: 0.1}, "val/loss is blank in round 5 .seed 2.: the loss of a validation example is not finite"),
        ("val/std_accuracy", {METRIC: 0.1, LOSS: 2.0}, r"val/std_accuracy is blank in round 5 .* use val/weighted_acc"),
        (METRIC, {}, "val/weighted_accuracy is blank in round 5 .seed 2.: no client that was scored has validation"),
    ],
)
def test_a_trial_without_its_metric_says_why(
    metric: str, found: dict[str, float], said: str, job: TrialJob, tmp_path: Path, sent: list[dict[str, Any]]
):
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
    finished = last_result(4, finished=True, **{"seed 4": 0.4, "seed 2": 0.6})
    trials = {
        0: ({}, TrialState.RUNNING, None, {}),
        1: (group, TrialState.PRUNED, last_result(2, error="too warm"), {}),
        2: (ifca, TrialState.COMPLETE, finished, {}),
        3: (group | {"FedGroup.eta_g": 0.05}, TrialState.PRUNED, last_result(1), {}),
        4: (ifca, TrialState.COMPLETE, {METRIC: 0.5}, {REPEATS: 2}),
    }
    for number in trials:
        write_config(job, number)
    files_of(job, trials).write()
    written = read_table(tmp_path / "trials.csv", text=("trial_id", "repeats"))
    assert [(row["trial_id"], row["status"], row["rounds"], row["repeats"]) for row in written] == [
        ("0000", "running", 0, None),
        ("0001", "failed", 2, None),
        ("0002", "finished", 4, None),
        ("0003", "stopped", 1, None),
        ("0004", "finished", 4, "0002"),
    ]
    expected = {"trial_id": "0002", "status": "finished", "origin": "search", "rounds": 4, "seeds": 2, "seconds": 1.5}
    expected |= {TRAFFIC: 2.0, **ifca, "seed 4": 0.4, "seed 2": 0.6, METRIC: 0.5}
    assert {key: value for key, value in written[2].items() if value is not None} == expected
    assert [row["error"] for row in written] == [None, "too warm", None, None, None]
    assert [row[METRIC] for row in written] == [None, None, 0.5, 0.5, 0.5]


def test_two_objectives_mark_the_front_and_write_an_experiment_for_each_of_it(job: TrialJob, tmp_path: Path):
    job = replace(job, objective=Objective(second=TRAFFIC))
    trials, params = {}, {"algorithm": "IFCA", "IFCA.num_clusters": 2}
    for number, (score, mib) in enumerate(((0.4, 3.0), (0.5, 2.0), (0.6, 2.5)), 1):
        result = last_result(4, finished=True) | {METRIC: score, TRAFFIC: mib}
        trials[number] = (params, TrialState.COMPLETE, result, {})
        write_config(job, number)
    (tmp_path / "front").mkdir()
    (tmp_path / "front" / "0009.yaml").touch()  # no more on the front
    files_of(job, trials, ("maximize", "minimize")).write()
    assert [row["front"] for row in read_table(tmp_path / "trials.csv")] == [None, "yes", "yes"]
    assert sorted(file.stem for file in (tmp_path / "front").iterdir()) == ["0002", "0003"]
    text = (tmp_path / "front" / "0003.yaml").read_text()
    assert text.startswith("# On the Pareto front of s, 0003; expect the same val/weighted_accuracy, 0.6000, at 2.500 ")
    assert yaml.safe_load(text) == base(seeds=[4])


def test_best_yaml_has_the_plan_that_the_seeds_ran_under(tmp_path: Path):
    path = searched_study(tmp_path / "study")
    (path / "trials" / "0003" / "seed-4").mkdir()
    (path / "trials" / "0003" / "config.yaml").write_text(yaml.safe_dump(base(seeds=[4, 2], plan={"lanes": None})))
    (path / "trials" / "0003" / "seed-4" / "config.yaml").write_text(yaml.safe_dump(base(plan={"lanes": 3})))
    study_files(path).write()
    text = (path / "best.yaml").read_text()
    assert text.startswith(f"# The best trial of tiny-study, 0003; expect the same {METRIC}, 0.8125, at ")
    assert yaml.safe_load(text) == base(seeds=[4, 2], plan={"lanes": 3})
