"""Tests by which objective a study judges its trials, and what it writes about them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden_cases import searched_study, study_files
from optuna.trial import create_trial
from studies import ALGORITHMS, base

from lit_cfl.config.variants import base_config, build
from lit_cfl.errors import InputError
from lit_cfl.runs.run import FinishedRun
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tune import trial
from lit_cfl.tune.check import PreparedStudy
from lit_cfl.tune.journal import NUMBER, RESULT, Journal
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


def test_two_objectives_mark_the_front_and_write_an_experiment_for_each_of_it(job: TrialJob, tmp_path: Path):
    job = replace(job, objective=Objective(second=TRAFFIC))
    journal = Journal(tmp_path / "log", ["maximize", "minimize"])
    for number, (score, mib) in enumerate(((0.4, 3.0), (0.5, 2.0), (0.6, 2.5)), 1):
        result = {"rounds": 4, "seconds": 1.5, "finished": True, METRIC: score, TRAFFIC: mib}
        journal.study.add_trial(create_trial(values=[score, mib], user_attrs={NUMBER: number, RESULT: result}))
        (job.folder / f"{number:04d}").mkdir(parents=True)
        (job.folder / f"{number:04d}" / "config.yaml").write_text(yaml.safe_dump(base(seeds=[4])))
    (tmp_path / "front").mkdir()
    (tmp_path / "front" / "0009.yaml").touch()  # no more on the front
    StudyFiles(PreparedStudy(job, build(base()), {}, None, None), journal, tmp_path).write()
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
