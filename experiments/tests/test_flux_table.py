"""Tests the FLUX benchmark: the generator's arguments, each client's test part, and means of the recorded rows."""

import csv
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments import flux_table
from experiments.fedrc import FedRC
from lit_cfl.datamodules import ArrayData
from lit_cfl.experiment import Experiment, LocalTraining
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

DOCS = Path(__file__).parents[1] / "docs"


def test_levels_are_those_of_the_authors_script():
    pairs = [flux_table.choose_arguments("x", level)[1] for level in range(1, 9)]
    found = [(options["rotations"], options["colors"]) for options in pairs]
    assert found == [(2, 1), (3, 1), (4, 1), (5, 1), (2, 3), (3, 3), (4, 3), (5, 3)]
    assert flux_table.choose_arguments("y", 8)[1] == {"client_n_class": 3, "py_bank": 5}
    assert flux_table.choose_arguments("y-given-x", 8)[1]["mixing_label_number"] == 8
    assert flux_table.choose_arguments("x-given-y", 8)[1]["rotated_label_number"] == 8


def test_clients_are_tested_on_their_own_test_part():
    x, y = torch.arange(12.0)[:, None], torch.arange(12) % 2
    owner = np.array([0, 0, 0, 1, 1, 2, 2, 2, 0, 1, 1, 2])  # eight examples for training, then four for testing
    data = ArrayData(x, y, owner, [5, 6, 5], partition=flux_table.OwnTest(8)).federated(0)
    assert [data.train.select(torch.tensor([k])).entries.tolist() for k in range(3)] == [[0, 1, 2], [3, 4], [5, 6, 7]]
    assert [data.test.select(torch.tensor([k])).entries.tolist() for k in range(3)] == [[8], [9, 10], [11]]
    assert data.true_clusters.tolist() == [5, 6, 5]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*flux_table.KEY, *flux_table.COLUMNS))
        writer.writeheader()
        writer.writerows({"ari": 0.5, "clusters": 2, "system": "IFCA", "net": "MLP", "level": 8} | row for row in rows)
    return path


def test_a_table_of_shifts_has_means_over_whole_folds(tmp_path: Path):
    pairs = [(0, "x"), (0, "y"), (0, "y-given-x"), (0, "x-given-y"), (1, "x")]
    rows = [{"fold": f, "shift": s, "accuracy": 10 * (1 + flux_table.SHIFTS.index(s))} for f, s in pairs]
    rows += [{"net": "LeNet5", "fold": fold, "shift": "x", "accuracy": 10 + 2 * fold} for fold in (0, 1)]
    rows += [
        {"net": "LeNet5", "system": "FLUX", "fold": fold, "shift": "x", "accuracy": 5 + 4 * fold} for fold in (0, 1)
    ]
    lines = flux_table.format_tables(write_rows(tmp_path / "rows.csv", rows)).splitlines()
    assert "| IFCA | 10.0 | 20.0 | 30.0 | 40.0 | 25.0 |  | 0.50 | 2.0 | 1 |" in lines  # only fold 0 has all four shifts
    # LeNet-5 has one shift, in two folds, with differences of 5 and 3: 4 +- t * s / sqrt(2) = 12.706 * 1
    assert "| IFCA | 11.0 | +4.0 ± 12.7 | 0.50 | 2.0 | 2 |" in lines
    assert "| FLUX | 7.0 |  | 0.50 | 2.0 | 2 |" in lines


def test_the_table_of_levels_is_empty_where_not_all_folds_have_run(tmp_path: Path):
    rows = [
        {"system": system, "level": level, "fold": fold, "shift": shift, "accuracy": 10 * level + fold + more}
        for system, more in {"IFCA": 0, "FedAvg": 5}.items()
        for level in (1, 2, 3)
        for fold in range(5 if (system, level) != ("IFCA", 2) else 4)
        for shift in flux_table.SHIFTS
    ]
    rows += [{"system": "FedRC", "level": 1, "fold": 0, "shift": shift, "accuracy": 1} for shift in flux_table.SHIFTS]
    runs = flux_table.read_runs(write_rows(tmp_path / "rows.csv", rows))
    assert flux_table.tabulate_levels(runs, "MLP") == [
        "| system | level 1 | level 2 | level 3 |",
        "|---|---|---|---|",
        "| FedAvg | 17.0 | 27.0 | 37.0 |",
        "| IFCA | 12.0 |  | 32.0 |",
    ]


def test_the_page_has_the_tables_of_the_recorded_rows():
    page = (DOCS / "flux_table.md").read_text()
    runs = flux_table.read_runs(DOCS / "flux_table.csv")
    nets = sorted({key[0] for key in runs})
    tables = [flux_table.tabulate_shifts(runs, net, "8") for net in nets] + [flux_table.tabulate_levels(runs, "MLP")]
    assert all(len(table) > 2 for table in tables)
    assert [line for table in tables for line in table if line not in page] == []


def test_an_experiment_is_trained_by_a_system_of_our_own(capsys: pytest.CaptureFixture[str]):
    x, owner = torch.randn(80, 1, 4, 4, generator=torch.Generator().manual_seed(0)), np.repeat([0, 1, 2, 3] * 2, 10)
    labels = ((x[:, 0, 0, 0] > 0) ^ torch.tensor(owner % 2 == 1)).long()  # two clusters with opposite labels
    data = ArrayData(x, labels, owner, [0, 1, 0, 1], num_labels=2, partition=flux_table.OwnTest(40))

    def task() -> Classification:
        return Classification(MCLR([1, 4, 4], 2), partial(torch.optim.SGD, lr=1.0))

    experiment = Experiment(
        data, task, FedRC(2), rounds=30, cohort_size=4, local=LocalTraining(5, 10), device="cpu", seeds=[3]
    )
    row = flux_table.train(experiment)
    assert (row["ari"], row["clusters"]) == (1.0, 2)
    assert row["accuracy"] > 70
    assert row["seconds"] > 0
