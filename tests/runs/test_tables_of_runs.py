"""Tests the tables of a run: rounds, times, traffic, scores per client and round, and tables of algorithms."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from digits_experiment import digits
from lightning.pytorch.loggers import CSVLogger

from lit_cfl import Experiment, load_run, run
from lit_cfl.algorithms import CFL, FedAvg, FlexCFL
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.early_stopping import StopRule
from lit_cfl.errors import InputError
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.experiment import CheckpointPlan, PreparedRun
from lit_cfl.runs import recorder
from lit_cfl.runs.run import RunCallbacks
from lit_cfl.storage import read_table
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.tracking.options import Tracking


def rounds_in(table: Path) -> list[int]:
    return sorted({row["round"] for row in read_table(table)})


def test_every_file_row_and_step_of_a_run_counts_rounds_from_1(tmp_path: Path):
    path, shown = tmp_path / "run", []
    tracking = Tracking(loggers=[partial(CSVLogger, tmp_path / "csv")], snapshots_every=1)
    data = Digits(num_clients=12, validation=0.1, rotations=[0, 90, 180, 270], shift=[SwapAll(0.9)])
    algorithm = FlexCFL(num_clusters=4, pretrain_scale=2)
    experiment = digits(data=data, algorithm=algorithm, rounds=4, tracking=tracking)
    finished = run(experiment, path, RunCallbacks(row=lambda row: shown.append(row["round"])))
    tables = {"metrics.csv", "clusters.csv", "shift.csv", "migrations.csv", "clients.csv"}
    assert {file.name for file in path.glob("*.csv")} == tables
    for name in ("metrics.csv", "clusters.csv", "shift.csv"):
        assert rounds_in(path / name) == [1, 2, 3, 4], name
    assert {2, 3, 4} >= set(rounds_in(path / "migrations.csv")) > set()
    assert [row["step"] for row in read_table(next((tmp_path / "csv").rglob("metrics.csv")))] == shown == [1, 2, 3, 4]
    with np.load(path / "memberships.npz") as memberships:
        assert memberships["rounds"].tolist() == [1, 2, 3, 4]
    assert [file.name for file in path.glob("snapshots/*")] == ["1.npz"]
    content = Checkpoint(path).load()
    assert content["round"] == finished.summary["round"] == 4
    assert [(r.number, r.index) for r in experiment] == [(1, 0), (2, 1), (3, 2), (4, 3)]


class Undivided(CFL):
    """Compares all clients in every round, and divides none of them."""

    def divide(self, similarity: torch.Tensor) -> None:
        return None


def test_the_rounds_that_are_evaluated_and_kept_are_those_of_the_schedule(tmp_path: Path):
    def kept(every: int, snapshots_every: int) -> tuple[list[int], ...]:
        path = tmp_path / f"{every} {snapshots_every}"
        tracking, evaluation = Tracking(snapshots_every=snapshots_every), EvaluationPlan(every=every)
        algorithm = Undivided(eps1=100.0, eps2=1e-9, warmup_rounds=0)
        run(digits(algorithm=algorithm, cohort_size=12, rounds=7, tracking=tracking, evaluation=evaluation), path)
        with np.load(path / "memberships.npz") as memberships:
            rounds = memberships["rounds"].tolist()
        snapshots = sorted(int(file.stem) for file in path.glob("snapshots/*"))
        return rounds_in(path / "metrics.csv"), rounds, snapshots

    assert kept(1, 3) == ([1, 2, 3, 4, 5, 6, 7], [1, 4, 7], [1, 4, 7])
    assert kept(3, 3) == ([3, 6, 7], [3, 6, 7], [1, 4, 7])
    assert kept(2, 4) == ([2, 4, 6, 7], [2, 6, 7], [1, 5])


def experiment(**changes: object) -> Experiment:
    plan = EvaluationPlan(every=2, per_client=True)
    return digits(**({"rounds": 4, "evaluation": plan, "checkpoint": CheckpointPlan(every_seconds=0)} | changes))


def test_scores_per_client_and_round_agree_with_the_other_files_and_the_labels(tmp_path: Path):
    made = experiment(evaluation=EvaluationPlan(every=2, per_client=True, class_counts=True))
    path = run(made, tmp_path / "run").path
    table = pd.read_parquet(path / "client_rounds.parquet")
    assert load_run(path, made).client_rounds.equals(table)
    assert list(table)[:6] == ["round", "client", "cluster", "n", "loss", "accuracy"]
    rows = {row["round"]: row for row in read_table(path / "metrics.csv")}
    assert sorted(table["round"].unique()) == sorted(rows) == [2, 4]
    for number, part in table.groupby("round"):
        assert len(part) == rows[number]["clients/evaluated"]
        assert part["accuracy"].mean() == pytest.approx(rows[number]["test/mean_accuracy"])
        assert (part["loss"] * part["n"]).sum() / part["n"].sum() == pytest.approx(rows[number]["test/loss"])
    last = {row["client"]: row for row in read_table(path / "clients.csv")}
    for row in table[table["round"] == 4].itertuples():
        known = last[row.client]
        assert (row.cluster, row.n, row.accuracy) == (known["cluster"], known["n_test"], known["accuracy"])
    counts, right = (table[[f"{name}_{k}" for k in range(10)]] for name in ("n", "right"))
    assert (right.to_numpy() <= counts.to_numpy()).all()
    assert (right.sum(axis=1) / table["n"]).tolist() == pytest.approx(table["accuracy"].tolist())
    data = made.prepare(3).data
    for client, row in zip(table["client"], counts.to_numpy(), strict=True):
        labels = data.examples.targets(data.test[client])
        assert row.tolist() == torch.bincount(labels, minlength=10).tolist()


def test_a_resume_removes_rounds_that_were_not_saved(tmp_path: Path):
    parts = run(experiment(rounds=2), tmp_path / "run").path / "client_rounds.parquet"
    (parts / "00000009.parquet").write_bytes(b"of a round that was not saved")
    run(experiment(), tmp_path / "run", mode="resume")
    assert sorted(file.name for file in parts.iterdir()) == ["00000002.parquet", "00000004.parquet"]


@dataclass(frozen=True)
class Tells(FedAvg):
    tables: ClassVar[dict[str, tuple[str, ...]]] = {"cohorts": ("client", "examples")}

    def init(self, work, rng):
        state, info = super().init(work, rng)
        return state, replace(info, tables={"cohorts": [{"client": -1, "examples": 0}]})

    def round(self, state, cohort, work, rng):
        state, info = super().round(state, cohort, work, rng)
        rows = [{"client": client, "examples": int(work.num_examples[client])} for client in cohort.tolist()]
        known = {"parent": torch.tensor([-1]), "u": torch.tensor([0.5]), "v": torch.tensor([float("nan")])}
        return state, replace(info, tables={"cohorts": rows}, clusters=known)


def test_rows_and_columns_of_an_algorithm_are_in_their_files(tmp_path: Path):
    run(digits(algorithm=Tells(), rounds=2), tmp_path / "whole")
    rows = read_table(tmp_path / "whole" / "cohorts.csv")
    assert list(rows[0]) == ["round", "client", "examples"]
    assert [row["round"] for row in rows] == [1] * 6 + [2] * 5
    assert rows[0]["client"] == -1  # the row that `init` returned
    assert all(row["examples"] > 0 for row in rows[1:])
    row = read_table(tmp_path / "whole" / "clusters.csv")[0]
    assert (row["u"], row["v"], row["parent"]) == (0.5, None, None)


def test_a_run_is_not_resumed_with_other_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run(digits(algorithm=Tells(), rounds=1), tmp_path / "run")
    members = {"members": ("client", "examples", "u")}
    for tables, now in ((members, r"members\.csv with the columns round,client,examples,u"), ({}, "no such table")):
        monkeypatch.setattr(Tells, "tables", tables)  # as if the algorithm's file had been edited
        with pytest.raises(InputError, match=rf"cohorts\.csv with the columns round,client,examples, but .*{now}"):
            run(digits(algorithm=Tells(), rounds=2), tmp_path / "run", mode="resume")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a clock under which a round takes ten seconds, and an evaluation one."""
    now = [1000.0]

    def taking(seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            now[0] += seconds
            return work(*arguments, **options)

        return timed

    monkeypatch.setattr(recorder, "monotonic", lambda: now[0])
    monkeypatch.setattr(PreparedRun, "score", taking(1.0, PreparedRun.score))
    monkeypatch.setattr(FedAvg, "round", taking(10.0, FedAvg.round))


def seconds(path: Path) -> list[tuple[float, ...]]:
    rows = read_table(path / "metrics.csv")
    times = [f"time/{name}_seconds" for name in ("training", "evaluation", "elapsed")]
    return [(row["round"], *map(row.get, times)) for row in rows]


@pytest.mark.usefixtures("clock")
def test_times_are_since_the_last_evaluation_and_a_resume_adds_to_the_earlier_ones(tmp_path: Path):
    run(digits(algorithm=FedAvg(), rounds=5, evaluation=EvaluationPlan(every=2)), tmp_path / "every two")
    assert seconds(tmp_path / "every two") == [(2, 20, 1, 21), (4, 20, 1, 42), (5, 10, 1, 53)]
    stop = StopRule(max_minutes=1)
    run(digits(algorithm=FedAvg(), rounds=3, stop=stop), tmp_path / "run")
    assert seconds(tmp_path / "run") == [(1, 10, 1, 11), (2, 10, 1, 22), (3, 10, 1, 33)]
    longer = run(digits(algorithm=FedAvg(), rounds=9, stop=stop), tmp_path / "run", mode="resume").summary
    assert seconds(tmp_path / "run")[3:] == [(4, 10, 1, 44), (5, 10, 1, 55), (6, 10, 1, 66)]
    assert (longer["stopped"], longer["time/elapsed_seconds"]) == ("1 minutes have passed", 66)


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
    rows = read_table(tmp_path / "run" / "metrics.csv")
    known = [row["clusters/silhouette"] for row in rows if row["clusters/silhouette"] is not None]
    assert len(set(known)) > 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["clusters/silhouette"] == known[-1] != known[0]
