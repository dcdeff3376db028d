"""Tests that `mnist_writers.py` joins QMNIST's writers with MNIST's images, in MNIST's order."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from benchmark_scripts import loaded

from lit_cfl.datamodules import ArrayData

mnist_writers = loaded("mnist_writers")
LABELS = {"train": [5, 0, 4, 1], "test": [7, 2, 1]}
# writer 10 of the test images is another person than writer 10 of the training images
WRITERS = {"train": [30, 10, 10, 30], "test": [10, 20, 20]}
IMAGES = np.arange(7 * 4, dtype=np.uint8).reshape(7, 1, 2, 2)


def write_tables(folder: Path, labels: dict[str, list[int]] = LABELS) -> None:
    """Writes QMNIST's label tables; the test table has more rows than MNIST has test images."""
    for split, extra in {"train": [], "test": [9, 9]}.items():
        mine = [*labels[split], *extra]
        table = np.zeros((len(mine), 8), ">i4")
        table[:, 0], table[:, 2] = mine, [*WRITERS[split], *extra]
        table[:, 1], table[:, 3:] = 4, 77
        header = np.array([0x0C02, *table.shape], ">i4")
        path = folder / f"qmnist-{split}-labels-idx2-int.gz"
        path.write_bytes(gzip.compress(header.tobytes() + table.tobytes()))


@pytest.fixture
def qmnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mnist_writers, "_SIZES", {"train": 4, "test": 3})
    write_tables(tmp_path)
    return tmp_path


def test_images_get_their_writers_and_those_of_test_images_are_others(qmnist: Path):
    labels = np.array([*LABELS["train"], *LABELS["test"]])
    found = mnist_writers.join_parts(mnist_writers.read_qmnist(qmnist), IMAGES, labels)
    np.savez(qmnist / "own.npz", **found)
    data = ArrayData(source=qmnist / "own.npz", test=0.0).federated(0)
    assert [data.examples.targets(data.train[k]).tolist() for k in range(4)] == [[0, 4], [5, 1], [7], [2, 1]]
    assert data.examples.inputs[data.train[3]].tolist() == IMAGES[[5, 6]].tolist()


def test_labels_in_another_order_are_refused(qmnist: Path):
    labels = np.array([0, 5, 4, 1, *LABELS["test"]])
    with pytest.raises(ValueError, match="the writers belong to 7 images and MNIST has 7, or their labels differ"):
        mnist_writers.join_parts(mnist_writers.read_qmnist(qmnist), IMAGES, labels)


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b"no table", mtime=0), gzip.compress(bytes(40), mtime=0)]
)
def test_an_invalid_table_is_named(qmnist: Path, content: bytes, capsys: pytest.CaptureFixture[str]):
    (qmnist / "qmnist-test-labels-idx2-int.gz").write_bytes(content)
    with pytest.raises(SystemExit) as end:
        mnist_writers.main(["--qmnist", str(qmnist)])
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert "qmnist-test-labels-idx2-int.gz" in err
    assert "from QMNIST's repository" in err
