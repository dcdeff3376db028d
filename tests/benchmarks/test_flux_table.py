"""The outside table: the generator's arguments, each client's own test part, and the means of the recorded rows."""

import csv

import numpy as np
import pytest
import torch
from benchmark_scripts import FOLDER, loaded

from lit_cfl.datamodules import ArrayData


@pytest.fixture
def flux_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(FOLDER)
    return loaded("flux_table")


def test_levels_are_those_of_the_authors_script(flux_table):
    pairs = [flux_table.choose_arguments("x", level)[1] for level in range(1, 9)]
    found = [(options["rotations"], options["colors"]) for options in pairs]
    assert found == [(2, 1), (3, 1), (4, 1), (5, 1), (2, 3), (3, 3), (4, 3), (5, 3)]
    assert flux_table.choose_arguments("y", 8)[1] == {"client_n_class": 3, "py_bank": 5}
    assert flux_table.choose_arguments("y-given-x", 8)[1]["mixing_label_number"] == 8
    assert flux_table.choose_arguments("x-given-y", 8)[1]["rotated_label_number"] == 8


def test_clients_are_tested_on_their_own_test_part(flux_table):
    x, y = torch.arange(12.0)[:, None], torch.arange(12) % 2
    owner = np.array([0, 0, 0, 1, 1, 2, 2, 2, 0, 1, 1, 2])  # eight examples for training, then four for testing
    data = ArrayData(x, y, owner, [5, 6, 5], partition=flux_table.OwnTest(8)).federated(0)
    assert [data.train.select(torch.tensor([k])).entries.tolist() for k in range(3)] == [[0, 1, 2], [3, 4], [5, 6, 7]]
    assert [data.test.select(torch.tensor([k])).entries.tolist() for k in range(3)] == [[8], [9, 10], [11]]
    assert data.true_clusters.tolist() == [5, 6, 5]


def test_the_tables_mean_over_shifts_and_whole_folds(flux_table, tmp_path):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*flux_table.KEY, *flux_table.COLUMNS))
        writer.writeheader()
        for fold, shift in ((0, "x"), (0, "y"), (0, "y-given-x"), (0, "x-given-y"), (1, "x")):
            accuracy = 10 * (1 + flux_table.SHIFTS.index(shift))
            row = {"shift": shift, "level": 8, "fold": fold, "system": "IFCA", "net": "MLP"}
            writer.writerow(row | {"accuracy": accuracy, "ari": 0.5, "clusters": 2})
    assert "| IFCA | 10.0 | 20.0 | 30.0 | 40.0 | 25.0 |  | 0.50 | 2.0 | 1 |" in flux_table.format_tables(path)


def test_the_page_has_the_tables_of_the_recorded_rows(flux_table):
    page = (FOLDER.parent / "docs" / "flux_table.md").read_text()
    lines = [
        line for line in flux_table.format_tables(FOLDER / "results" / "flux_table.csv").splitlines() if line[:1] == "|"
    ]
    assert lines
    assert [line for line in lines if line not in page] == []
