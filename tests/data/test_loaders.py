"""Tests data modules as LightningDataModules: their loaders serve the examples of all clients except newcomers."""

from typing import Any

import pytest
import torch

from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.datamodules.skew import NoiseLevels
from lit_cfl.errors import InputError


def test_loaders_serve_every_client_in_training_and_no_newcomer():
    module = Digits(num_clients=10, rotations=[0], validation=0.2, newcomers=0.3, batch_size=100)
    for name in ("train", "val", "test"):
        with pytest.raises(InputError, match=r"Digits .*setup\(\)"):
            getattr(module, f"{name}_dataloader")()
    module.setup()
    data = module.data
    for name, part in (("train", "train"), ("val", "validation"), ("test", "test")):
        served = [labels for _, labels in getattr(module, f"{name}_dataloader")()]
        held = torch.cat([data.split(part)[client] for client in range(10) if not data.newcomers[client]])
        assert 0 < len(held) < len(data.split(part).entries)
        assert torch.cat(served).bincount().tolist() == data.examples.targets(held).bincount().tolist()
        assert {len(one) for one in served[:-1]} <= {100}


def test_empty_part_of_noisy_data_has_no_batches():
    module = Digits(num_clients=10, skew=[NoiseLevels([0.5])], validation=0.0)
    module.setup()
    assert list(module.val_dataloader()) == []


@pytest.mark.parametrize("shift", [["SwapAll"], SwapAll, [SwapAll(), None]])
def test_a_shift_of_another_type_is_refused(shift: Any):
    with pytest.raises(InputError, match=r"^shift holds .* Shift"):
        Digits(shift=shift)
