"""Tests the digits data module, and features common to all data modules."""

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lit_cfl.data import ClientIndex, FederatedData
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.skew import LabelShifts
from lit_cfl.errors import InputError

NUM_DIGITS = 1797


def everything(data: FederatedData) -> Tensor:
    return torch.cat([data.train.entries, data.validation.entries, data.test.entries])


def same_lists(one: ClientIndex, other: ClientIndex) -> bool:
    return torch.equal(one.entries, other.entries) and torch.equal(one.sizes, other.sizes)


@pytest.mark.parametrize("clients", [1, 7, 40, 1797])
def test_every_image_has_exactly_one_client(clients: int):
    data = Digits(num_clients=clients).federated(0)
    assert (everything(data) % NUM_DIGITS).sort().values.tolist() == list(range(NUM_DIGITS))


def test_digits_are_split_72_8_20():
    data = Digits(validation=0.1).federated(0)
    sizes = list(zip(*[split.sizes.tolist() for split in (data.train, data.validation, data.test)], strict=True))
    # of 45 images: 9, round(3.6), the rest; of 44: 9, round(3.5), the rest
    assert sizes == [(32, 4, 9)] * 37 + [(31, 4, 9)] * 3


def test_true_cluster_is_the_rotation_the_client_sees():
    data = Digits(num_clients=10).federated(0)
    assert data.true_clusters.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    for split in (data.train, data.validation, data.test):
        assert torch.equal(split.entries // NUM_DIGITS, split.owners % 4)


@pytest.mark.parametrize("short", [{"num_clients": 40}, {"test": 0.2}, {"test": 0.0}])
def test_partition_and_a_short_option_in_its_place_are_refused(short: dict[str, float]):
    ((name, value),) = short.items()
    with pytest.raises(
        InputError, match=f"{name} is {value}, but partition is given, too, which replaces it; leave one out"
    ):
        Digits(partition=IID(7), **short)
    Digits(skew=[LabelShifts()], **short)


def test_skew_and_rotations_are_refused():
    with pytest.raises(InputError, match=r"rotations is \[0, 90\], but skew is given, too"):
        Digits(rotations=[0, 90], skew=[LabelShifts()])
    with pytest.raises(InputError, match="rotations is"):
        Digits(rotations=[0, 90], skew=[])
    Digits(rotations=[0, 90], partition=IID(7))


def test_partition_and_skew_replace_the_short_options():
    data = Digits(partition=IID(6, test=0.0), skew=[LabelShifts([0, 1, 2])]).federated(0)
    assert data.true_clusters.tolist() == [0, 1, 2, 0, 1, 2]
    assert (data.skew, int(data.test.sizes.sum()), len(data.examples.views)) == ("label", 0, 3)


def test_nothing_is_set_aside_for_validation_unless_asked_for():
    assert not Digits().federated(0).validation.sizes.any()


def test_same_seed_gives_the_same_partition():
    one, other = (Digits(validation=0.1).federated(5) for _ in range(2))
    assert same_lists(one.train, other.train)
    assert same_lists(one.validation, other.validation)
    assert same_lists(one.test, other.test)


def test_other_seed_gives_another_partition():
    digits = Digits()
    assert not same_lists(digits.federated(5).train, digits.federated(6).train)


def test_partition_seed_takes_precedence_over_the_run_seed():
    fixed = Digits(partition_seed=0)  # 0 is a seed, not a missing one
    assert same_lists(fixed.federated(5).train, fixed.federated(6).train)
    assert same_lists(fixed.federated(5).train, Digits().federated(0).train)


def test_validation_share_does_not_move_the_test_data():
    without = Digits(validation=0).federated(3)
    assert same_lists(without.test, Digits(validation=0.5).federated(3).test)
    assert len(without.validation.entries) == 0


def test_newcomers_are_drawn_from_the_same_partition():
    data = Digits(newcomers=0.25).federated(3)
    assert (int(data.newcomers.sum()), len(data.population)) == (10, 30)
    assert not data.newcomers[data.population].any()
    assert same_lists(data.train, Digits().federated(3).train)
    assert data.newcomers.tolist() != Digits(newcomers=0.25).federated(4).newcomers.tolist()


def test_no_newcomers_unless_asked_for():
    assert Digits().federated(0).newcomers is None


@pytest.mark.parametrize(("clients", "share", "expected"), [(40, 0.99, 39), (100, 0.29, 29), (10, 0.3, 3)])
def test_newcomers_are_the_share_asked_for(clients: int, share: float, expected: int):
    newcomers = Digits(num_clients=clients, newcomers=share).federated(0).newcomers
    assert int(newcomers.sum()) == expected


@pytest.mark.parametrize("clients", [1, 2])
def test_newcomers_are_refused_if_they_would_be_none(clients: int):
    with pytest.raises(
        InputError, match=f"newcomers is 0.2, which leaves none of {clients} clients to join, or none to"
    ):
        Digits(num_clients=clients, newcomers=0.2).federated(0)


@pytest.mark.parametrize("clients", [0, 2000, -1])
def test_number_of_clients_that_cannot_be_is_refused(clients: int):
    with pytest.raises(InputError, match=rf"{clients} clients|num_clients is {clients};"):
        Digits(num_clients=clients).federated(0)


@pytest.mark.parametrize("name", ["test", "validation", "newcomers"])
@pytest.mark.parametrize("share", [1, -0.1, 1.5, float("nan")])
def test_share_outside_its_range_is_refused(name: str, share: float):
    with pytest.raises(InputError, match=f"{name} is {share}; give .*0 or more and below 1"):
        Digits(**{name: share})


def test_rotation_that_blurs_is_refused():
    with pytest.raises(InputError, match="45 degrees would blur"):
        Digits(rotations=[0, 45]).federated(0)


def test_empty_list_of_rotations_is_refused():
    with pytest.raises(InputError, match=r"rotations: .* is \[\]; give a list with one value per cluster"):
        Digits(rotations=[]).federated(0)


# As an ordinary LightningDataModule


@pytest.fixture
def digits() -> Digits:
    module = Digits(num_clients=12, validation=0.1, batch_size=100)
    module.setup()
    torch.manual_seed(0)  # shuffling
    return module


def test_only_training_data_are_shuffled(digits: Digits):
    def first_labels(loader: DataLoader[tuple[Tensor, ...]]) -> list[int]:
        return next(iter(loader))[1].tolist()

    assert first_labels(digits.train_dataloader()) != first_labels(digits.train_dataloader())
    assert first_labels(digits.test_dataloader()) == first_labels(digits.test_dataloader())
