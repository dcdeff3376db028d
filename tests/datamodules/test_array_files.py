"""ArrayData from a file .npz, or from a folder of them; what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_arrays import OWNERS, error_of, folder_of, given, saved

from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.datamodules.partition import IID


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


@pytest.mark.parametrize(("labels", "kind"), [([0.0, 1.0], "float64"), (["0", "1"], "<U1")])
def test_labels_of_one_file_that_are_numbers_or_words_are_refused(labels: list[Any], kind: str, tmp_path: Path):
    saved(tmp_path / "a.npz", x=np.ones((2, 2)), y=np.array([0, 1]))
    saved(tmp_path / "b.npz", x=np.ones((2, 2)), y=np.array(labels))
    expected = f"b.npz holds y of {kind}, the first file of the folder int64; make them alike"
    assert expected in error_of(ArrayData(source=tmp_path))


def test_files_need_no_labels(tmp_path: Path):
    one = ArrayData(source=saved(tmp_path / "own.npz", x=np.ones((4, 2)), client=np.array([0, 0, 1, 1]))).pool()
    assert (one.examples.label_kind, len(one.examples)) == ("none", 4)
    for name in ("a", "b"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        saved(tmp_path / "folder" / f"{name}.npz", x=np.ones((3, 2)))
    pool = ArrayData(source=tmp_path / "folder").pool()
    assert (pool.examples.label_kind, pool.names, len(pool.examples)) == ("none", ("a", "b"), 6)
    saved(tmp_path / "folder" / "c.npz", x=np.ones((3, 2)), y=np.zeros(3, int))
    assert "c.npz: give y in each file of the folder, or in none" in error_of(ArrayData(source=tmp_path / "folder"))


def test_source_that_is_not_there_is_refused(tmp_path: Path):
    assert "there is no file or folder" in error_of(ArrayData(source=tmp_path / "none.npz"))
    assert "holds no .npz file" in error_of(ArrayData(source=tmp_path))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("clients", " (did you mean client?)"),
        ("clusters", " (did you mean cluster?)"),
        ("labels", ""),
        ("X", " (did you mean x?)"),
        ("user_id", ""),
    ],
)
def test_array_that_nobody_asked_for_is_refused(tmp_path: Path, name: str, hint: str):
    path = saved(tmp_path / "own.npz", **given(), **{name: np.arange(12)})
    expected = (
        f"{path} holds the array {name!r}{hint}, but only x, y, client, cluster are read; rename it, or leave it out"
    )
    expected += "; save it with np.savez"
    assert error_of(ArrayData(source=path)) == expected
    assert error_of(ArrayData(source=tmp_path)) == expected


def test_missing_array_is_named_with_those_there_are(tmp_path: Path):
    path = saved(tmp_path / "own.npz", images=np.zeros((3, 2)), y=np.zeros(3, int))
    assert error_of(ArrayData(source=path)) == f"{path} has no array 'x'; it holds images, y; save it with np.savez"


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
