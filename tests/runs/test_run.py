"""Tests whole runs on the digits: files, repeatability, baseline, seeds, evaluation, and notes without a result."""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digits_experiment import digits, timeless_rows
from inside_shown import page_of, printed

from lit_cfl import Experiment
from lit_cfl.algorithms import FedAvg, FedGroup
from lit_cfl.datamodules import ArrayData, Digits
from lit_cfl.early_stopping import StopRule
from lit_cfl.engines.cohort import FitRequest
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.errors import InputError, Notice
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.experiment import CheckpointPlan
from lit_cfl.local_work import Chunk
from lit_cfl.nets import MCLR
from lit_cfl.progress.summary_table import closing_table
from lit_cfl.report.blocks import Text
from lit_cfl.runs.run import RunCallbacks, mean_summary, run
from lit_cfl.storage.checkpoint import Checkpoint, state_from_dict
from lit_cfl.storage.config_file import stored_config
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "digits"
    run(digits(baseline=FedAvg()), path)
    return path


def test_same_seed_gives_the_same_metrics_and_a_baseline_those_of_a_run_alone(finished: Path, tmp_path: Path):
    run(digits(baseline=FedAvg()), tmp_path / "again")
    assert timeless_rows(tmp_path / "again") == timeless_rows(finished)
    assert (tmp_path / "again" / "clients.csv").read_text() == (finished / "clients.csv").read_text()
    run(digits(algorithm=FedAvg()), tmp_path / "alone")
    assert timeless_rows(tmp_path / "alone") == timeless_rows(finished / "baseline")


def test_files_of_a_run_agree(finished: Path):
    metrics, clusters = read_table(finished / "metrics.csv"), read_table(finished / "clusters.csv")
    assert len(metrics) == 3
    for row in metrics:
        mine = [c for c in clusters if c["round"] == row["round"]]
        assert sum(c["size"] for c in mine) == row["clients/evaluated"]
        assert len(mine) == row["clusters/count"]
        correct = sum(c["accuracy"] * c["n_test"] for c in mine)
        assert correct / sum(c["n_test"] for c in mine) == pytest.approx(row["test/weighted_accuracy"])
    clients, content = read_table(finished / "clients.csv"), Checkpoint(finished).load()
    scored = [row for row in clients if row["accuracy"] is not None]
    correct = sum(round(row["accuracy"] * row["n_test"]) for row in scored)
    assert correct / sum(row["n_test"] for row in scored) == metrics[-1]["test/weighted_accuracy"]
    arrays, snapshot = np.load(finished / "memberships.npz"), np.load(finished / "snapshots" / "1.npz")
    assert arrays["rounds"].tolist() == [1, 2, 3]  # clients joined in round 2
    last = arrays["cluster"][-1].tolist()
    assert [-1 if row["cluster"] is None else row["cluster"] for row in clients] == last
    assert [row["true_cluster"] for row in clients] == arrays["true_cluster"].tolist()
    assert state_from_dict(FedGroup.state_type, content["state"]).index.tolist() == last
    assert snapshot["similarity"].shape == (8, 8)
    assert snapshot["projection"].shape == (8, 2)
    assert np.allclose(snapshot["similarity"].diagonal(), 1, atol=1e-3)
    summary = json.loads((finished / "baseline" / "summary.json").read_text())
    rows = read_table(finished / "baseline" / "metrics.csv")
    assert summary["test/weighted_accuracy"] == rows[-1]["test/weighted_accuracy"]
    assert summary["test/max_weighted_accuracy"] == max(row["test/weighted_accuracy"] for row in rows)


def test_clients_that_are_scored_change_the_scores_alone(tmp_path: Path):
    assigned = run(digits(rounds=1), tmp_path / "assigned").summary
    everyone = run(digits(rounds=1, evaluation=EvaluationPlan(clients="all")), tmp_path / "all").summary
    some = run(digits(rounds=1, evaluation=EvaluationPlan(clients=5)), tmp_path / "five").summary
    assert everyone["clients/evaluated"] == 12 > assigned["clients/evaluated"] > some["clients/evaluated"]
    assert everyone["test/max_weighted_accuracy"] == everyone["test/weighted_accuracy"]
    for other in (assigned, some):
        assert other["clusters/unobserved"] > 0
        assert other["test/max_weighted_accuracy"] is None  # the papers' score needs all clients
        for column in ("traffic/models_up", "clusters/unobserved", "train/loss", "local/steps", "local/examples"):
            assert everyone[column] == other[column]


def test_several_seeds_are_whole_runs_and_their_means(tmp_path: Path):
    result = run(digits(seeds=[3, 4], baseline=FedAvg()), tmp_path / "two")
    parts = [json.loads((tmp_path / "two" / f"seed-{s}" / "summary.json").read_text()) for s in (3, 4)]
    mean = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert mean["test/weighted_accuracy"] == pytest.approx(sum(p["test/weighted_accuracy"] for p in parts) / 2)
    assert result.baseline is not None
    assert (tmp_path / "two" / "seed-4" / "baseline" / "metrics.csv").exists()
    alone = run(digits(seeds=[4]), tmp_path / "alone").summary
    assert alone["test/weighted_accuracy"] == parts[1]["test/weighted_accuracy"]


def test_newcomers_join_after_training_and_are_scored(tmp_path: Path):
    summary = run(digits(data=Digits(12, newcomers=0.25)), tmp_path / "run").summary
    rows = read_table(tmp_path / "run" / "clients.csv")
    held_out = [row for row in rows if row["newcomer"]]
    assert len(held_out) == 3
    assert all(row["cluster"] is not None and row["accuracy"] is not None for row in held_out)
    assert 0 < summary["test/newcomers_accuracy"] <= 1
    members = np.load(tmp_path / "run" / "memberships.npz")["cluster"][-1]
    assert all(members[row["client"]] == -1 for row in held_out)


def trained_at(rate: float) -> Callable[[], Classification]:
    return lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=rate))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 0.999, "cohort_size": 1}, "no client trained in any of the 3 rounds.*dropout is 0.999"),
        (
            {"local": LocalTraining(1, 20, on_divergence="skip"), "task": trained_at(3e38)},
            "no client trained in any of the 3 rounds.*clients/skipped",
        ),
        ({"task": trained_at(100.0)}, "equal probabilities for all 10 labels have 2.3: training diverges"),
    ],
)
def test_a_run_without_a_result_says_why(options: dict[str, Any], message: str, tmp_path: Path):
    with pytest.warns(Notice, match=message):
        run(digits(algorithm=FedAvg(), **options), tmp_path / "run")


def test_notes_outlast_a_kill_and_are_shown_with_the_result(tmp_path: Path):
    class Killed(BaseException):
        pass

    path = tmp_path / "run"

    def of_large_numbers() -> Experiment:
        inputs = 1000 * np.random.default_rng(0).normal(size=(120, 3))
        data = ArrayData(inputs, np.arange(120) % 2, client=np.arange(120) % 6)
        checkpoint = CheckpointPlan(every_seconds=0)

        def task() -> Classification:
            return Classification(MCLR([3], 2), partial(torch.optim.SGD, lr=1e-6))

        return digits(data=data, task=task, algorithm=FedAvg(), cohort_size=3, checkpoint=checkpoint)

    def give_note_and_die(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise Killed
        warnings.warn("only the first process says this", Notice, stacklevel=1)

    with pytest.warns(Notice), pytest.raises(Killed):
        run(of_large_numbers(), path, RunCallbacks(row=give_note_and_die))
    with pytest.warns(Notice, match="training diverges") as shown:
        finished = run(of_large_numbers(), path, mode="resume")
    notes = finished.summary["notes"]
    assert [str(one.message) for one in shown] == [notes[0], notes[2]]  # each once
    assert [note[:14] for note in notes] == ["input columns ", "only the first", "the training l"]
    assert finished.summary == json.loads((path / "summary.json").read_text())
    assert mean_summary([finished.summary, finished.summary])["notes"] == notes
    text = printed(closing_table, finished)
    paragraphs = [block.text for block in page_of(path).sections[0].blocks if isinstance(block, Text)]
    for note in notes:
        assert f"Note: {note}." in text
        assert f"Note: {note}." in paragraphs


def test_a_stop_without_validation_examples_is_refused(tmp_path: Path):
    data = Digits(12, partition=None, validation=0.003)  # 0.36 of 120 examples
    with pytest.raises(InputError, match=r"data\.validation is 0\.003"):
        run(digits(data=data, stop=StopRule()), tmp_path / "run")


def test_a_plan_halved_for_lack_of_memory_is_recorded_and_a_resume_starts_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plans, train = list[int](), Engine._fit_part

    def short_of_memory(engine: Engine, request: FitRequest, part: slice, *given: Any) -> Chunk:
        if part.stop - part.start > 1:  # not the check of one client
            plans.append(engine.plan.rows_mib)
            if len(plans) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return train(engine, request, part, *given)

    monkeypatch.setattr(Engine, "_fit_part", short_of_memory)
    with pytest.warns(Notice, match="out of memory: reduced to 1 MiB"):
        run(digits(rounds=1), tmp_path / "run")
    assert stored_config(tmp_path / "run")["plan"]["rows_mib"] == 1
    begun = len(plans)
    run(digits(rounds=2), tmp_path / "run", mode="resume")
    assert (plans[0], set(plans[1:]), len(plans) > begun) == (1024, {1}, True)


def test_a_mean_over_seeds_needs_each_of_them():
    same = {"algorithm": "IFCA", "scores": [{"name": "mae"}]}
    parts = [same | {"val/a": value, "val/b": other} for value, other in ((0.25, 0.5), (0.75, None))]
    assert mean_summary(parts) == same | {"notes": [], "seeds": 2, "val/a": 0.5, "val/b": None}
