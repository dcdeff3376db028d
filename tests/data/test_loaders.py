"""Tests data modules as LightningDataModules: their loaders serve the examples of all clients except newcomers."""

from typing import Any

import pytest
import torch

from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.datamodules.skew import NoiseLevels
from lit_cfl.errors import InputError

LOADERS = ["train_dataloader", "val_dataloader", "test_dataloader"]


def ready(**options: Any) -> Digits:
    module = Digits(num_clients=10, rotations=[0], validation=0.2, **options)
    module.setup()
    return module


def labels_of(module: Digits, loader: str) -> list[int]:
    return torch.cat([labels for _, labels in getattr(module, loader)()]).bincount(minlength=10).tolist()


@pytest.mark.parametrize("loader", LOADERS)
def test_loaders_serve_every_client_in_training_and_no_newcomer(loader: str):
    split = {"train": "train", "val": "validation", "test": "test"}[loader.partition("_")[0]]
    everyone, module = ready(), ready(newcomers=0.3)
    data = module.data
    trained = torch.cat([data.split(split)[client] for client in range(10) if not data.newcomers[client]])
    assert labels_of(module, loader) == data.examples.targets(trained).bincount(minlength=10).tolist()
    assert sum(labels_of(module, loader)) == int(everyone.data.split(split).sizes.sum()) - int(
        data.split(split).sizes[data.newcomers].sum()
    )
    assert sum(labels_of(module, loader)) < sum(labels_of(everyone, loader))


@pytest.mark.parametrize("loader", LOADERS)
def test_loaders_before_setup_say_so(loader: str):
    with pytest.raises(InputError, match=r"Digits is not set up: call setup\(\) before you ask for its loaders"):
        getattr(Digits(), loader)()


def test_empty_part_of_noisy_data_has_no_batches():
    module = Digits(num_clients=10, skew=[NoiseLevels([0.5])], validation=0.0)
    module.setup()
    assert list(module.val_dataloader()) == []


def test_batches_have_the_size_asked_for():
    sizes = [len(labels) for _, labels in ready(batch_size=100).test_dataloader()]
    assert set(sizes[:-1]) == {100}


@pytest.mark.parametrize("shift", ["SwapAll", ["SwapAll"], None, SwapAll, 3, [SwapAll(), None]])
def test_a_shift_of_another_type_is_refused(shift: Any):
    with pytest.raises(InputError, match=r"^shift holds .*; give an object of Shift, or a list of them"):
        Digits(shift=shift)
