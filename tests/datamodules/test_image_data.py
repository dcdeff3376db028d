"""Tests the image data sets: pool, cache, EMNIST's labels, options, and rounds on real images."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Value
from hub import SHARED, first_rows, fresh_caches, pixels, write_images
from jsonargparse import ArgumentParser
from one_round import round_of_fedavg

from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.datamodules.image_sets import CIFAR10, MNIST, EMNISTLetters, FashionMNIST, ImageSet
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.skew import Rotations
from lit_cfl.errors import InputError

LETTERS = [chr(65 + place) for place in range(26)]
FEW = IID(num_clients=6)


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a tiny data set that is found under the Hub id `ylecun/mnist`."""
    monkeypatch.setenv("LITCFL_DATA", str(tmp_path / "data"))
    return write_images(tmp_path / "data" / "mnist")


def test_pool_is_the_training_part_then_the_test_part(digits: Path):
    pool = MNIST().pool()
    assert (pool.num_train, len(pool.examples), pool.examples.num_labels, pool.owner) == (30, 42, 10, None)
    assert pool.examples.inputs.dtype == torch.uint8
    assert np.array_equal(pool.examples.inputs, pixels(42, 28, 28)[:, None])
    assert pool.labels.tolist() == [row % 10 for row in range(42)]


def test_clients_share_the_training_part_and_are_tested_on_the_test_part(digits: Path):
    data = MNIST(partition=FEW).federated(0)
    assert sorted(data.train.entries.tolist()) == list(range(30))
    assert sorted(data.test.entries.tolist()) == list(range(30, 42))
    inputs, labels = data.examples.batch(torch.tensor([7]))
    assert torch.allclose(inputs, torch.from_numpy(pixels(42, 28, 28)[7:8, None]) / 255)
    assert labels.tolist() == [7]


def test_second_time_nothing_is_imported_loaded_or_decoded(digits: Path, monkeypatch: pytest.MonkeyPatch):
    first = MNIST(partition=FEW).federated(0)
    for name in ("datasets", "pyarrow", "PIL", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    again = MNIST(partition=FEW).federated(0)
    assert again.examples.fingerprint == first.examples.fingerprint
    assert again.train.entries.tolist() == first.train.entries.tolist()


def test_another_content_or_padding_is_another_entry(digits: Path):
    assert MNIST().pool().examples.inputs.shape == (42, 1, 28, 28)
    padded = MNIST(pad=2).pool().examples.inputs
    assert padded.shape == (42, 1, 32, 32)
    assert not padded[:, :, :2].any()
    write_images(digits, train=20)
    assert MNIST().pool().num_train == 20


def test_colour_images_are_found_in_cifars_column(tmp_path: Path):
    folder = write_images(tmp_path / "cifar", 12, 6, (32, 32, 3), "img")
    pool = CIFAR10(str(folder)).pool()
    assert np.array_equal(pool.examples.inputs, pixels(18, 32, 32, 3).transpose(0, 3, 1, 2))
    with pytest.raises(InputError, match=r"no column 'image' \(did you mean img\?\); it has img, label"):
        FashionMNIST(str(folder)).pool()


def test_rotated_clients_share_one_array(tmp_path: Path):
    folder = write_images(tmp_path / "cifar", 40, 20, (32, 32, 3), "img")
    module = CIFAR10(str(folder), partition=IID(num_clients=20), skew=[Rotations((0, 180))])
    data = module.federated(0)
    assert data.examples.inputs.shape == (60, 3, 32, 32)
    assert data.examples.inputs.data_ptr() == module._pool.examples.inputs.data_ptr()
    assert data.true_clusters.tolist() == [0, 1] * 10
    upright, turned = (data.examples.batch(data.train[client])[0] for client in (0, 1))
    images = torch.from_numpy(pixels(60, 32, 32, 3).transpose(0, 3, 1, 2).copy()) / 255
    assert torch.allclose(upright, images[data.train[0]])
    assert torch.allclose(turned, images[data.train[1] - 60].flip(2, 3))


def test_statistics_are_of_the_training_part_or_of_all(digits: Path):
    images = pixels(42, 28, 28)[:, None].astype(np.float64)
    for how, part in {"standardised": images[:30], "standardised_pooled": images}.items():
        pool = MNIST(pixels=how).pool().examples
        expected = (images - part.mean(0)) / (part.std(0) + 0.001)
        assert np.allclose(pool.batch(torch.arange(42))[0], expected, atol=1e-4)


def test_plain_integers_are_labels_too(tmp_path: Path):
    folder = write_images(tmp_path / "plain", labels=Value("int32"))
    assert MNIST(str(folder)).pool().labels.tolist() == [row % 10 for row in range(42)]


@pytest.mark.parametrize(
    ("labels", "first"),
    [(ClassLabel(names=LETTERS), 0), (ClassLabel(names=["N/A", *LETTERS]), 1)],
    ids=["from 0", "from 1"],
)
def test_letters_may_count_from_zero_or_from_one(labels: ClassLabel, first: int, tmp_path: Path):
    folder = write_letters(tmp_path / "emnist_letters", labels, first)
    pool = EMNISTLetters(str(folder), pad=2).pool()
    assert pool.examples.num_labels == 26
    assert pool.labels.tolist() == [*range(26), *range(26), *range(13)]
    assert pool.examples.input_shape == (1, 32, 32)


def write_letters(folder: Path, labels: Any, first: int) -> Path:
    rows = [first + row % 26 for row in range(65)]
    return write_images(folder, 52, 13, labels=labels, values=rows)


def test_letters_with_labels_0_and_26_are_refused(tmp_path: Path):
    folder = write_images(tmp_path / "both", 27, 0, labels=ClassLabel(num_classes=27))
    with pytest.raises(InputError, match="holds labels 0 and 26, but there are 26 letters"):
        EMNISTLetters(str(folder)).pool()


def test_negative_padding_is_refused():
    with pytest.raises(InputError, match=r"data.pad is -1; it must be 0 or more"):
        MNIST(pad=-1)


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "CIFAR10", "EMNISTLetters", "FEMNIST"])
def test_options_of_all_bases_can_be_configured(name: str):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedDataModule, "data")
    given = {
        "validation": 0.1,
        "newcomers": 0.3,
        "batch_size": 7,
        "pixels": "standardised",
        "pad": 2,
        "revision": "v1",
        "skew": [{"class_path": "lit_cfl.datamodules.skew.Rotations", "init_args": {"degrees": [0, 90]}}],
        "copies": True,
        "partition": {"class_path": "lit_cfl.datamodules.partition.IID", "init_args": {"num_clients": 5}},
    }
    home = "lit_cfl.datamodules.femnist" if name == "FEMNIST" else "lit_cfl.datamodules.image_sets"
    read = parser.parse_object({"data": {"class_path": f"{home}.{name}", "init_args": given}})
    built = parser.instantiate(read).data
    assert (built.validation, built.newcomers, built.batch_size, built.copies) == (0.1, 0.3, 7, True)
    assert (built.pixels, built.pad, built.revision, built.partition) == ("standardised", 2, "v1", IID(num_clients=5))
    assert built.skew == (Rotations((0, 90)),) or built.skew == (Rotations([0, 90]),)


def test_round_on_letters(tmp_path: Path):
    folder = write_letters(tmp_path / "emnist_letters", ClassLabel(names=LETTERS), 0)
    round_of_fedavg(EMNISTLetters(str(folder), partition=FEW), tmp_path / "run")


@pytest.mark.parametrize(("name", "make"), [("cifar10", CIFAR10), ("mnist", MNIST), ("fashion_mnist", FashionMNIST)])
def test_round_on_the_first_rows_of_real_images(name: str, make: Callable[..., ImageSet], tmp_path: Path):
    folder = first_rows(name, tmp_path / "data" / name, 2000, 400)
    data = make(str(folder), partition=IID(num_clients=10), pixels="standardised")
    assert data.pool().examples.inputs.shape[0] == 2400
    round_of_fedavg(data, tmp_path / "run")


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
    name: str, make: Callable[..., ImageSet], train: int, mean: list[float], tmp_path: Path
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
