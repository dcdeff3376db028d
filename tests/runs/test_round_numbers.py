"""Tests that rounds are numbered 1 to T in all output."""

from functools import partial
from pathlib import Path

import numpy as np
from digits_experiment import digits
from lightning.pytorch.loggers import CSVLogger

from lit_cfl.algorithms import FedAvg, FlexCFL
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.runs.run import RunCallbacks, run
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tracking.options import Tracking

ALL_TABLES = {"metrics.csv", "clusters.csv", "shift.csv", "migrations.csv"}


def rounds_in(table: Path) -> list[int]:
    return sorted({row["round"] for row in read_table(table)})


def test_every_file_row_and_step_of_a_run_counts_rounds_from_1(tmp_path: Path):
    path, shown = tmp_path / "run", []
    tracking = Tracking(loggers=[partial(CSVLogger, tmp_path / "csv")], snapshots_every=1)
    data = Digits(num_clients=12, validation=0.1, rotations=[0, 90, 180, 270], shift=[SwapAll(0.9)])
    algorithm = FlexCFL(num_clusters=4, pretrain_scale=2)
    experiment = digits(data=data, algorithm=algorithm, rounds=4, tracking=tracking)
    finished = run(experiment, path, RunCallbacks(row=lambda row: shown.append(row["round"])))
    assert {file.name for file in path.glob("*.csv")} == ALL_TABLES | {"clients.csv"}
    for name in ("metrics.csv", "clusters.csv", "shift.csv"):
        assert rounds_in(path / name) == [1, 2, 3, 4], name
    assert {2, 3, 4} >= set(rounds_in(path / "migrations.csv")) > set()
    assert [row["step"] for row in read_table(next((tmp_path / "csv").rglob("metrics.csv")))] == shown == [1, 2, 3, 4]
    with np.load(path / "memberships.npz") as memberships:
        assert memberships["rounds"].tolist() == [1, 2, 3, 4]
    assert [file.name for file in path.glob("snapshots/*")] == ["1.npz"]
    content = Checkpoint(path).load()
    assert content is not None
    assert content["round"] == finished.summary["round"] == 4
    assert [(r.number, r.index) for r in experiment] == [(1, 0), (2, 1), (3, 2), (4, 3)]


def test_the_rounds_that_are_evaluated_and_kept_are_those_of_the_schedule(tmp_path: Path):
    def kept(every: int, snapshots_every: int) -> tuple[list[int], list[int]]:
        path = tmp_path / f"{every} {snapshots_every}"
        tracking, evaluation = Tracking(snapshots_every=snapshots_every), EvaluationPlan(every=every)
        run(digits(algorithm=FedAvg(), rounds=7, tracking=tracking, evaluation=evaluation), path)
        with np.load(path / "memberships.npz") as memberships:
            return rounds_in(path / "metrics.csv"), memberships["rounds"].tolist()

    assert kept(1, 3) == ([1, 2, 3, 4, 5, 6, 7], [1, 4, 7])
    assert kept(3, 3) == ([3, 6, 7], [3, 6, 7])
    assert kept(2, 4) == ([2, 4, 6, 7], [2, 6, 7])
