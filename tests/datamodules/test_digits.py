"""Tests the digits data module, and shares and loaders of all data modules."""

from typing import Any

import pytest
import torch
from own_arrays import assert_refused

from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.skew import LabelShifts
from lit_cfl.errors import InputError


def test_digits_are_split_72_8_20_and_each_client_sees_its_rotation():
    data = Digits(validation=0.1).federated(0)
    sizes = list(zip(*[split.sizes.tolist() for split in (data.train, data.validation, data.test)], strict=True))
    # of 45 images: 9, round(3.6), the rest; of 44: 9, round(3.5), the rest
    assert sizes == [(32, 4, 9)] * 37 + [(31, 4, 9)] * 3
    assert data.true_clusters.tolist() == [client % 4 for client in range(40)]
    for split in (data.train, data.validation, data.test):
        assert torch.equal(split.entries // 1797, split.owners % 4)
    plain = Digits().federated(0)
    assert (int(plain.validation.sizes.sum()), plain.newcomers) == (0, None)


def test_partition_and_skew_replace_the_short_options():
    data = Digits(partition=IID(6, test=0.0), skew=[LabelShifts([0, 1, 2])]).federated(0)
    assert data.true_clusters.tolist() == [0, 1, 2, 0, 1, 2]
    assert (data.skew, int(data.test.sizes.sum()), len(data.examples.views)) == ("label", 0, 3)
    mixed = Digits(rotations=[0, 90], partition=IID(5)).federated(0)
    assert (mixed.true_clusters.tolist(), mixed.num_clients) == ([0, 1, 0, 1, 0], 5)


@pytest.mark.parametrize(("clients", "share", "expected"), [(40, 0.99, 39), (100, 0.29, 29), (10, 0.3, 3)])
def test_newcomers_are_the_share_asked_for(clients: int, share: float, expected: int):
    newcomers = Digits(num_clients=clients, newcomers=share).federated(0).newcomers
    assert int(newcomers.sum()) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rotations": [0, 90], "skew": [LabelShifts()]}, "rotations | [0, 90] | skew"),
        ({"num_clients": 2, "newcomers": 0.2}, "newcomers | 0.2 | 2 clients"),
        ({"newcomers": 1}, "newcomers | 1 | below 1"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str):
    """Further ones are in tests/cli/test_users_mistakes.py."""
    assert_refused(lambda: Digits(**options).federated(0), words)


def test_loaders_serve_every_client_in_training_and_no_newcomer_and_shuffle_only_training_data():
    module = Digits(num_clients=10, rotations=[0], validation=0.2, newcomers=0.3, batch_size=100)
    for name in ("train", "val", "test"):
        with pytest.raises(InputError, match=r"Digits .*setup\(\)"):
            getattr(module, f"{name}_dataloader")()
    module.setup()
    torch.manual_seed(0)  # shuffling
    for name, part in (("train", "train"), ("val", "validation"), ("test", "test")):
        index = module.data.split(part)
        served, again = ([y for _, y in getattr(module, f"{name}_dataloader")()] for _ in range(2))
        held = torch.cat([index[client] for client in range(10) if not module.data.newcomers[client]])
        assert 0 < len(held) < len(index.entries)
        assert torch.cat(served).bincount().tolist() == module.data.examples.targets(held).bincount().tolist()
        assert {len(one) for one in served[:-1]} <= {100}
        assert torch.equal(torch.cat(served), torch.cat(again)) == (name != "train")
