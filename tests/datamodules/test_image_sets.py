from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Value
from hub import DIGITS, SHARED, picture, pixels, write, write_images, write_split
from own_arrays import assert_refused

from lit_cfl.datamodules.femnist import CHARACTERS, FEMNIST
from lit_cfl.datamodules.image_sets import CIFAR10, MNIST, EMNISTLetters, FashionMNIST

pytestmark = pytest.mark.usefixtures("caches")

LETTERS = [chr(65 + place) for place in range(26)]
WRITERS = ["f1", "f0", "f1", "f2", "f0", "f1"]
WRITTEN = ["a", "7", "j", "Z", "b", "k"]


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a tiny data set that is found under the Hub id `ylecun/mnist`."""
    monkeypatch.setenv("LITCFL_DATA", str(tmp_path / "data"))
    return write_images(tmp_path / "data" / "mnist")


def write_letters(folder: Path, labels: Any, values: Sequence[int], train: int) -> Path:
    """Writes random images with the labels `values`."""
    columns = {"image": [picture(image) for image in pixels(len(values), 28, 28)], "label": values}
    return write_split(folder, {"image": datasets.Image(), "label": labels}, columns, train)


def write_writers(folder: Path, characters: Sequence[str], writers: Sequence[str], names: Sequence[str]) -> Path:
    """Writes a data set in FEMNIST's format: one split `train`, with an image, a writer and a character per row."""
    images = [picture(image) for image in pixels(len(characters), 28, 28)]
    features = {"image": datasets.Image(), "writer_id": Value("string"), "hsf_id": Value("int64")}
    columns = {"image": images, "writer_id": list(writers), "hsf_id": [0] * len(images), "character": list(characters)}
    return write(folder, features | {"character": ClassLabel(names=list(names))}, train=columns)


def test_another_content_or_padding_is_another_entry(digits: Path):
    assert MNIST().pool().examples.inputs.shape == (42, 1, 28, 28)
    padded = MNIST(pad=2).pool().examples.inputs
    assert padded.shape == (42, 1, 32, 32)
    assert not padded[:, :, :2].any()
    write_images(digits, train=20)
    assert MNIST().pool().num_train == 20


@pytest.mark.parametrize(
    ("labels", "first"),
    [(ClassLabel(names=LETTERS), 0), (ClassLabel(names=["N/A", *LETTERS]), 1), (Value("int32"), 0)],
    ids=["from 0", "from 1", "numbers"],
)
def test_letters_may_count_from_zero_or_from_one(labels: Any, first: int, tmp_path: Path):
    values = [first + row % 26 for row in range(65)]
    examples = EMNISTLetters(str(write_letters(tmp_path / "letters", labels, values, 52))).examples
    assert (examples.num_labels, examples.labels.tolist()) == (26, [*range(26), *range(26), *range(13)])


@pytest.mark.parametrize("characters", [CHARACTERS, CHARACTERS[::-1]], ids=["usual", "reversed"])
@pytest.mark.parametrize(
    ("choice", "outputs", "rows", "labels"),
    [
        ("all", 62, [0, 1, 2, 3, 4, 5], [36, 7, 45, 35, 37, 46]),
        ("a-j", 10, [0, 2, 4], [0, 9, 1]),
        ("a-j_26", 26, [0, 2, 4], [0, 9, 1]),
    ],
)
def test_characters_are_labels_of_their_writers(characters: str, choice: Any, outputs, rows, labels, tmp_path: Path):
    pool = FEMNIST(str(write_writers(tmp_path / "own", WRITTEN, WRITERS, list(characters))), labels=choice).pool()
    assert (pool.examples.num_labels, pool.labels.tolist()) == (outputs, labels)
    assert [pool.names[owner] for owner in pool.owner] == [WRITERS[row] for row in rows]
    assert np.array_equal(pool.examples.inputs, pixels(6, 28, 28)[rows, None])
    assert (pool.num_train, pool.has_test) == (len(rows), False)


def test_other_characters_and_more_letters_are_refused(tmp_path: Path):
    assert_refused(FEMNIST(str(write_writers(tmp_path / "own", ["1"], ["f0"], DIGITS))).pool, "0 1 2 | a-z")
    more = write_letters(tmp_path / "more", ClassLabel(num_classes=27), [*range(27)], 27)
    assert_refused(EMNISTLetters(str(more)).pool, "labels 0 and 26 | 26 letters")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "make", "train", "mean"),
    [
        ("mnist", MNIST, 60000, [0.1307]),
        ("fashion_mnist", FashionMNIST, 60000, [0.2860]),
        ("cifar10", CIFAR10, 50000, [0.4914, 0.4822, 0.4465]),
    ],
)
def test_whole_real_sets_have_the_known_pixels(name: str, make: Callable[..., Any], train: int, mean: list[float]):
    """Checks the well-known means of the training part, and equal numbers per label except in MNIST."""
    if not (SHARED / name).exists():
        pytest.skip(f"{SHARED / name} holds no copy of this data set")
    pool = make(str(SHARED / name)).pool()
    assert (pool.num_train, len(pool.examples)) == (train, train + 10000)
    means = pool.examples.inputs[:train].double().mean((0, 2, 3)) / 255
    assert means.tolist() == pytest.approx(mean, abs=5e-5)
    if name != "mnist":
        assert pool.labels.bincount().tolist() == [(train + 10000) // 10] * 10
