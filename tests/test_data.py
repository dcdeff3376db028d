"""Examples, views, index lists, partitions and the digits data module."""

import numpy as np
import pytest
import torch
from conftest import ids
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from datamodules import Digits
from datamodules.partition import iid, split_each
from datamodules.skew import in_turn, rotations, seen_as
from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.errors import InputError

NUM_DIGITS = 1797


def pool(views: tuple[View, ...] = (View(),), dtype: torch.dtype = torch.uint8, scale: float = 1.0) -> Examples:
    """Three 2 x 2 images: 1 2 / 3 4, 5 6 / 7 8 and 9 10 / 11 12, with labels 0, 2 and 1."""
    return Examples(torch.arange(1, 13).view(3, 1, 2, 2).to(dtype), ids(0, 2, 1), 3, scale, views)


def owned(*lists: list[int]) -> ClientIndex:
    return ClientIndex.from_lists([torch.tensor(one, dtype=torch.int64) for one in lists])


def quarters(*numbers: int) -> tuple[View, ...]:
    return tuple(View(number) for number in numbers)


def everything(data: FederatedData) -> Tensor:
    return torch.cat([data.train.values, data.validation.values, data.test.values])


def same_lists(one: ClientIndex, other: ClientIndex) -> bool:
    return torch.equal(one.values, other.values) and torch.equal(one.offsets, other.offsets)


# Examples and views


def test_quarter_turn_is_counter_clockwise():
    images, _ = pool(quarters(0, 1)).batch(ids(3))  # example 0 under view 1
    assert images.tolist() == [[[[2, 4], [1, 3]]]]


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_rotation_equals_that_of_the_raw_image(turns: int):
    digits = Digits().load()
    images, _ = digits.batch(ids(100, 1500) + turns * NUM_DIGITS)
    raw = digits.inputs[[100, 1500]].float() / 16
    assert torch.equal(images, torch.rot90(raw, turns, (2, 3)))


def test_views_mix_in_one_batch():
    views = (View(), View(2), View(0, (1, 2, 0)), View(1, (2, 1, 0)))
    images, labels = pool(views).batch(ids(10, 0, 5, 7))  # example and view: 1 3, 0 0, 2 1, 1 2
    assert images[:, 0].tolist() == [[[6, 8], [5, 7]], [[1, 2], [3, 4]], [[12, 11], [10, 9]], [[5, 6], [7, 8]]]
    assert labels.tolist() == [0, 0, 1, 0]


def test_label_map_stands_in_for_the_labels():
    examples = pool((View(), View(0, (2, 0, 1))))
    assert examples.targets(ids(0, 1, 2)).tolist() == [0, 2, 1]
    assert examples.targets(ids(5, 4, 3, 1)).tolist() == [0, 1, 2, 2]


def test_bytes_stay_bytes_in_the_pool_and_are_scaled_when_handed_out():
    examples = pool(scale=0.25)
    images, labels = examples.batch(ids(1))
    assert images.tolist() == [[[[1.25, 1.5], [1.75, 2.0]]]]
    assert (examples.inputs.dtype, images.dtype, labels.dtype) == (torch.uint8, torch.float32, torch.int64)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_batch_has_the_dtype_asked_for(dtype: torch.dtype):
    assert pool(dtype=dtype).batch(ids(0), torch.float64)[0].dtype == torch.float64


def test_token_ids_stay_integers():
    examples = Examples(torch.tensor([[5, 7], [2, 3]]), ids(0, 1), 2)
    tokens, _ = examples.batch(ids(1))
    assert (tokens.tolist(), tokens.dtype) == ([[2, 3]], torch.int64)


def test_batch_leaves_the_pool_alone():
    examples = pool((View(), View(1, (1, 0, 2))), torch.float32, 0.5)
    examples.batch(ids(0, 3, 4, 5))[0].fill_(-1)
    examples.targets(ids(3, 4)).fill_(-1)
    assert examples.inputs.flatten().tolist() == list(range(1, 13))
    assert examples.labels.tolist() == [0, 2, 1]


def test_empty_batch_has_no_examples():
    images, labels = pool(quarters(0, 1)).batch(ids())
    assert (images.shape, labels.shape) == ((0, 1, 2, 2), (0,))


# Index lists


def test_index_gives_each_client_its_list():
    index = owned([4, 2], [], [7], [0, 1, 3])
    assert [one.tolist() for one in index] == [[4, 2], [], [7], [0, 1, 3]]
    assert index.sizes.tolist() == [2, 0, 1, 3]
    assert index.owners.tolist() == [0, 0, 2, 3, 3, 3]
    assert len(index) == 4


def test_selected_clients_come_in_the_order_asked_for():
    chosen = owned([4, 2], [], [7], [0, 1, 3]).select(ids(3, 1, 0))
    assert [one.tolist() for one in chosen] == [[0, 1, 3], [], [4, 2]]
    assert chosen.owners.tolist() == [0, 0, 0, 2, 2]


def test_index_of_nobody_is_empty():
    index = owned()
    assert (len(index), index.values.tolist(), index.owners.tolist()) == (0, [], [])
    assert index.values.dtype == torch.int64


# Federated data


def three_clients(newcomers: Tensor | None = None) -> FederatedData:
    examples = pool((View(), View(0, (1, 2, 0))))
    train, test = owned([0, 1, 2, 0], [], [4, 5]), owned([1], [2, 0], [3])
    return FederatedData(examples, train, owned([], [1], []), test, ids(0, -1, 1), newcomers=newcomers)


def test_label_counts_are_those_the_clients_see():
    assert three_clients().label_counts.tolist() == [[2, 1, 1], [0, 0, 0], [1, 0, 1]]


def test_number_of_examples_counts_training_only():
    assert three_clients().num_examples.tolist() == [4, 0, 2]


def test_newcomers_are_not_in_the_population():
    assert three_clients().population.tolist() == [0, 1, 2]
    assert three_clients(torch.tensor([False, True, False])).population.tolist() == [0, 2]


def test_subset_is_renumbered_and_cut():
    part = three_clients(torch.tensor([True, False, False])).subset(ids(2, 0), max_examples=3)
    assert [one.tolist() for one in part.train] == [[4, 5], [0, 1, 2]]
    assert [one.tolist() for one in part.test] == [[3], [1]]
    assert part.true_clusters.tolist() == [1, 0]
    assert part.population.tolist() == [0]


def test_subset_without_a_limit_keeps_all_examples():
    assert three_clients().subset(ids(0, 1)).num_examples.tolist() == [4, 0]


# Partitions


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 300), st.data(), st.integers(0, 2**32))
def test_iid_is_a_partition_into_equal_shares(num_examples: int, draw: st.DataObject, seed: int):
    clients = draw.draw(st.integers(1, num_examples))
    lists = iid(num_examples, clients, np.random.default_rng(seed))
    sizes = [len(one) for one in lists]
    assert torch.cat(lists).sort().values.tolist() == list(range(num_examples))
    assert len(lists) == clients
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(0, 12), max_size=6), st.floats(0, 1), st.integers(0, 2**32))
def test_split_takes_the_share_but_never_all(sizes: list[int], share: float, seed: int):
    lists = [torch.arange(size) + 100 * client for client, size in enumerate(sizes)]
    kept, taken = split_each(lists, share, np.random.default_rng(seed))
    for whole, stays, goes in zip(lists, kept, taken, strict=True):
        assert torch.cat([stays, goes]).sort().values.tolist() == whole.tolist()
        assert len(stays) >= min(1, len(whole))
        assert len(goes) == min(round(share * len(whole)), max(len(whole) - 1, 0))


def test_split_of_a_whole_leaves_one_example():
    kept, taken = split_each([torch.arange(5), ids(9), ids()], 1.0, np.random.default_rng(0))
    assert ([len(one) for one in kept], [len(one) for one in taken]) == ([1, 1, 0], [4, 0, 0])


def test_split_is_at_random():
    _, taken = split_each([torch.arange(100)], 0.5, np.random.default_rng(0))
    assert 10 < (taken[0] < 50).sum() < 40


def test_true_clusters_are_given_in_turn():
    assert in_turn(7, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_numbers_become_indices_of_a_view():
    assert [one.tolist() for one in seen_as([ids(4, 0), ids(), ids(2)], ids(1, 0, 2), 5)] == [[9, 5], [], [12]]


def test_angles_become_quarter_turns():
    assert rotations((0, 90, 180, 270)) == quarters(0, 1, 2, 3)
    assert rotations((-90, 450)) == quarters(3, 1)


def test_the_same_angle_twice_is_refused():
    with pytest.raises(InputError, match=r"\[0, 360\] holds one angle twice"):
        rotations((0, 360))


# Digits


@pytest.mark.parametrize("clients", [1, 7, 40, 1797])
def test_every_image_has_exactly_one_client(clients: int):
    data = Digits(num_clients=clients).federated(0)
    assert (everything(data) % NUM_DIGITS).sort().values.tolist() == list(range(NUM_DIGITS))


def test_digits_are_split_72_8_20():
    data = Digits().federated(0)
    sizes = list(zip(*[split.sizes.tolist() for split in (data.train, data.validation, data.test)], strict=True))
    assert sizes == [(32, 4, 9)] * 37 + [(31, 4, 9)] * 3  # 45 images: 9, round(3.6), rest; 44: 9, round(3.5), rest


def test_true_cluster_is_the_rotation_the_client_sees():
    data = Digits(num_clients=10).federated(0)
    assert data.true_clusters.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    for split in (data.train, data.validation, data.test):
        assert torch.equal(split.values // NUM_DIGITS, split.owners % 4)


def test_skew_is_named_after_what_differs():
    assert Digits().federated(0).skew == "feature"
    assert Digits(rotations=[180]).federated(0).skew == "other"


def test_same_seed_gives_the_same_partition():
    one, other = Digits().federated(5), Digits().federated(5)
    assert same_lists(one.train, other.train)
    assert same_lists(one.validation, other.validation)
    assert same_lists(one.test, other.test)


def test_other_seed_gives_another_partition():
    digits = Digits()
    assert not same_lists(digits.federated(5).train, digits.federated(6).train)


def test_partition_seed_stands_above_the_run_seed():
    fixed = Digits(partition_seed=0)  # 0 is a seed, not a missing one
    assert same_lists(fixed.federated(5).train, fixed.federated(6).train)
    assert same_lists(fixed.federated(5).train, Digits().federated(0).train)


def test_validation_share_does_not_move_the_test_data():
    without = Digits(validation=0).federated(3)
    assert same_lists(without.test, Digits(validation=0.5).federated(3).test)
    assert len(without.validation.values) == 0


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


@pytest.mark.parametrize("clients", [0, 2000, -1])
def test_number_of_clients_that_cannot_be_is_refused(clients: int):
    with pytest.raises(InputError, match=f"{clients} clients"):
        Digits(num_clients=clients).federated(0)


@pytest.mark.parametrize("name", ["test", "validation", "newcomers"])
@pytest.mark.parametrize("share", [1, -0.1, 1.5, float("nan")])
def test_share_outside_its_range_is_refused(name: str, share: float):
    with pytest.raises(InputError, match=f"{name} is {share}; it must be 0 or more and below 1"):
        Digits(**{name: share})


def test_rotation_that_blurs_is_refused():
    with pytest.raises(InputError, match="by 45 degrees"):
        Digits(rotations=[0, 45]).federated(0)


def test_empty_list_of_rotations_is_refused():
    with pytest.raises(InputError, match=r"give at least one angle, \[0\] for none"):
        Digits(rotations=[]).federated(0)


# As an ordinary LightningDataModule


def served(loader: DataLoader[tuple[Tensor, ...]]) -> list[list[float]]:
    """Images and labels of a whole loader, one row an example, in a fixed order."""
    return sorted(row for images, labels in loader for row in joined(images, labels))


def joined(images: Tensor, labels: Tensor) -> list[list[float]]:
    return torch.cat([images.flatten(1), labels[:, None]], 1).tolist()


@pytest.fixture
def digits() -> Digits:
    module = Digits(num_clients=12, batch_size=100)
    module.setup()
    torch.manual_seed(0)  # shuffling
    return module


def test_loaders_give_the_union_of_the_clients(digits: Digits):
    loaders = (digits.train_dataloader(), digits.val_dataloader(), digits.test_dataloader())
    data = Digits(num_clients=12).federated(0)
    for loader, split in zip(loaders, (data.train, data.validation, data.test), strict=True):
        assert served(loader) == sorted(row for client in split for row in joined(*data.examples.batch(client)))


def test_only_training_data_are_shuffled(digits: Digits):
    def first_labels(loader: DataLoader[tuple[Tensor, ...]]) -> list[int]:
        return next(iter(loader))[1].tolist()

    assert first_labels(digits.train_dataloader()) != first_labels(digits.train_dataloader())
    assert first_labels(digits.test_dataloader()) == first_labels(digits.test_dataloader())


def test_module_without_validation_data_serves_none():
    digits = Digits(validation=0)
    digits.setup()
    assert served(digits.val_dataloader()) == []
