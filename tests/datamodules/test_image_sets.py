"""Tests the image data sets and FEMNIST: their labels, clients, cache and pixels, and rounds on real images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Value
from hub import DIGITS, SHARED, first_rows, pixels, write_images, write_writers
from one_round import round_of_fedavg
from own_arrays import assert_refused

from lit_cfl.datamodules.femnist import CHARACTERS, FEMNIST
from lit_cfl.datamodules.image_sets import CIFAR10, MNIST, EMNISTLetters, FashionMNIST
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.skew import Rotations

pytestmark = pytest.mark.usefixtures("caches")

LETTERS = [chr(65 + place) for place in range(26)]
WRITERS = ["f1", "f0", "f1", "f2", "f0", "f1"]
WRITTEN = ["a", "7", "j", "Z", "b", "k"]


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a tiny data set that is found under the Hub id `ylecun/mnist`."""
    monkeypatch.setenv("LITCFL_DATA", str(tmp_path / "data"))
    return write_images(tmp_path / "data" / "mnist")


def test_clients_share_the_training_part_and_are_tested_on_the_test_part(digits: Path):
    data = MNIST(partition=IID(num_clients=6)).federated(0)
    assert sorted(data.train.entries.tolist()) == list(range(30))
    assert sorted(data.test.entries.tolist()) == list(range(30, 42))


def test_another_content_or_padding_is_another_entry(digits: Path):
    assert MNIST().pool().examples.inputs.shape == (42, 1, 28, 28)
    padded = MNIST(pad=2).pool().examples.inputs
    assert padded.shape == (42, 1, 32, 32)
    assert not padded[:, :, :2].any()
    write_images(digits, train=20)
    assert MNIST().pool().num_train == 20


def test_statistics_are_of_the_training_part_or_of_all(digits: Path):
    images = pixels(42, 28, 28)[:, None].astype(np.float64)
    for how, part in {"standardised": images[:30], "standardised_pooled": images}.items():
        expected = (images - part.mean(0)) / (part.std(0) + 0.001)
        assert np.allclose(MNIST(pixels=how).pool().examples.batch(torch.arange(42))[0], expected, atol=1e-4)


def test_rotated_clients_share_one_array_of_colour_images(tmp_path: Path):
    folder = write_images(tmp_path / "cifar", 40, 20, (32, 32, 3), "img")
    module = CIFAR10(str(folder), partition=IID(num_clients=20), skew=[Rotations((0, 180))])
    data = module.federated(0)
    assert data.examples.inputs.data_ptr() == module._pool.examples.inputs.data_ptr()
    assert data.true_clusters.tolist() == [0, 1] * 10
    upright, turned = (data.examples.batch(data.train[client])[0] for client in (0, 1))
    images = torch.from_numpy(pixels(60, 32, 32, 3).transpose(0, 3, 1, 2).copy()) / 255
    assert torch.allclose(upright, images[data.train[0]])
    assert torch.allclose(turned, images[data.train[1] - 60].flip(2, 3))


@pytest.mark.parametrize(
    ("labels", "first"),
    [(ClassLabel(names=LETTERS), 0), (ClassLabel(names=["N/A", *LETTERS]), 1), (Value("int32"), 0)],
    ids=["from 0", "from 1", "numbers"],
)
def test_letters_may_count_from_zero_or_from_one(labels: Any, first: int, tmp_path: Path):
    values = [first + row % 26 for row in range(65)]
    examples = EMNISTLetters(str(write_images(tmp_path / "letters", 52, 13, labels=labels, values=values))).examples
    assert (examples.num_labels, examples.labels.tolist()) == (26, [*range(26), *range(26), *range(13)])


# FEMNIST


@pytest.mark.parametrize("characters", [CHARACTERS, CHARACTERS[::-1]], ids=["usual", "reversed"])
@pytest.mark.parametrize(
    ("choice", "outputs", "rows", "labels"),
    [
        ("all", 62, [0, 1, 2, 3, 4, 5], [36, 7, 45, 35, 37, 46]),
        ("a-j", 10, [0, 2, 4], [0, 9, 1]),
        ("a-j_26", 26, [0, 2, 4], [0, 9, 1]),
    ],
)
def test_characters_are_labels_of_their_writers(
    characters: str, choice: Any, outputs: int, rows: list[int], labels: list[int], tmp_path: Path
):
    pool = FEMNIST(str(write_writers(tmp_path / "own", WRITTEN, WRITERS, list(characters))), labels=choice).pool()
    assert (pool.examples.num_labels, pool.labels.tolist()) == (outputs, labels)
    assert [pool.names[owner] for owner in pool.owner] == [WRITERS[row] for row in rows]
    assert np.array_equal(pool.examples.inputs, pixels(6, 28, 28)[rows, None])
    assert (pool.num_train, pool.has_test) == (len(rows), False)


def test_paper_is_white_around_padded_characters(tmp_path: Path):
    writers = write_writers(tmp_path / "own", WRITTEN, WRITERS, list(CHARACTERS))
    assert (FEMNIST(str(writers), pad=2).pool().examples.inputs[:, :, :2] == 255).all()


# Refusals

REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "other characters": (lambda folder: FEMNIST(str(write_writers(folder, ["1"], ["f0"], DIGITS))), "0 1 2 | a-z"),
    "no letter a to j": (
        lambda folder: FEMNIST(str(write_writers(folder, ["1"], ["f0"], list(CHARACTERS))), labels="a-j"),
        "own | labels",
    ),
    "an unknown choice": (lambda folder: FEMNIST(labels="b"), "data.labels | 'b' | all, a-j, a-j_26"),
    "negative padding": (lambda folder: MNIST(pad=-1), "data.pad | -1 | 0"),
    "27 letters": (
        lambda folder: EMNISTLetters(str(write_images(folder, 27, 0, labels=ClassLabel(num_classes=27)))),
        "labels 0 and 26 | 26 letters",
    ),
    "another column": (lambda folder: FashionMNIST(str(write_images(folder, column="img"))), "'image' | img, label"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_source_or_option_is_refused(name: str, tmp_path: Path):
    make, words = REFUSED[name]
    assert_refused(lambda: make(tmp_path / "own").pool(), words)


# Real images


@pytest.mark.parametrize(("name", "make"), [("cifar10", CIFAR10), ("mnist", MNIST), ("fashion_mnist", FashionMNIST)])
def test_round_on_the_first_rows_of_real_images(name: str, make: Callable[..., Any], tmp_path: Path):
    folder = first_rows(name, tmp_path / "data" / name, 2000, 400)
    data = make(str(folder), partition=IID(num_clients=10), pixels="standardised")
    assert data.pool().examples.inputs.shape[0] == 2400
    round_of_fedavg(data, tmp_path / "run")


@pytest.mark.parametrize("labels", ["all", "a-j"])
def test_round_on_real_writers(labels: Any, tmp_path: Path):
    if not (SHARED / "femnist").exists():
        pytest.skip(f"{SHARED / 'femnist'} holds no copy of this data set")
    round_of_fedavg(FEMNIST(str(SHARED / "femnist"), labels=labels), tmp_path / "run")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "make", "train", "mean"),
    [
        ("mnist", MNIST, 60000, [0.1307]),
        ("fashion_mnist", FashionMNIST, 60000, [0.2860]),
        ("cifar10", CIFAR10, 50000, [0.4914, 0.4822, 0.4465]),
    ],
)
def test_whole_real_sets_have_the_known_pixels(
    name: str, make: Callable[..., Any], train: int, mean: list[float], tmp_path: Path
):
    """Checks the well-known means of the training part, and equal numbers per label except in MNIST."""
    if not (SHARED / name).exists():
        pytest.skip(f"{SHARED / name} holds no copy of this data set")
    data = make(str(SHARED / name))
    pool = data.pool()
    assert (pool.num_train, len(pool.examples)) == (train, train + 10000)
    means = pool.examples.inputs[:train].double().mean((0, 2, 3)) / 255
    assert means.tolist() == pytest.approx(mean, abs=5e-5)
    if name != "mnist":
        assert pool.labels.bincount().tolist() == [(train + 10000) // 10] * 10
    round_of_fedavg(data, tmp_path / "run")
