"""Tests whole runs on the digits: files, repeatability, baseline, seeds, evaluation, shifts, activities and notes."""

import json
import warnings
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digits_experiment import digits, timeless_rows
from inside_shown import page_of, printed
from ragged import LOCAL, PLANS, SGD, Linear, ragged_data, task

from lit_cfl import Experiment, load_run
from lit_cfl.activity import Activity
from lit_cfl.algorithms import FedAvg, FedGroup
from lit_cfl.data.federated import lists_of
from lit_cfl.data.shift import Shift
from lit_cfl.datamodules import ArrayData, Digits
from lit_cfl.datamodules.partition import ClassesPerClient
from lit_cfl.datamodules.shift import Incremental, SwapAll, SwapPart
from lit_cfl.early_stopping import StopRule
from lit_cfl.engines.choose_plan import build_engine
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "digits"
    run(digits(baseline=FedAvg()), path)
    return path


def test_same_seed_gives_the_same_metrics_and_a_baseline_those_of_a_run_alone(finished: Path, tmp_path: Path):
    run(digits(baseline=FedAvg()), tmp_path / "again")
    assert timeless_rows(tmp_path / "again" / "metrics.csv") == timeless_rows(finished / "metrics.csv")
    assert (tmp_path / "again" / "clients.csv").read_text() == (finished / "clients.csv").read_text()
    run(digits(algorithm=FedAvg()), tmp_path / "alone")
    assert timeless_rows(tmp_path / "alone" / "metrics.csv") == timeless_rows(finished / "baseline" / "metrics.csv")


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
    of_seeds = result.runs[result.runs["algorithm"] == "FedGroup"]
    assert of_seeds["seed"].tolist() == [3, 4]
    assert of_seeds["test/weighted_accuracy"].tolist() == [p["test/weighted_accuracy"] for p in parts]
    assert result.baseline is not None
    assert (tmp_path / "two" / "seed-4" / "baseline" / "metrics.csv").exists()
    alone = run(digits(seeds=[4]), tmp_path / "alone").summary
    assert alone["test/weighted_accuracy"] == parts[1]["test/weighted_accuracy"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 0.999, "cohort_size": 1}, "no client trained in any of the 3 rounds.*dropout is 0.999"),
        (
            {"local": LocalTraining(1, 20, on_divergence="skip"), "task": task(Linear, partial(SGD, lr=3e38))},
            "no client trained in any of the 3 rounds.*clients/skipped",
        ),
        ({"task": task(Linear, partial(SGD, lr=100.0))}, "equal probabilities for all 10 labels have 2.3: training di"),
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
        own: dict[str, Any] = {"data": data, "task": task(lambda: MCLR([3], 2), partial(SGD, lr=1e-6))}
        return digits(**own, algorithm=FedAvg(), cohort_size=3, checkpoint=CheckpointPlan(every_seconds=0))

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


def test_a_plan_halved_for_lack_of_memory_is_recorded_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("held", [True, False])
def test_every_engine_counts_the_clients_of_a_fit_up_to_the_last(name: str, held: bool):
    engine, reported = build_engine(task(Linear), PLANS[name], 5, LOCAL), list[Activity]()
    engine.report = reported.append
    if not held:
        engine.__class__ = type("Chunked", (type(engine),), {"rows_that_fit": property(lambda self: 2)})
    clients = torch.arange(1, 6)  # client 0 has no data
    fit = engine.at(2, ragged_data()).fit(engine.initial(0)[None], clients, purpose="pretrain")
    assert sum(len(chunk.models) for chunk in fit.chunks()) == 5
    assert {(activity.what, activity.round, activity.total) for activity in reported} == {("pre-training", 2, 5)}
    counts = [activity.done for activity in reported]
    assert (counts[0], counts[-1]) == (0, 5)
    assert counts == sorted(counts)
    assert len(set(counts)) > 2  # intermediate counts are reported, too


def test_run_reports_its_activity_from_the_start(tmp_path: Path):
    reported: list[str | Activity] = []
    # the loop trains one client after another; in a stack, all end at once
    options = {"rounds": 2, "cohort_size": 3, "baseline": FedAvg(), "engine": "loop"}
    callbacks = RunCallbacks(activity=reported.append, started=lambda title, *_: reported.append(title))
    run(digits(data=Digits(8), algorithm=FedGroup(2, 3), **options), tmp_path / "run", callbacks)
    phases = [text for text, _ in groupby(one if isinstance(one, str) else one.what for one in reported)]
    begin = ["loading the data", "dividing 1,797 examples among clients", "checking that the clients can be trained"]
    first = reported.index("FedGroup")
    assert phases[:3] == begin
    assert reported[first - 1] == Activity("starting the trackers")
    assert reported[first + 1 : first + 8] == [Activity("pre-training", 0, done, 6) for done in range(7)]
    assert phases[phases.index("FedAvg") + 1 :] == ["training", "evaluating", "training", "evaluating"]


def shifting(*shift: Shift, few_labels: bool = False, **changes: object) -> Experiment:
    partition = {"partition": ClassesPerClient(10, test=0.3, classes=3)} if few_labels else {"num_clients": 10}
    return digits(**({"data": Digits(**partition, validation=0.2, shift=shift), "rounds": 5} | changes))


def test_a_warm_shift_moves_only_clients_that_have_a_model():
    experiment = shifting(SwapAll(1.0, participants="warm"), cohort_size=2, selection="round_robin_first")
    moved = 0
    for before, after in pairwise(experiment):
        index = experiment.algorithm.serve(before.state, torch.arange(10)).index
        assert all((index[moves.clients] >= 0).all() for moves in after.moves)
        moved += sum(len(moves.clients) for moves in after.moves)
    assert moved > 0


def test_init_sees_the_data_before_any_shift():
    class Watched(FedAvg):
        def init(self, work, rng):
            seen.append(work.num_examples.clone())
            return super().init(work, rng)

    seen: list[torch.Tensor] = []
    experiment = shifting(Incremental((0,), (0.5,)), algorithm=Watched())
    first = next(iter(experiment))
    assert torch.equal(seen[0], experiment.data.federated(3).num_examples)
    assert torch.equal(first.data.num_examples, (seen[0] + 1) // 2)


def test_moves_are_logged_and_counted(tmp_path: Path):
    experiment = shifting(SwapAll(0.5))
    run(experiment, tmp_path / "run")
    expected = [
        [r.number, *values]
        for r in experiment
        for move in r.moves
        for values in torch.stack([move.clients, move.examples, move.before, move.after], 1).tolist()
    ]
    rows, metrics = (read_table(tmp_path / "run" / f"{name}.csv") for name in ("shift", "metrics"))
    columns = ("round", "client", "examples", "cluster_before", "cluster_after")
    assert [[row[column] for column in columns] for row in rows] == expected != []
    assert sum(row["shift/clients"] for row in metrics) == len(rows)
    assert sum(row["shift/examples"] for row in metrics) == sum(row["examples"] for row in rows)


def test_an_opened_run_has_the_data_of_its_last_round(tmp_path: Path):
    experiment = shifting(SwapPart(0.8), SwapAll(0.3), few_labels=True)
    run(experiment, tmp_path / "run")
    *_, last = experiment
    saved = load_run(tmp_path / "run", experiment)
    mine, before, now = (lists_of(data) for data in (saved.data, saved.prepared.data, last.data))
    assert [torch.equal(mine[name], now[name]) for name in now] == [True] * len(now)
    assert not all(torch.equal(before[name], now[name]) for name in now)
