"""ArrayData: arrays, tensors and .npz files in all their forms; their clients and true clusters; what is refused."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ids

from datamodules.arrays import ArrayData
from datamodules.partition import IID
from datamodules.partition.natural import Natural
from datamodules.skew import LabelShifts, Rotations
from lit_cfl.algorithms import FedAvg
from lit_cfl.data import FederatedData
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

OWNERS = [7, 7, 7, 7, 2, 2, 2, 9, 9, 9, 9, 9]  # clients 1, 0 and 2 with 4, 3 and 5 examples


def given(**changes: Any) -> dict[str, Any]:
    """Twelve inputs of two numbers: 0 1, 2 3, ..., with labels 0, 1, 2 in turn."""
    return {"x": np.arange(24.0).reshape(12, 2), "y": np.arange(12) % 3} | changes


def owned(**changes: Any) -> ArrayData:
    return ArrayData(**given(client=np.array(OWNERS)), **changes)


def examples_of_clients(data: FederatedData) -> list[list[int]]:
    """Numbers of the examples of each client, whatever its view and the split."""
    size = len(data.examples)
    pairs = zip(data.train, data.test, strict=True)
    return [sorted((torch.cat([train, test]) % size).tolist()) for train, test in pairs]


def error_of(module: Callable[[], object] | ArrayData) -> str:
    with pytest.raises(InputError) as error:
        module.federated(0) if isinstance(module, ArrayData) else module()
    return str(error.value)


# Inputs


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((12, 1, 4, 4), (1, 4, 4)),
        ((12, 3, 4, 4), (3, 4, 4)),
        ((12, 4, 5, 3), (3, 4, 5)),
        ((12, 4, 5, 1), (1, 4, 5)),
        ((12, 4, 5), (1, 4, 5)),
        ((12, 6), (6,)),
        ((12, 2, 3, 4, 5), (2, 3, 4, 5)),
    ],
)
def test_bytes_are_images_with_channels_first(shape: tuple[int, ...], expected: tuple[int, ...]):
    examples = ArrayData(np.zeros(shape, np.uint8), np.zeros(12, int)).load()
    assert (examples.input_shape, examples.inputs.dtype) == (expected, torch.uint8)


def test_channels_that_come_last_are_moved_and_not_mixed():
    x = np.random.default_rng(0).integers(0, 256, (12, 4, 5, 3), np.uint8)
    examples = ArrayData(x, np.zeros(12, int)).load()
    assert examples.inputs[7, 2, 1, 3] == x[7, 1, 3, 2]
    assert torch.equal(examples.batch(ids(7))[0][0, 2, 1, 3], torch.tensor(x[7, 1, 3, 2]) * torch.tensor(1 / 255))


@pytest.mark.parametrize(("channels", "expected"), [("first", (3, 5, 3)), ("last", (3, 3, 5))])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_axis_of_the_channels_can_be_named(channels: str, expected: tuple[int, ...], dtype: type):
    x = np.zeros((12, 3, 5, 3), dtype)
    assert ArrayData(x, np.zeros(12, int), channels=channels).load().input_shape == expected


@pytest.mark.parametrize("shape", [(12, 3, 5, 3), (12, 4, 5, 6), (12, 1, 8, 1)])
def test_channels_that_could_be_anywhere_are_refused(shape: tuple[int, ...]):
    message = error_of(ArrayData(np.zeros(shape, np.uint8), np.zeros(12, int)))
    assert message == f"x has shape {shape}: which axis holds the channels? Set channels to first or last"


def test_floats_stay_as_they_are():
    examples = ArrayData(**given()).load()
    assert (examples.inputs.dtype, examples.scale, examples.vocabulary) == (torch.float64, 1.0, 0)
    assert examples.batch(ids(3))[0].tolist() == [[6.0, 7.0]]
    assert ArrayData(**given(x=np.zeros((12, 5, 4), np.float32))).load().input_shape == (5, 4)


def test_bytes_are_scaled_by_1_over_255_unless_told_otherwise():
    x = np.full((12, 2, 2), 51, np.uint8)
    assert ArrayData(x, np.zeros(12, int)).load().batch(ids(0))[0].unique().tolist() == pytest.approx([0.2])
    assert ArrayData(x, np.zeros(12, int), scale=0.5).load().batch(ids(0))[0].unique().tolist() == [25.5]
    assert ArrayData(**given(), scale=0.5).load().batch(ids(1))[0].tolist() == [[1.0, 1.5]]


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.uint16, np.int8])
def test_other_integers_are_token_ids(dtype: type):
    examples = ArrayData(**given(x=np.arange(24, dtype=dtype).reshape(12, 2))).load()
    tokens = examples.batch(ids(3))[0]
    assert (tokens.tolist(), tokens.is_floating_point(), examples.vocabulary) == ([[6, 7]], False, 24)
    assert examples.inputs.dtype == (torch.int32 if dtype is np.int32 else torch.int64)


def test_arrays_tensors_and_lists_are_the_same():
    arrays = given(client=np.array(OWNERS), cluster=np.array([0, 1, 0]))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    lists = {name: array.tolist() for name, array in arrays.items()}
    one, other, third = (ArrayData(**form).federated(4) for form in (arrays, tensors, lists))
    for data in (other, third):
        assert torch.equal(data.examples.inputs, one.examples.inputs)
        assert torch.equal(data.examples.labels, one.examples.labels)
        assert torch.equal(data.train.values, one.train.values)
        assert torch.equal(data.true_clusters, one.true_clusters)


def test_arrays_that_torch_cannot_share_are_copied():
    x = given()["x"]
    locked = x.copy()
    locked.flags.writeable = False
    for form in (
        x.astype(">f4"),
        x.astype(np.longdouble),
        np.asfortranarray(x),
        x[::-1][::-1],
        locked,
        torch.from_numpy(x).requires_grad_(),
    ):
        assert ArrayData(**given(x=form)).load().inputs.tolist() == x.tolist()


def test_other_arrays_are_not_copied():
    arrays = given()
    arrays["x"][0, 0] = -5
    module = ArrayData(**arrays)
    assert module.load().inputs.data_ptr() == arrays["x"].ctypes.data


# Labels


def test_label_space_is_as_large_as_the_labels_say():
    assert ArrayData(**given()).load().num_labels == 3
    assert ArrayData(**given(), num_labels=5).load().num_labels == 5
    assert ArrayData(**given(y=(np.arange(12) % 3).astype(np.uint8))).load().labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("label", "num_labels", "expected"),
    [
        (-2, None, "y holds the label -2 in row 8; labels are 0 to 2"),
        (7, 3, "y holds the label 7 in row 8; labels are 0 to 2"),
        (3, 3, "y holds the label 3 in row 8; labels are 0 to 2"),
    ],
)
def test_label_outside_its_range_is_refused(label: int, num_labels: int | None, expected: str):
    y = np.arange(12) % 3
    y[8] = y[10] = label
    assert expected in error_of(ArrayData(**given(y=y), num_labels=num_labels))


def test_labels_that_are_no_integers_are_refused():
    assert "y has dtype torch.float64; labels are integers" in error_of(ArrayData(**given(y=np.zeros(12))))
    assert "y has dtype bool" in error_of(ArrayData(**given(y=np.zeros(12, bool))))
    assert "y has dtype object" in error_of(ArrayData(**given(y=np.array([0, None] * 6))))


# Clients


def test_clients_are_those_named_in_ascending_order():
    module = owned()
    assert examples_of_clients(module.federated(0)) == [[4, 5, 6], [0, 1, 2, 3], [7, 8, 9, 10, 11]]
    assert module.pool().names == ("2", "7", "9")


def test_clients_may_have_words_for_names():
    words = np.array(["b", "a", "b", "c"] * 3)
    module = ArrayData(**given(client=words))
    assert module.pool().names == ("a", "b", "c")
    assert examples_of_clients(module.federated(0))[0] == [1, 5, 9]


def test_each_client_keeps_its_share_for_testing():
    data = owned(test=0.4).federated(0)
    assert data.test.sizes.tolist() == [1, 2, 2]  # round(0.4 n)
    assert owned(test=0).federated(0).test.sizes.tolist() == [0, 0, 0]


def test_without_clients_there_are_ten_of_equal_size():
    data = ArrayData(np.zeros((50, 2)), np.arange(50) % 2, test=0.4).federated(0)
    assert (data.train.sizes.tolist(), data.test.sizes.tolist()) == ([3] * 10, [2] * 10)
    assert sorted(i for client in examples_of_clients(data) for i in client) == list(range(50))


def test_partition_stands_in_place_of_the_clients():
    data = owned(partition=IID(4, 0.0)).federated(0)
    assert data.train.sizes.tolist() == [3, 3, 3, 3]


def test_split_depends_on_the_seed():
    one, other, again = (owned(test=0.5, allow_unseen_labels=True).federated(seed).test for seed in (0, 1, 0))
    assert one.values.tolist() != other.values.tolist()
    assert one.values.tolist() == again.values.tolist()


# True clusters


@pytest.mark.parametrize(
    "cluster",
    [
        [5, 0, 5],  # of clients 2, 7 and 9
        [0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5],  # of each example
    ],
)
def test_true_clusters_are_those_given(cluster: list[int]):
    assert owned(cluster=np.array(cluster)).federated(0).true_clusters.tolist() == [5, 0, 5]


def test_true_clusters_may_be_words():
    assert owned(cluster=np.array(["north", "east", "north"])).federated(0).true_clusters.tolist() == [1, 0, 1]


def test_true_clusters_are_unknown_unless_given():
    assert owned().federated(0).true_clusters.tolist() == [-1, -1, -1]


def test_clients_that_are_left_out_take_their_cluster_with_them():
    cluster = np.array([3, 1, 2])  # of clients 2, 7 and 9 with 3, 4 and 5 examples
    module = owned(cluster=cluster, partition=Natural(min_examples=4, test=0.2))
    assert module.federated(0).true_clusters.tolist() == [1, 2]
    assert examples_of_clients(module.federated(0)) == [[0, 1, 2, 3], [7, 8, 9, 10, 11]]
    drawn = owned(cluster=cluster, partition=Natural(max_clients=1, test=0.0))
    runs = [drawn.federated(seed) for seed in range(20)]
    found = {tuple(examples_of_clients(data)[0]): int(data.true_clusters) for data in runs}
    assert found == {(4, 5, 6): 3, (0, 1, 2, 3): 1, (7, 8, 9, 10, 11): 2}


def test_skew_on_top_gives_the_product_of_clusters():
    clients, cluster = np.arange(40).repeat(3), np.arange(40) % 2
    images = np.random.default_rng(0).integers(0, 256, (120, 4, 4), np.uint8)
    data = ArrayData(images, np.arange(120) % 3, clients, cluster, skew=[Rotations((0, 180))]).federated(0)
    views = data.train.values[data.train.starts] // 120
    assert data.true_clusters.tolist() == (torch.arange(40) % 2 * 2 + views).tolist()
    assert data.true_clusters.bincount().tolist() == [10, 10, 10, 10]  # not the rotation alone, nor the cluster alone


def test_copies_for_each_view_keep_the_clusters_of_their_clients():
    data = owned(cluster=np.array([2, 0, 1]), skew=[LabelShifts((0, 1))], copies=True).federated(0)
    assert data.true_clusters.tolist() == [4, 0, 2, 5, 1, 3]  # 2 cluster + view


@pytest.mark.parametrize("kind", ["feature", "label", "other"])
def test_skew_is_what_the_user_says(kind: str):
    assert owned(skew_kind=kind).federated(0).skew == kind


def test_skew_of_the_partition_counts_too():
    class ByLabel(IID):
        skew = "label"

    assert owned(partition=ByLabel(2)).federated(0).skew == "label"
    assert owned(partition=ByLabel(2), skew_kind="feature").federated(0).skew == "other"


def test_skew_of_two_kinds_is_other():
    assert owned(skew_kind="label", skew=[LabelShifts((0, 1))]).federated(0).skew == "label"
    assert owned(skew_kind="feature", skew=[LabelShifts((0, 1))]).federated(0).skew == "other"


# Files


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def folder_of(tmp_path: Path, **clusters: Any) -> Path:
    """Files b.npz with 2 examples, a.npz with 1 and a-c.npz with 3."""
    for name, rows in {"b": slice(0, 2), "a": slice(2, 3), "a-c": slice(3, 6)}.items():
        arrays = {key: array[rows] for key, array in given().items()}
        saved(tmp_path / f"{name}.npz", **arrays, **({"cluster": clusters[name[-1]]} if clusters else {}))
    (tmp_path / "notes.txt").write_text("not data")
    return tmp_path


def test_file_is_the_arrays_in_it(tmp_path: Path):
    arrays = given(client=np.array(OWNERS), cluster=np.array([0, 1, 0]))
    read = ArrayData(source=saved(tmp_path / "own.npz", **arrays, comment=np.array("ignored"))).federated(2)
    direct = ArrayData(**arrays).federated(2)
    assert torch.equal(read.examples.inputs, direct.examples.inputs)
    assert torch.equal(read.train.values, direct.train.values)
    assert read.true_clusters.tolist() == [0, 1, 0]


def test_file_without_clients_is_divided(tmp_path: Path):
    module = ArrayData(source=str(saved(tmp_path / "own.npz", **given())), partition=IID(3))
    assert module.federated(0).num_clients == 3


def test_folder_has_a_file_for_each_client(tmp_path: Path):
    module = ArrayData(source=folder_of(tmp_path))
    assert module.pool().names == ("a", "a-c", "b")
    data = module.federated(0)
    inputs = [sorted(module.examples.inputs[client, 0].tolist()) for client in data.train.plus(data.test)]
    assert inputs == [[4], [6, 8, 10], [0, 2]]
    assert data.true_clusters.tolist() == [-1, -1, -1]


def test_files_of_a_folder_may_name_their_cluster(tmp_path: Path):
    module = ArrayData(source=folder_of(tmp_path, a=1, b=0, c=np.array([1])))
    assert module.federated(0).true_clusters.tolist() == [1, 1, 0]


def test_source_that_is_not_there_is_refused(tmp_path: Path):
    assert "there is no file or folder" in error_of(ArrayData(source=tmp_path / "none.npz"))
    assert "holds no file .npz" in error_of(ArrayData(source=tmp_path))


def test_missing_array_is_named_with_those_there_are(tmp_path: Path):
    path = saved(tmp_path / "own.npz", images=np.zeros((3, 2)), y=np.zeros(3, int))
    assert error_of(ArrayData(source=path)) == f"{path} has no array 'x'; it holds images, y"


@pytest.mark.parametrize("damage", ["cut", "changed", "text", "empty", "array", "objects"])
def test_damaged_file_is_refused(tmp_path: Path, damage: str):
    path = saved(tmp_path / "own.npz", **given())
    content = bytearray(path.read_bytes())
    content[200] ^= 255  # in x, which begins after about 150 bytes of headers
    {
        "cut": lambda: path.write_bytes(path.read_bytes()[:-300]),
        "changed": lambda: path.write_bytes(content),
        "text": lambda: path.write_text("x, y"),
        "empty": lambda: path.write_bytes(b""),
        "array": lambda: path.write_bytes(npy(np.zeros(3))),
        "objects": lambda: saved(path, **given(y=np.array([0, None] * 6))),
    }[damage]()
    assert f"{path} is damaged, no .npz, or holds objects" in error_of(ArrayData(source=path))


def npy(array: np.ndarray) -> bytes:
    from io import BytesIO

    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"client": np.zeros(2)}, "holds client, but in a folder each file is one"),
        ({"cluster": 1}, "give one cluster in each file of the folder, or in none"),
        ({"x": np.zeros((2, 3))}, r"holds x of float64 (3,), the first file of the folder float64 (2,)"),
        ({"x": np.zeros((2, 2), np.float32)}, r"holds x of float32 (2,), the first file of the folder float64 (2,)"),
        ({"y": np.zeros(3, int)}, r"has x of shape (2, 2) and y of shape (3,)"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, r"has x of shape (0, 2) and y of shape (0,)"),
    ],
)
def test_file_that_does_not_fit_its_folder_is_named(tmp_path: Path, arrays: dict[str, Any], expected: str):
    saved(folder_of(tmp_path) / "b.npz", **({"x": np.zeros((2, 2)), "y": np.zeros(2, int)} | arrays))
    message = error_of(ArrayData(source=tmp_path))
    assert str(tmp_path / "b.npz") in message
    assert expected in message


def test_cluster_that_is_no_single_one_in_a_folder_is_refused(tmp_path: Path):
    message = error_of(ArrayData(source=folder_of(tmp_path, a=1, b=np.array([0, 1]), c=1)))
    assert "b.npz: give one cluster in each file" in message


# What else is refused


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"x": np.zeros((3, 2))}, "y has shape (12,) for 3 examples in x; give one label for each, [3]"),
        ({"y": np.zeros((12, 1), int)}, "y has shape (12, 1) for 12 examples"),
        ({"client": np.arange(5)}, "client has 5 entries; give 12"),
        ({"client": np.zeros(12)}, "client has dtype float64 and shape (12,); give one axis of integers or str"),
        ({"client": np.zeros((12, 1), int)}, "client has dtype int64 and shape (12, 1)"),
        ({"client": np.array(["a", None] * 6)}, "client has dtype object"),
        ({"cluster": np.zeros(12, int)}, "cluster is given without client"),
        ({"client": np.array(OWNERS), "cluster": [0, 1]}, "cluster has 2 entries; give 12 or 3"),
        ({"client": np.array(OWNERS), "cluster": [0, -1, 1]}, "cluster holds -1; true clusters are integers from 0"),
        ({"client": np.array(OWNERS), "cluster": [0.0, 1.0, 1.0]}, "cluster has dtype float64"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "x has shape (0, 2); give [N, ...]"),
        ({"x": np.zeros(12)}, "x has shape (12,); give [N, ...]"),
        ({"x": np.zeros((12, 0))}, "x has shape (12, 0)"),
        ({"x": 3.0}, "x has shape ()"),
        ({"x": np.array([[0, None]] * 12)}, "x has dtype object; give integers or floats"),
        ({"x": np.zeros((12, 2), bool)}, "x has dtype bool; give integers or floats"),
        ({"x": np.zeros((12, 2), complex)}, "x has dtype complex128; give integers or floats"),
        ({"x": "own.npz"}, "x has dtype <U7; give integers or floats"),
        ({"x": [[1, 2], [3]] * 6}, "x is no array"),
        ({"x": torch.zeros(12, 2, dtype=torch.bfloat16)}, "x is no array"),
        ({"x": np.array([[3, -4]] * 12)}, "token ids, from 0 and never scaled (least: -4, scale: None)"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(changes: dict[str, Any], expected: str):
    assert expected in error_of(ArrayData(**given(**changes)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_number_that_is_not_finite_is_found(value: float):
    x = np.zeros((12, 2, 3, 4), np.float32)
    x[5, 1, 2, 3] = x[9, 0, 0, 0] = value
    assert "x holds NaN or infinity in row 5;" in error_of(ArrayData(**given(x=x), channels="first"))


def test_client_in_two_true_clusters_is_named():
    cluster = np.array([1, 1, 1, 1, 0, 0, 0, 2, 2, 2, 4, 2])
    message = error_of(owned(cluster=cluster))
    assert "client 9 has examples of the true clusters 2 and 4 (1 such clients)" in message


def test_partition_that_mixes_true_clusters_is_refused():
    message = error_of(owned(cluster=np.array([0, 1, 2]), partition=IID(2, 0.0)))
    assert "client 0 has examples of the true clusters" in message
    assert "leave it out" in message


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf")])
def test_scale_that_is_no_factor_is_refused(scale: float):
    assert f"scale is {scale}; give a number above 0" in error_of(ArrayData(**given(), scale=scale))


def test_tokens_are_not_scaled():
    assert "scale: 0.5" in error_of(ArrayData(**given(x=np.zeros((12, 2), int)), scale=0.5))


@pytest.mark.parametrize("share", [1.0, -0.1])
def test_share_outside_its_range_is_refused(share: float):
    assert f"{share}" in error_of(owned(test=share))
    assert f"{share}" in error_of(ArrayData(**given(), test=share))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "nothing given; give x and y, or a source alone"),
        ({"x": [[1.0]]}, "x given; give x and y"),
        ({"y": [1]}, "y given; give x and y"),
        (given(source="own.npz"), "x, y, source given; give x and y, or a source alone"),
        ({"client": [1], "source": "own.npz"}, "client, source given"),
    ],
)
def test_arrays_or_a_source_are_needed_and_not_both(arguments: dict[str, Any], expected: str):
    assert expected in error_of(lambda: ArrayData(**arguments))


# A run


@pytest.mark.parametrize("form", ["arrays", "folder"])
def test_fedavg_trains_on_it(tmp_path: Path, form: str):
    module = owned() if form == "arrays" else ArrayData(source=folder_of(tmp_path), test=0.0)
    task = lambda: Classification(MCLR([2], 3), partial(torch.optim.SGD, lr=0.1))  # noqa: E731
    experiment = Experiment(module, task, FedAvg(), rounds=1, cohort_size=2)
    assert [np.isfinite(r.info.loss) for r in experiment] == [True]
