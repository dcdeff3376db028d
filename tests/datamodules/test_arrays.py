from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_arrays import assert_refused, examples_of_clients, saved
from quadratic import ids

from lit_cfl.data import FederatedData
from lit_cfl.datamodules import IID, ArrayData, ClassesPerClient, LabelDrift, LabelShifts, Natural
from lit_cfl.errors import Notice

OWNERS = [7, 7, 7, 7, 2, 2, 2, 9, 9, 9, 9, 9]  # clients 7, 2 and 9 have 4, 3 and 5 examples


def given(**changes: Any) -> dict[str, Any]:
    """Returns arguments of ArrayData: the inputs [0, 1], [2, 3], ..., [22, 23], and the labels 0, 1, 2 in turn."""
    return {"x": np.arange(24.0).reshape(12, 2), "y": np.arange(12) % 3} | changes


def owned(**changes: Any) -> ArrayData:
    return ArrayData(**given(client=np.array(OWNERS)) | changes)


def folder_of(tmp_path: Path) -> Path:
    """Writes a folder of `.npz` files: b.npz with 2 examples, a.npz with 1 and a-c.npz with 3."""
    for name, rows in {"b": slice(0, 2), "a": slice(2, 3), "a-c": slice(3, 6)}.items():
        saved(tmp_path / f"{name}.npz", **{key: array[rows] for key, array in given().items()})
    (tmp_path / "notes.txt").write_text("not data")
    return tmp_path


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        ((12, 1, 4, 4), {}, (1, 4, 4)),
        ((12, 4, 5, 3), {}, (3, 4, 5)),
        ((12, 4, 5), {}, (1, 4, 5)),
        ((12, 6), {}, (6,)),
        ((12, 3, 5, 3), {"channels": "first"}, (3, 5, 3)),
        ((12, 3, 5, 3), {"channels": "last"}, (3, 3, 5)),
    ],
)
def test_bytes_are_images_with_channels_first(shape: tuple[int, ...], options: dict[str, Any], expected: tuple):
    x = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    examples = ArrayData(**given(x=x), **options).load()
    assert (examples.input_shape, examples.inputs.dtype) == (expected, torch.uint8)
    if expected == (3, 4, 5):
        assert torch.equal(examples.inputs, torch.from_numpy(x.transpose(0, 3, 1, 2)))
    if x.ndim == 4:
        assert ArrayData(**given(x=x.astype(np.float32)), scale=0.01, **options).load().input_shape == expected


INPUTS: list[tuple[Any, dict[str, Any], list[float], torch.dtype]] = [
    # two inputs and options; what a net gets, and how they are stored
    (np.array([6.5, 7.0]), {}, [6.5, 7.0], torch.float64),
    (np.array([51, 255], np.uint8), {}, [0.2, 1.0], torch.uint8),
    (np.array([51, 255], np.uint8), {"scale": 0.5}, [25.5, 127.5], torch.uint8),
    (np.array([3, 4]), {"scale": 0.5}, [1.5, 2.0], torch.float32),
    (np.array([3, 4], np.uint16), {}, [3.0, 4.0], torch.int64),
    (np.array([True, False]), {}, [1.0, 0.0], torch.float32),
    (np.array([3, 4], np.uint8), {"vocabulary": 5}, [3, 4], torch.int32),
    (np.array([3, 4]), {"vocabulary": 5}, [3, 4], torch.int64),
]


@pytest.mark.parametrize(("row", "options", "expected", "dtype"), INPUTS)
def test_what_a_net_gets_of_inputs(row: np.ndarray, options: dict[str, Any], expected: list[float], dtype: torch.dtype):
    examples = ArrayData(**given(x=np.tile(row, (12, 1))), **options).load()
    (shown,) = examples.batch(ids(7))[0]
    assert (shown.tolist(), examples.inputs.dtype) == (pytest.approx(expected), dtype)
    assert shown.is_floating_point() == (not examples.vocabulary)
    may_be_tokens = row.dtype.kind in "iu" and row.dtype != np.uint8 and row.min() >= 0 and not options
    assert examples.num_tokens == options.get("vocabulary", max(row) + 1 if may_be_tokens else 0)


PIXELS = np.tile(np.array([0, 255], np.uint8), (12, 3, 4, 2))
LARGE: dict[str, tuple[Callable[[], object], str]] = {
    "images of bytes": (lambda: ArrayData(**given(x=PIXELS)).load(), ""),
    "scaled images": (lambda: ArrayData(**given(x=PIXELS.astype(int)), scale=1 / 255).load(), ""),
    "floats": (lambda: ArrayData(**given(x=PIXELS.astype(np.float16))).load(), "the images | 180"),  # 255 / sqrt(2)
    "integers": (lambda: ArrayData(**given(x=PIXELS.astype(np.int32))).load(), "the images | 180 | scale"),
    "other inputs": (lambda: ArrayData(**given(x=np.full((12, 5, 2), -20.0))).load(), "the inputs | 20"),
    "columns": (lambda: ArrayData(**given(x=np.array([[1.0, 50, 40]] * 12))).load(), "columns 1, 2 | 50"),
    "integers, perhaps tokens": (lambda: ArrayData(**given(x=[[3, 400]] * 12)).load(), ""),
    "labels": (lambda: ArrayData(np.ones((20, 2)), np.arange(20) % 7 + 84.0).load(), "the labels | 86.9"),
    "a named column": (
        lambda: ArrayData(pd.DataFrame({"price": [1.0, 2.0], "year": [2020.0, 2021.0]}), [0, 1]).load(),
        "column 'year'",
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_numbers_are_noted_and_not_changed(name: str, recwarn: pytest.WarningsRecorder):
    make, words = LARGE[name]
    make()
    notes = [str(one.message) for one in recwarn if one.category is Notice]
    assert len(notes) == bool(words)
    assert all(word in notes[0] for word in words.split(" | ") if words)


def test_arrays_tensors_lists_and_files_are_the_same(tmp_path: Path):
    arrays = given(client=np.array(OWNERS), cluster=np.array([0, 1, 0]))
    one = ArrayData(**arrays).federated(4)
    others = (
        ArrayData(**{name: torch.from_numpy(array) for name, array in arrays.items()}),
        ArrayData(**{name: array.tolist() for name, array in arrays.items()}),
        ArrayData(source=saved(tmp_path / "own.npz", **arrays)),
    )
    for data in (other.federated(4) for other in others):
        assert torch.equal(data.examples.inputs, one.examples.inputs)
        assert torch.equal(data.examples.labels, one.examples.labels)
        assert torch.equal(data.train.values, one.train.values)
        assert data.true_clusters.tolist() == [0, 1, 0]


def test_columns_of_numbers_and_bools_are_read_together():
    table = pd.DataFrame({"rate": [60.5, 61.0], "asleep": [True, False], "stage": pd.array([2, 3], "Int64")})
    assert ArrayData(table, [0, 1]).pool().examples.inputs.tolist() == [[60.5, 1, 2], [61, 0, 3]]
    whole = ArrayData(table[["asleep", "stage"]], [0, 1]).pool().examples
    assert (whole.inputs.dtype, whole.inputs.tolist()) == (torch.int64, [[1, 2], [0, 3]])
    assert whole.input_names == ("asleep", "stage")
    table["stage"] = pd.array([2, None], "Int64")
    assert_refused(ArrayData(table, [0, 1]), "'stage' | row 1")


COUNTS = np.array([-3, 0, 700000] + 9 * [12])


@pytest.mark.parametrize(
    ("y", "options", "num_labels", "labels"),
    [
        (np.arange(12) % 3, {}, 3, [0, 1, 2]),
        (np.arange(12) % 3, {"num_labels": 5}, 5, [0, 1, 2]),
        (np.array([255, 0, 254] * 4, np.uint8), {"num_labels": 300}, 300, [255, 0, 254]),
        (COUNTS, {"num_labels": 0}, 0, [-3, 0, 700000]),
        (COUNTS + 0.5, {}, 0, [-2.5, 0.5, 700000.5]),
        (None, {}, 0, [0, 0, 0]),
    ],
)
@pytest.mark.filterwarnings("ignore::lit_cfl.errors.Notice")
def test_labels_are_classes_or_numbers(y: Any, options: dict[str, Any], num_labels: int, labels: list[float]):
    examples = ArrayData(**given(y=y), **options).load()
    assert (examples.num_labels, examples.labels[:3].tolist()) == (num_labels, labels)
    assert examples.label_kind == ("none" if y is None else "numbers" if num_labels == 0 else "classes")


@pytest.mark.parametrize("labels", [np.arange(60) % 30 + 70, np.random.default_rng(0).integers(0, 300, 60)])
def test_numbers_taken_for_classes_are_suspected_if_the_test_data_have_new_ones(labels: np.ndarray):
    data = ArrayData(np.ones((60, 2)), labels, client=np.arange(60) % 2, test=0.5)
    assert_refused(data, "num_labels to 0 if labels are numbers to predict")


def test_without_clients_there_are_ten_of_equal_size():
    with pytest.warns(Notice, match="client is not given"):
        data = ArrayData(np.zeros((50, 2)), np.arange(50) % 2, test=0.4).federated(0)
    assert (data.train.sizes.tolist(), data.test.sizes.tolist()) == ([3] * 10, [2] * 10)


@pytest.mark.parametrize(
    ("cluster", "expected", "names"),
    [
        ([5, 0, 3], [5, 0, 3], ()),  # one for each of the clients 2, 7 and 9
        ([0] * 4 + [5] * 3 + [3] * 5, [5, 0, 3], ()),  # one for each example
        (["north", "east", "west"], [1, 0, 2], ("east", "north", "west")),
    ],
)
def test_true_clusters_are_those_given(cluster: list[Any], expected: list[int], names: tuple[str, ...]):
    data = owned(cluster=np.array(cluster)).federated(0)
    assert (data.true_clusters.tolist(), data.cluster_names) == (expected, names)
    for change in ({"skew": LabelShifts([0, 1])}, {"shift": LabelDrift(start=1)}):  # the clusters of these are others
        assert owned(cluster=np.array(cluster), **change).federated(0).cluster_names == ()


def test_clients_that_are_left_out_take_their_cluster_with_them():
    cluster = np.array([3, 1, 2])  # one for each of the clients 2, 7 and 9, which have 3, 4 and 5 examples
    data = owned(cluster=cluster, partition=Natural(min_examples=4, test=0.2)).federated(0)
    assert data.true_clusters.tolist() == [1, 2]
    assert examples_of_clients(data) == [[0, 1, 2, 3], [7, 8, 9, 10, 11]]
    drawn = owned(cluster=cluster, partition=Natural(max_clients=1, test=0.0))
    runs = [drawn.federated(seed) for seed in range(20)]
    found = {tuple(examples_of_clients(data)[0]): int(data.true_clusters) for data in runs}
    assert found == {(4, 5, 6): 3, (0, 1, 2, 3): 1, (7, 8, 9, 10, 11): 2}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "other"),
        ({"skew_kind": "feature"}, "feature"),
        ({"partition": ClassesPerClient(3, 0.0, classes=1), "skew_kind": "feature"}, "other"),
        ({"skew": LabelShifts((0, 1)), "skew_kind": "label"}, "label"),
    ],
)
def test_skew_is_of_one_kind_or_other(options: dict[str, Any], expected: str):
    assert owned(**options).federated(0).skew == expected


MARKED = {"x": np.arange(12.0)[:, None], "y": np.arange(12) % 2, "client": np.arange(12) // 4, "cluster": [0, 0, 1]}
IS_TEST = np.array([0, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0], bool)  # 1, 2 and 1 examples of the three clients
PARTS = [([0, 1, 2], [3]), ([4, 5], [6, 7]), ([9, 10, 11], [8])]


def parts_of(data: FederatedData) -> list[tuple[list[float], list[float]]]:
    inputs = data.examples.inputs[:, 0]
    return [(inputs[train].tolist(), inputs[test].tolist()) for train, test in zip(data.train, data.test, strict=True)]


def test_test_examples_are_those_that_are_marked(tmp_path: Path):
    arrays = MARKED | {"is_test": IS_TEST}
    (tmp_path / "folder").mkdir()
    for client in range(3):
        mine = {name: arrays[name][MARKED["client"] == client] for name in ("x", "y", "is_test")}
        saved(tmp_path / "folder" / f"{client}.npz", **mine, cluster=MARKED["cluster"][client])
    table = pd.DataFrame({"x": np.arange(12.0), "y": MARKED["y"], "client": MARKED["client"]})
    table.assign(is_test=np.where(IS_TEST, "TRUE", "FALSE")).to_csv(tmp_path / "own.csv", index=False)
    table.assign(is_test=np.where(IS_TEST, "1", "0")).to_parquet(tmp_path / "own.parquet")
    for ending in ("csv", "parquet"):
        assert parts_of(ArrayData(source=tmp_path / f"own.{ending}").federated(0)) == PARTS
    for module in (
        ArrayData(**MARKED, is_test=IS_TEST.tolist()),
        ArrayData(source=saved(tmp_path / "own.npz", **arrays)),
        ArrayData(source=tmp_path / "folder"),
    ):
        data = module.federated(0)
        assert parts_of(data) == PARTS
        assert data.true_clusters.tolist() == [0, 0, 1]
        assert data.examples.labels.tolist() == [value % 2 for value in data.examples.inputs[:, 0].int().tolist()]


def test_marks_leave_validation_to_the_others_and_clients_without_training_data_out():
    data = ArrayData(**MARKED, is_test=IS_TEST, validation=0.34).federated(0)
    assert [sorted(test) for _, test in parts_of(data)] == [test for _, test in PARTS]
    assert data.validation.sizes.tolist() == [1, 1, 1]
    with pytest.warns(Notice, match="1 of 3 clients have"):
        data = ArrayData(**MARKED, is_test=IS_TEST | (MARKED["client"] == 1)).federated(0)
    assert data.names == ("0", "2")


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "objects"])
def test_damaged_or_incomplete_file_is_refused(tmp_path: Path, damage: str):
    path = saved(tmp_path / "own.npz", **given())
    content = bytearray(path.read_bytes())
    content[200] ^= 255  # in x, which begins after about 150 bytes of headers
    {
        "empty": lambda: path.write_bytes(b""),
        "cut": lambda: path.write_bytes(path.read_bytes()[:-300]),
        "changed": lambda: path.write_bytes(content),
        "objects": lambda: saved(path, **given(y=np.array([0, None] * 6))),
    }[damage]()
    assert_refused(ArrayData(source=path), f"{path} | damaged")


# Refusals that tests/cli/test_users_mistakes.py does not have


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"client": np.zeros(2)}, "client"),
        ({"z": np.zeros(2)}, "holds x, y, z | leave out all but"),
        ({"x": np.zeros((2, 3))}, "x of float64 (3,) | x of float64 (2,)"),
        ({"y": np.zeros(2)}, "y of floats | y of integers"),
    ],
)
def test_file_that_does_not_fit_its_folder_is_named(tmp_path: Path, arrays: dict[str, Any], words: str):
    saved(folder_of(tmp_path) / "b.npz", **({"x": np.zeros((2, 2)), "y": np.zeros(2, int)} | arrays))
    assert_refused(ArrayData(source=tmp_path), f"{tmp_path / 'b.npz'} | {words}")


PEOPLE = {"client": OWNERS}
WORDS = pd.DataFrame({"rate": [60.0] * 12, "stage": ["W", "N1"] * 6, "start": pd.to_datetime(["2025-03-01"] * 12)})
FAR = np.where(np.arange(12) % 10 == 8, 7, np.arange(12) % 3)
REFUSED: dict[str, dict[str, Any]] = {
    "x | channels | first": {"x": np.zeros((12, 3, 5, 3), np.uint8)},
    "vocabulary | 9 | scale | 0.5": {"vocabulary": 9, "x": np.zeros((12, 2), int), "scale": 0.5},
    "x | 'stage', 'start'": {"x": WORDS},
    "x | shape (12,)": {"x": np.zeros(12)},
    "x | uint64 | integers": {"x": np.full((12, 2), 2**63, np.uint64)},
    "y | 7 | row 8 | 0 to 2 | num_labels": {"y": FAR, "num_labels": 3},
    "y | float64 | num_labels | 3": {"y": np.zeros(12), "num_labels": 3},
    "y | 'low' | num_labels | 0": {"y": ["low", "high"] * 6, "num_labels": 0},
    "cluster | client": {"cluster": np.zeros(12, int)},
    "cluster | 2 | 12 or 3": {"cluster": [0, 1]} | PEOPLE,
    "client 0 | 'a' and 'c'": {"cluster": ["a", "b", "c"], "partition": IID(2, 0.0)} | PEOPLE,
    "is_test | test | 0.3": {"is_test": IS_TEST, "test": 0.3} | PEOPLE,
    "is_test | partition.test | 0.25": {"is_test": IS_TEST, "partition": IID(2, 0.25)} | PEOPLE,
    "x, y, source": {"source": "own.npz"},
}


@pytest.mark.parametrize(("words", "options"), REFUSED.items())
@pytest.mark.filterwarnings("ignore::lit_cfl.errors.Notice")
def test_arrays_that_cannot_be_used_are_refused(words: str, options: dict[str, Any]):
    assert_refused(lambda: ArrayData(**given(**options)).federated(0), words)
