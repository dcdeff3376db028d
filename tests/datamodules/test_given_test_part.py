"""Tests the examples that a user marks for testing (`is_test` of ArrayData)."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from own_arrays import error_of, saved

from lit_cfl.data import FederatedData
from lit_cfl.datamodules import IID, ArrayData
from lit_cfl.errors import Notice

MARKED = {"x": np.arange(12.0)[:, None], "y": np.arange(12) % 2, "client": np.arange(12) // 4, "cluster": [0, 0, 1]}
IS_TEST = np.array([0, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0], bool)  # 1, 2 and 1 examples of the three clients


def parts_of(data: FederatedData) -> list[tuple[list[float], list[float]]]:
    """Returns each client's training and test inputs."""
    lists = (data.train, data.test)
    return [tuple(data.examples.inputs[one[client], 0].tolist() for one in lists) for client in range(len(data.train))]


PARTS = [([0, 1, 2], [3]), ([4, 5], [6, 7]), ([9, 10, 11], [8])]


@pytest.mark.parametrize("form", ["arrays", "npz", "csv", "named", "folder"])
def test_test_examples_are_those_that_are_marked(tmp_path: Path, form: str):
    if form == "arrays":
        data = ArrayData(**MARKED, is_test=IS_TEST.tolist()).federated(0)
    elif form == "npz":
        data = ArrayData(source=saved(tmp_path / "own.npz", **MARKED, is_test=IS_TEST)).federated(0)
    elif form == "folder":
        for client in range(3):
            mine = MARKED["client"] == client
            arrays = {name: MARKED[name][mine] for name in ("x", "y")} | {"is_test": IS_TEST[mine]}
            saved(tmp_path / f"{client}.npz", **arrays, cluster=MARKED["cluster"][client])
        data = ArrayData(source=tmp_path).federated(0)
    else:
        name = "is_test" if form == "csv" else "late"
        frame = pd.DataFrame({"x": np.arange(12.0), "y": MARKED["y"], "client": MARKED["client"], name: IS_TEST})
        frame.assign(cluster=frame["client"] // 2).to_csv(tmp_path / "own.csv", index=False)
        columns = {"is_test": "late"} if form == "named" else None
        data = ArrayData(source=tmp_path / "own.csv", columns=columns).federated(0)
    assert parts_of(data) == PARTS
    assert data.examples.input_shape == (1,)
    assert data.true_clusters.tolist() == [0, 0, 1]
    assert data.examples.labels.tolist() == [value % 2 for value in data.examples.inputs[:, 0].int().tolist()]


def test_validation_examples_are_not_those_that_are_marked():
    data = ArrayData(**MARKED, is_test=IS_TEST, validation=0.34).federated(0)
    assert [sorted(test) for _, test in parts_of(data)] == [test for _, test in PARTS]
    assert data.validation.sizes.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"is_test": ["train"] * 12}, "is_test holds 'train'; give true or false, or 1 or 0, such as table['part'] =="),
        ({"is_test": np.arange(12)}, "is_test holds '2'; give true or false"),
        ({"is_test": [1, 0]}, "is_test has 2 entries; give 12"),
        ({"is_test": IS_TEST, "test": 0.3}, "test is 0.3, but is_test says which examples are for testing"),
        (
            {"is_test": IS_TEST, "client": None, "cluster": None},
            "is_test is given without client; give client",
        ),
        ({"is_test": np.ones(12)}, "is_test is 1.0 for all examples; mark some of them for testing"),
        ({"is_test": np.zeros(12)}, "is_test is 0.0 for all examples; mark some of them"),
        ({"is_test": IS_TEST, "partition": IID(2, 0.25)}, "partition.test is 0.25, but is_test says which examples"),
    ],
)
def test_wrong_marks_of_test_examples_are_refused(given: dict[str, Any], message: str):
    assert message in error_of(ArrayData(**MARKED | given))


def test_clients_whose_examples_are_all_marked_are_named():
    with pytest.warns(Notice, match="1 of 3 clients have .* none for training, and are left out"):
        data = ArrayData(**MARKED, is_test=IS_TEST | (MARKED["client"] == 1)).federated(0)
    assert data.names == ("0", "2")


@pytest.mark.parametrize("words", ["true false", "TRUE FALSE", "1 0", "1.0 0.0"])
def test_marks_of_a_table_are_read_in_all_usual_forms(tmp_path: Path, words: str):
    marks = [words.split()[not one] for one in IS_TEST]
    frame = pd.DataFrame({"x": np.arange(12.0), "y": MARKED["y"], "client": MARKED["client"], "is_test": marks})
    frame.to_csv(tmp_path / "own.csv", index=False)
    frame.to_parquet(tmp_path / "own.parquet")
    for source in ("own.csv", "own.parquet"):
        assert parts_of(ArrayData(source=tmp_path / source).federated(0)) == PARTS
