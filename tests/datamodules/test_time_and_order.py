"""Tests splits by the order of rows and by time, and the order of classes and true clusters, against hand-made rows."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_arrays import assert_refused, saved

from lit_cfl.data import FederatedData
from lit_cfl.datamodules import IID, ArrayData, Dirichlet, FederatedDataModule, LabelShifts, Natural
from lit_cfl.datamodules.columns import times_of
from lit_cfl.errors import Notice

# "al" has the days 1 to 10, "bo" 11 to 15 and "cy" only 16; x is the day, and the rows are shuffled
DAYS = np.random.default_rng(0).permutation(np.arange(1, 17))
OWNERS = np.array(["al"] * 10 + ["bo"] * 5 + ["cy"])[DAYS - 1]
DATES = np.array([f"2024-03-{day:02}" for day in DAYS])
SPLIT = [
    ([1, 2, 3, 4, 5, 6], [7, 8], [9, 10]),  # 0.2 of 10, then 0.25 of the remaining 8
    ([11, 12, 13], [14], [15]),
    ([16], [], []),
]


def rows(**changes: Any) -> dict[str, Any]:
    return {"x": DAYS[:, None].astype(float), "y": DAYS % 2, "client": OWNERS, "validation": 0.25} | changes


def parts(data: FederatedData) -> list[tuple[list[int], ...]]:
    """Returns the first input of each client's training, validation and test examples."""
    seen = data.examples.inputs[:, 0].int()
    lists = zip(data.train, data.validation, data.test, strict=True)
    return [tuple(seen[one % len(seen)].tolist() for one in client) for client in lists]


def notes(module: FederatedDataModule) -> list[str]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        module.federated(0)
    return [str(one.message) for one in given if one.category is Notice and "large numbers" not in str(one.message)]


def table(path: Path, **columns: Any) -> Path:
    frame = pd.DataFrame({"x": DAYS, "y": DAYS % 2, "client": OWNERS} | columns)
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)
    return path


@pytest.mark.parametrize("seed", [0, 1])
def test_the_last_of_each_client_by_time_are_its_test_data_and_those_before_its_validation_data(seed: int, tmp_path):
    words: dict[str, Any] = {"columns": {"time": "when"}, "validation": 0.25}
    npz = {name: array for name, array in rows(time=pd.to_datetime(DATES).to_numpy()).items() if name != "validation"}
    for module in (
        ArrayData(**rows(time=DATES)),
        ArrayData(**rows(time=DAYS / 7)),
        ArrayData(**rows(time=pd.Series(pd.to_datetime(DATES)).dt.tz_localize("Asia/Tokyo"))),
        ArrayData(source=table(tmp_path / "own.csv", when=DATES), **words),
        ArrayData(source=table(tmp_path / "own.csv", when=[f"{day}.50" for day in DAYS]), **words),
        ArrayData(source=table(tmp_path / "own.parquet", when=pd.to_datetime(DATES)), **words),
        ArrayData(source=saved(tmp_path / "own.npz", **npz), validation=0.25),
    ):
        data = module.federated(seed)
        assert parts(data) == SPLIT
        assert data.examples.inputs.shape == (16, 1)
        assert torch.equal(data.examples.labels, data.examples.inputs[:, 0].long() % 2)


def test_a_folder_of_clients_may_have_times(tmp_path: Path):
    for client in ("al", "bo", "cy"):
        mine = client == OWNERS
        saved(tmp_path / f"{client}.npz", x=DAYS[mine, None].astype(float), y=DAYS[mine] % 2, time=DATES[mine])
    assert parts(ArrayData(source=tmp_path, validation=0.25).federated(0)) == SPLIT


def test_times_of_several_zones_are_compared_in_one():
    zones = ["2024-03-05T01:00+02:00", "2024-03-04T23:30Z", "2024-03-04 23:15", "2024-03-04"]
    assert np.argsort(times_of(zones, "time")).tolist() == [3, 0, 2, 1]
    assert np.argsort(times_of(["10", "9", "1e1"], "time"), kind="stable").tolist() == [1, 0, 2]


def test_without_a_time_the_order_of_the_source_counts():
    order = np.argsort(DAYS)
    sorted_rows = {name: value[order] for name, value in rows().items() if name != "validation"}
    assert parts(ArrayData(**sorted_rows, test="last", validation=0.25).federated(0)) == SPLIT
    backwards = {name: value[::-1] for name, value in sorted_rows.items()}
    assert parts(ArrayData(**backwards, test="last").federated(0))[1] == ([15, 14, 13, 12], [], [11])
    random = parts(ArrayData(**sorted_rows, validation=0.25).federated(0))
    assert [list(map(len, one)) for one in random] == [list(map(len, one)) for one in SPLIT]
    assert [list(map(sorted, one)) for one in random] != [list(map(list, one)) for one in SPLIT]


@pytest.mark.parametrize(
    ("options", "test"),
    [
        ({"test": 0.5}, [5, 2, 0]),
        ({"test": 0}, [0, 0, 0]),
        ({"partition": Natural(min_examples=5, test=0.4)}, [4, 2]),
        ({"partition": IID(2, 0.25)}, [2, 2]),
        ({"partition": Dirichlet(2, 0.25, alpha=100.0, min_size=4)}, None),
        ({"skew": LabelShifts(shifts=[0, 1])}, [2, 1, 0]),
        ({"skew": LabelShifts(shifts=[0, 1]), "copies": True}, [2, 1, 0, 2, 1, 0]),
    ],
)
@pytest.mark.filterwarnings("ignore::lit_cfl.errors.Notice")
def test_nothing_is_trained_on_the_future_under_any_partition(options: dict[str, Any], test: list[int] | None):
    data = ArrayData(**rows(time=DATES, validation=0.3) | options).federated(3)
    for found in parts(data):
        mine = [day for part in found for day in part]
        assert mine == sorted(mine)
        assert len(found[0]) > 0
    assert test is None or data.test.sizes.tolist() == test


def test_a_tie_at_the_split_keeps_the_order_of_the_source():
    tied = np.where(DAYS == 8, "2024-03-09T00:00", DATES)  # the day 8 ends the training data of "al"
    (first, _, last), *_ = parts(ArrayData(**rows(time=tied, validation=0)).federated(0))
    assert {*first, *last} == {*range(1, 11)}
    assert [day for day in DAYS if day in (8, 9)] == [first[-1], last[0]]
    assert notes(ArrayData(**rows(time=DATES))) == []


def test_a_column_of_dates_is_left_out_and_noted_with_a_random_split(tmp_path: Path):
    path = table(tmp_path / "own.csv", when=DATES)
    module = ArrayData(source=path)
    (note,) = notes(module)
    for words in ("'when'", "under a random split, rows of the future train", "columns: {time: when}"):
        assert words in note
    assert module.examples.input_names == ("x",)
    marked = table(tmp_path / "marked.parquet", when=pd.to_datetime(DATES), is_test=DAYS == 5)
    assert "future" not in notes(ArrayData(source=marked))[0]
    assert notes(ArrayData(source=path, columns={"time": "when"})) == []
    years = table(tmp_path / "own.csv", when=[str(2000 + day) for day in DAYS], time=DAYS)  # numbers are inputs
    assert ArrayData(source=years, test="last").pool().examples.input_names == ("x", "when", "time")


@pytest.mark.parametrize("written", ["31.12.2024", "2024-13-01", "today", "soon"])
def test_a_time_that_cannot_be_read_is_quoted(written: str, tmp_path: Path):
    wrong = np.where(np.arange(16) == 3, written, DATES)
    assert_refused(ArrayData(**rows(time=wrong)), f"time | '{written}' | row 3 (from 0) | 2024-03-05 14:30")
    path = table(tmp_path / "own.csv", when=wrong)
    assert_refused(
        ArrayData(source=path, columns={"time": "when"}), f"{path} | 'when' | '{written}' | row 5 | 2024-03-05 14:30"
    )


def test_missing_times_and_two_rules_for_the_test_data_are_refused(tmp_path: Path):
    blank = table(tmp_path / "own.csv", when=np.where(np.arange(16) == 3, "", DATES))
    assert_refused(ArrayData(source=blank, columns={"time": "when"}), "'when' | empty | row 5")
    assert_refused(ArrayData(**rows(time=pd.to_datetime(DATES).where(DAYS != 5))), "time | NaT | row")
    assert_refused(ArrayData(**rows(time=np.where(DAYS == 5, np.nan, DAYS))), "time | nan | row")
    assert_refused(ArrayData(**rows(time=DAYS, is_test=DAYS == 5)), "time | is_test | leave")
    assert_refused(ArrayData(**rows(test="last", is_test=DAYS == 5)), "test is last | is_test | leave")
    assert_refused(ArrayData(**rows(test="first")), "test is 'first'")


NAMES = ["low", "mid", "high"]
LEVELS = np.array(NAMES)[DAYS % 3]


@pytest.mark.parametrize("how", ["list", "ordered", "unordered", "table", "parquet"])
def test_classes_and_clusters_have_the_given_order(how: str, tmp_path: Path):
    order, sites = ["mid", "high", "low", "none"], ["south", "north"]
    site = np.where(OWNERS == "bo", "south", "north")
    frame = pd.DataFrame({"y": LEVELS, "cluster": site})
    for name, names in (("y", order), ("cluster", sites)):
        if how in ("ordered", "unordered", "parquet"):
            frame[name] = pd.Categorical(frame[name], names, ordered=how == "ordered")
    columns = {name: frame[name] for name in frame}
    lists: dict[str, Any] = {"classes": order, "clusters": sites} if how in ("list", "table") else {}
    if how in ("table", "parquet"):
        path = tmp_path / {"table": "own.csv", "parquet": "own.parquet"}[how]
        data = ArrayData(source=table(path, **columns), **lists).federated(0)
    else:
        data = ArrayData(**rows(**columns), **lists).federated(0)
    assert (data.examples.label_names, data.examples.num_labels) == (tuple(order), 4)
    assert [order[label] for label in data.examples.labels] == LEVELS.tolist()
    assert (data.cluster_names, data.true_clusters.tolist()) == (("south", "north"), [1, 0, 1])


def test_numbers_may_be_listed_and_categories_that_are_numbers_stay_numbers():
    data = ArrayData(**rows(y=DAYS % 3 + 1, classes=[3, 2, 1])).federated(0)
    assert data.examples.label_names == ("3", "2", "1")
    assert data.examples.labels.tolist() == (2 - DAYS % 3).tolist()
    plain = ArrayData(**rows(y=pd.Series(DAYS % 3, dtype="category"))).federated(0)
    assert (plain.examples.label_names, plain.examples.labels.tolist()) == ((), (DAYS % 3).tolist())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"y": LEVELS, "classes": ["low", "high"]}, "y | 'mid' | low, high"),
        ({"cluster": ["n", "s", "w"], "clusters": ["s", "n"]}, "cluster | 'w' | s, n"),
        ({"y": LEVELS, "classes": [*NAMES, "low"]}, "y | twice | low, mid, high, low"),
        ({"y": LEVELS, "classes": NAMES, "num_labels": 4}, "3 classes (low, mid, high) | num_labels: 4"),
        ({"y": np.eye(2)[DAYS % 2], "classes": ["a", "b"]}, "y | shape (16, 2)"),
        ({"clusters": ["a", "b"]}, "cluster | shape ()"),
        ({"y": pd.Series(LEVELS).where(DAYS != 5).astype("category")}, "y | nan | row"),
    ],
)
def test_values_that_are_not_in_the_list_are_refused(options: dict[str, Any], words: str):
    assert_refused(lambda: ArrayData(**rows(**options)).federated(0), words)
