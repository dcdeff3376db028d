"""Tests ArrayData: its clients and their true clusters, and files of arrays."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_arrays import OWNERS, error_of, examples_of_clients, folder_of, given, owned, saved
from torch import Tensor

from lit_cfl.data import ClientIndex
from lit_cfl.datamodules import ArrayData
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.partition.natural import Natural
from lit_cfl.datamodules.shift.drift import LabelDrift
from lit_cfl.datamodules.skew import LabelShifts, Rotations
from lit_cfl.errors import InputError, Notice

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


def test_partition_replaces_the_clients():
    data = owned(partition=IID(4, 0.0)).federated(0)
    assert data.train.sizes.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("partition", ["IID", IID])
def test_a_partition_of_another_type_is_refused(partition: Any):
    assert f"partition is {partition!r}; give a Partition" in error_of(lambda: owned(partition=partition))


def test_split_depends_on_the_seed():
    one, other, again = (owned(test=0.5, allow_unseen_labels=True).federated(seed).test for seed in (0, 1, 0))
    assert one.values.tolist() != other.values.tolist()
    assert one.values.tolist() == again.values.tolist()


# True clusters


@pytest.mark.parametrize(
    "cluster",
    [
        [5, 0, 5],  # one for each of the clients 2, 7 and 9
        [0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5],  # one for each example
    ],
)
def test_true_clusters_are_those_given(cluster: list[int]):
    assert owned(cluster=np.array(cluster)).federated(0).true_clusters.tolist() == [5, 0, 5]


def test_true_clusters_may_be_words():
    words = np.array(["north", "east", "north"])
    data = owned(cluster=words).federated(0)
    assert data.true_clusters.tolist() == [1, 0, 1]
    assert data.cluster_names == ("east", "north")
    # the clusters of a skew or a drift are others
    assert owned(cluster=words, skew=LabelShifts([0, 1])).federated(0).cluster_names == ()
    assert owned(cluster=words, shift=LabelDrift(start=1)).federated(0).cluster_names == ()


def test_true_clusters_are_unknown_unless_given():
    assert owned().federated(0).true_clusters.tolist() == [-1, -1, -1]


def test_clients_that_are_left_out_take_their_cluster_with_them():
    cluster = np.array([3, 1, 2])  # one for each of the clients 2, 7 and 9, which have 3, 4 and 5 examples
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
    # true clusters combine the rotation and the given cluster
    assert data.true_clusters.bincount().tolist() == [10, 10, 10, 10]


def test_copies_for_each_view_keep_the_clusters_of_their_clients():
    data = owned(cluster=np.array([2, 0, 1]), skew=[LabelShifts((0, 1))], copies=True).federated(0)
    assert data.true_clusters.tolist() == [4, 0, 2, 5, 1, 3]  # 2 * cluster + view


def test_single_skew_needs_no_list():
    one, listed = (owned(skew=skew).federated(0) for skew in (LabelShifts((0, 1)), [LabelShifts((0, 1))]))
    assert one.true_clusters.tolist() == listed.true_clusters.tolist()
    assert torch.equal(one.train.values, listed.train.values)


@pytest.mark.parametrize("kind", ["feature", "label", "other"])
def test_skew_is_what_the_user_says(kind: str):
    assert owned(skew_kind=kind).federated(0).skew == kind


def test_skew_of_the_partition_counts_too():
    class ByLabel(IID):
        skew = "label"

        def clusters(self, shares: ClientIndex, num_labels: int) -> Tensor:
            return torch.arange(len(shares))

    assert owned(partition=ByLabel(2)).federated(0).skew == "label"
    assert owned(partition=ByLabel(2), skew_kind="feature").federated(0).skew == "other"


def test_skew_of_two_kinds_is_other():
    assert owned(skew_kind="label", skew=[LabelShifts((0, 1))]).federated(0).skew == "label"
    assert owned(skew_kind="feature", skew=[LabelShifts((0, 1))]).federated(0).skew == "other"


def test_client_in_two_true_clusters_is_named():
    cluster = np.array([1, 1, 1, 1, 0, 0, 0, 2, 2, 2, 4, 2])
    message = error_of(owned(cluster=cluster))
    assert "client 9 has examples of the true clusters 2 and 4; a client has only one" in message
    words = np.array([f"site {number}" for number in cluster])
    assert "client 9 has examples of the true clusters 'site 2' and 'site 4'; a client" in error_of(
        owned(cluster=words)
    )
    both = error_of(owned(cluster=np.array([1, 1, 1, 1, 0, 0, 1, 2, 2, 2, 4, 2])))
    assert "client 2 has examples of the true clusters 0 and 1 (2 clients have several); a client has only one" in both


def test_partition_that_mixes_true_clusters_is_refused():
    message = error_of(owned(cluster=np.array([0, 1, 2]), partition=IID(2, 0.0)))
    assert "client 0 has examples of the true clusters 0 and 2" in message
    assert "leave it out" in message
    named = error_of(owned(cluster=["north", "south", "west"], partition=IID(2, 0.0)))
    assert "client 0 has examples of the true clusters 'north' and 'west'" in named


def test_file_is_the_arrays_in_it(tmp_path: Path):
    arrays = given(client=np.array(OWNERS), cluster=np.array([0, 1, 0]))
    read = ArrayData(source=saved(tmp_path / "own.npz", **arrays)).federated(2)
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


@pytest.mark.parametrize(("labels", "kind"), [([0.0, 1.0], "floats"), (["0", "1"], "words")])
def test_labels_of_one_file_that_are_numbers_or_words_are_refused(labels: list[Any], kind: str, tmp_path: Path):
    saved(tmp_path / "a.npz", x=np.ones((2, 2)), y=np.array([0, 1]))
    saved(tmp_path / "b.npz", x=np.ones((2, 2)), y=np.array(labels))
    expected = f"b.npz holds x of float64 (2,), y of {kind}, but the first file of the folder holds x of float64 (2,)"
    assert f"{expected}, y of integers; make them equal" in error_of(ArrayData(source=tmp_path))


def test_files_need_no_labels(tmp_path: Path):
    one = ArrayData(source=saved(tmp_path / "own.npz", x=np.ones((4, 2)), client=np.array([0, 0, 1, 1]))).pool()
    assert (one.examples.label_kind, len(one.examples)) == ("none", 4)
    for name in ("a", "b"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        saved(tmp_path / "folder" / f"{name}.npz", x=np.ones((3, 2)))
    pool = ArrayData(source=tmp_path / "folder").pool()
    assert (pool.examples.label_kind, pool.names, len(pool.examples)) == ("none", ("a", "b"), 6)
    saved(tmp_path / "folder" / "c.npz", x=np.ones((3, 2)), y=np.zeros(3, int))
    assert (
        "c.npz holds x of float64 (2,), y of integers, but the first file of the folder holds x of float64 (2,); make"
        in error_of(ArrayData(source=tmp_path / "folder"))
    )


def test_missing_source_is_refused(tmp_path: Path):
    assert "there is no file or folder" in error_of(ArrayData(source=tmp_path / "none.npz"))
    assert "holds no .npz file" in error_of(ArrayData(source=tmp_path))


@pytest.mark.parametrize("name", ["clients", "labels", "X"])
def test_array_that_nobody_asked_for_is_refused(tmp_path: Path, name: str):
    path = saved(tmp_path / "own.npz", **given(), **{name: np.arange(12)})
    expected = (
        f", {name}; leave out all but x, y, client, cluster, is_test; save it with np.savez, or give a table (.csv,"
    )
    assert f"{path} holds x, y" in error_of(ArrayData(source=path))
    assert expected in error_of(ArrayData(source=tmp_path))


def test_missing_array_is_named_with_the_existing_ones(tmp_path: Path):
    path = saved(tmp_path / "own.npz", images=np.zeros((3, 2)), y=np.zeros(3, int))
    expected = f"{path} has no array 'x'; it holds images, y; save it with np.savez, or give a table (.csv, "
    assert error_of(ArrayData(source=path)).startswith(expected)


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
    assert f"{path} is damaged, is not a .npz file, or holds objects" in error_of(ArrayData(source=path))


def npy(array: np.ndarray) -> bytes:
    from io import BytesIO

    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"client": np.zeros(2)}, "is one client of a folder; leave out the array client"),
        (
            {"cluster": 1},
            "cluster of integers, but the first file of the folder holds x of float64 (2,), y of integers; make",
        ),
        (
            {"x": np.zeros((2, 3))},
            r"holds x of float64 (3,), y of integers, but the first file of the folder holds x of float64 (2,)",
        ),
        (
            {"x": np.zeros((2, 2), np.float32)},
            r"holds x of float32 (2,), y of integers, but the first file of the folder holds x of float64 (2,)",
        ),
        ({"y": np.zeros(3, int)}, r"has x of shape (2, 2) and y of shape (3,)"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, r"has x of shape (0, 2) and y of shape (0,)"),
    ],
)
def test_file_that_does_not_fit_its_folder_is_named(tmp_path: Path, arrays: dict[str, Any], expected: str):
    saved(folder_of(tmp_path) / "b.npz", **({"x": np.zeros((2, 2)), "y": np.zeros(2, int)} | arrays))
    message = error_of(ArrayData(source=tmp_path))
    assert str(tmp_path / "b.npz") in message
    assert expected in message


def test_several_clusters_in_a_file_of_a_folder_are_refused(tmp_path: Path):
    message = error_of(ArrayData(source=folder_of(tmp_path, a=1, b=np.array([0, 1]), c=1)))
    assert "b.npz is one client of a folder; leave out the array client, and give a single cluster" in message


def test_labels_too_large_for_squared_errors_are_noted():
    points = np.arange(20) % 7 + 84.0
    with pytest.warns(Notice, match=r"the labels: large numbers \(root mean square 86.9\), .* standardise them"):
        ArrayData(np.ones((20, 2)), points, client=np.arange(20) % 2).federated(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ArrayData(np.ones((20, 2)), points - 87, client=np.arange(20) % 2).federated(0)


def test_columns_of_a_data_frame_keep_their_names():
    frame = pd.DataFrame({"price": [1.0, np.nan], "year": [2020.0, 2021.0]})
    with pytest.raises(
        InputError,
        match=r"x holds NaN or infinity in row 1 \(from 0\), column 'price'; replace the value, or drop the row",
    ):
        ArrayData(frame, [0, 1]).pool()
    with pytest.warns(Notice, match="input column 'year': large numbers"):
        assert ArrayData(frame.fillna(0), [0, 1]).pool().examples.input_names == ("price", "year")


def test_numbers_taken_for_classes_are_suspected_when_the_test_data_have_new_ones():
    data = ArrayData(np.ones((60, 2)), np.arange(60) % 30 + 70, client=np.arange(60) % 2, test=0.5)
    with pytest.raises(InputError, match="num_labels to 0 if labels are numbers to predict"):
        data.federated(0)


def test_hundreds_of_classes_are_suspected_as_numbers():
    litres = np.random.default_rng(0).integers(0, 300, 600)
    data = ArrayData(np.ones((600, 2)), litres, client=np.arange(600) % 2)
    with pytest.raises(InputError, match="num_labels to 0 if labels are numbers to predict"):
        data.federated(0)


def test_inputs_made_small_by_scale_are_not_noted():
    ArrayData(np.full((20, 2), 50.0), np.zeros(20, int), client=np.arange(20) % 2, scale=0.01).federated(0)
