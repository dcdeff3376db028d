"""Skew with the truth attached: what clusters see, who is in which, and the noise that belongs to an example."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest
import torch
from conftest import ids
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datamodules.partition import IID, Partition, Pool
from datamodules.pooled import PooledDataModule
from datamodules.skew import (
    LabelPermutations,
    LabelShifts,
    NoiseLevels,
    Rotations,
    Skew,
    all_views,
    dealt,
    seen_as,
    shifted_labels,
    skew_name,
    under_views,
)
from lit_cfl.data import ClientIndex, Division, Examples, View
from lit_cfl.errors import InputError
from lit_cfl.hashing import hashed, keyed_normal, keyed_uniform

few = settings(deadline=None, derandomize=True, max_examples=50)


class TwoGroups(Partition):
    """Even clients have labels 0 and 1, odd ones 2 and 3; a fifth of the examples is for testing."""

    skew = "label"

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients

    def divide(self, pool: Pool, rng: np.random.Generator) -> Division:
        clusters = torch.arange(self.num_clients) % 2
        groups = [
            torch.from_numpy(rng.permutation((pool.labels // 2 == k).nonzero().flatten().numpy())) for k in (0, 1)
        ]
        of_client = [groups[k].chunk(self.num_clients // 2)[client // 2] for client, k in enumerate(clusters.tolist())]
        train = ClientIndex.from_lists([own[len(own) // 5 :] for own in of_client])
        test = ClientIndex.from_lists([own[: len(own) // 5] for own in of_client])
        return Division(train, test, clusters, self.skew)


class Squares(PooledDataModule):
    """400 grey images, 3 x 3 with pixels of their own, of four labels in turn."""

    def pool(self) -> Pool:
        images = torch.arange(3600).view(400, 1, 3, 3).float()
        return Pool(Examples(images, torch.arange(400) % 4, 4), 400)


def lists(index: ClientIndex) -> list[list[int]]:
    return [one.tolist() for one in index]


# Kinds of skew


def test_angles_become_quarter_turns():
    views = Rotations((0, 90, 180, 270)).views(10)
    assert views == (View(), View(1), View(2), View(3))
    assert Rotations((-90, 450)).views(10) == (View(3), View(1))


def test_labels_are_shifted_round():
    assert shifted_labels(10, 3) == (3, 4, 5, 6, 7, 8, 9, 0, 1, 2)
    assert shifted_labels(4, -1) == (3, 0, 1, 2)
    views = LabelShifts().views(10)  # StoCFL's 0, 3, 6, 9
    examples = Examples(torch.zeros(10, 1), torch.arange(10), 10, views=views)
    for number, by in enumerate((0, 3, 6, 9)):
        seen = examples.targets(torch.arange(10) + 10 * number)
        assert seen.tolist() == [(label + by) % 10 for label in range(10)]


@pytest.mark.parametrize("num_clusters", [1, 2, 6, 24])
def test_label_permutations_are_different_and_the_first_changes_nothing(num_clusters: int):
    maps = [view.label_map for view in LabelPermutations(num_clusters).views(4)]
    assert len(set(maps)) == num_clusters
    assert maps[0] == (0, 1, 2, 3)
    assert all(sorted(one) == [0, 1, 2, 3] for one in maps)


def test_label_permutations_depend_on_their_seed_alone():
    one, same, other = (LabelPermutations(4, seed).views(10) for seed in (5, 5, 6))
    assert one == same
    assert one != other


def test_noise_has_a_level_for_each_cluster():
    assert NoiseLevels((0.0, 0.5, 2)).views(10) == (View(), View(noise=0.5), View(noise=2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotations((0, 45)), "by 45 degrees would blur the images; give multiples of 90"),
        (lambda: Rotations(()), r"rotations is empty; give at least one, \[0\] for no change"),
        (lambda: Rotations((90, 450)), r"rotations \[90, 90\] holds one twice"),
        (lambda: NoiseLevels((0.5, -0.1)), "noise level is -0.1; it must be 0 or more"),
        (lambda: NoiseLevels((float("nan"),)), "noise level is nan"),
        (lambda: NoiseLevels((float("inf"),)), "noise level is inf"),
        (lambda: NoiseLevels((0.5, 0.5)), "holds one twice"),
        (lambda: NoiseLevels(()), "noise levels is empty"),
        (lambda: LabelPermutations(0), "num_clusters of label permutations is 0; give 1 or more"),
        (lambda: LabelPermutations(7).views(3), "3 labels have too few different orders for 7 clusters; ask for fewer"),
        (lambda: LabelShifts(()).views(10), "label shifts is empty"),
        (lambda: LabelShifts((1, 11)).views(10), r"label shifts \[1, 1\] holds one twice"),
    ],
)
def test_skew_that_cannot_be_is_refused(make: object, message: str):
    with pytest.raises(InputError, match=message):
        make()


def test_skews_that_do_not_fit_the_inputs_are_refused():
    tokens, labels = torch.zeros(2, 5, dtype=torch.int64), ids(0, 1)
    with pytest.raises(InputError, match="are no images; only images can be rotated"):
        Examples(tokens, labels, 2, views=Rotations().views(2), vocabulary=9)
    with pytest.raises(InputError, match="token ids cannot be made noisy"):
        Examples(tokens, labels, 2, views=NoiseLevels().views(2), vocabulary=9)
    with pytest.raises(InputError, match="not square; rotate them by 0 and 180 only"):
        Examples(torch.zeros(2, 1, 3, 4), labels, 2, views=Rotations((0, 90)).views(2))


# Products


def test_views_add_up():
    one, other = View(3, (1, 2, 0), 0.3), View(2, (0, 2, 1), 0.4)
    assert one.then(other) == View(1, (2, 1, 0), 0.5)
    assert View().then(one) == one.then(View()) == one


@few
@given(st.permutations(range(5)), st.permutations(range(5)), st.integers(0, 3), st.integers(0, 3))
def test_view_after_a_view_is_what_one_sees_through_both(first: list[int], then: list[int], turns: int, more: int):
    one, other = View(turns, tuple(first)), View(more, tuple(then))
    plain = Examples(torch.arange(45).view(5, 1, 3, 3).float(), torch.arange(5), 5, views=(one,))
    seen = Examples(*plain.batch(torch.arange(5)), 5, views=(other,)).batch(torch.arange(5))
    both = Examples(plain.inputs, plain.labels, 5, views=(one.then(other),)).batch(torch.arange(5))
    assert torch.equal(both[0], seen[0])
    assert torch.equal(both[1], seen[1])


def test_last_skew_changes_fastest():
    views = all_views([Rotations((0, 180)), LabelShifts((0, 1, 2))], 3)
    maps = [None, (1, 2, 0), (2, 0, 1)]
    assert views == tuple(View(turns, one) for turns in (0, 2) for one in maps)
    assert all_views([], 3) == (View(),)


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ((), "other"),
        (("feature",), "feature"),
        (("label", "label"), "label"),
        (("other", "feature"), "feature"),
        (("label", "feature"), "other"),
        (("other",), "other"),
    ],
)
def test_skew_is_named_after_the_kinds_that_agree(kinds: Sequence[str], name: str):
    assert skew_name(*kinds) == name


# Who sees what


@few
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=40), st.integers(1, 6))
def test_views_are_dealt_in_turn_within_each_cluster(clusters: list[int], num_views: int):
    views = dealt(ids(*clusters), num_views).tolist()
    for cluster in set(clusters):
        mine = [view for view, its in zip(views, clusters, strict=True) if its == cluster]
        assert mine == [k % num_views for k in range(len(mine))]


@few
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12))
def test_numbers_become_indices_of_the_view(clients: list[tuple[int, int]]):
    index = ClientIndex.from_lists([torch.arange(size) + k for k, (size, _) in enumerate(clients)])
    views = ids(*(view for _, view in clients))
    seen = seen_as(index, views, 100)
    assert lists(seen) == [[k + j + 100 * view for j in range(size)] for k, (size, view) in enumerate(clients)]


def test_stretches_that_are_shared_stay_shared_within_a_view():
    index = ClientIndex(torch.arange(7), ids(0, 4, 0, 0, 4), ids(4, 3, 4, 4, 3))
    seen = seen_as(index, ids(0, 0, 1, 0, 0), 10)
    assert lists(seen) == [[0, 1, 2, 3], [4, 5, 6], [10, 11, 12, 13], [0, 1, 2, 3], [4, 5, 6]]
    assert len(seen.values) == 4 + 3 + 4
    assert seen.starts[0] == seen.starts[3]
    assert seen.starts[1] == seen.starts[4]


def test_true_cluster_is_the_pair_of_cluster_and_view():
    train = ClientIndex.from_lists([ids(0), ids(1), ids(2), ids(3)])
    division = Division(train, train.first(0), ids(0, 1, 1, 0), "label")
    seen = under_views(division, ids(0, 0, 1, 1), 2, 4)
    assert seen.true_clusters.tolist() == [0, 2, 3, 1]
    assert lists(seen.train) == [[0], [1], [6], [7]]
    assert seen.skew == "label"


def test_unknown_clusters_become_those_of_the_view():
    train = ClientIndex.from_lists([ids(0), ids(1)])
    assert under_views(Division(train, train, ids(-1, -1)), ids(1, 0), 2, 2).true_clusters.tolist() == [1, 0]


@pytest.mark.parametrize(("degrees", "num_clusters"), [((0, 180), 4), ((0, 90, 180, 270), 8)])
def test_rotations_times_label_groups_give_4_or_8_clusters(degrees: tuple[int, ...], num_clusters: int):
    module = Squares(TwoGroups(16), [Rotations(degrees)])  # StoCFL, Fig. 7
    data = module.federated(0)
    assert data.true_clusters.bincount().tolist() == [16 // num_clusters] * num_clusters
    assert data.skew == "other"
    for client, cluster in enumerate(data.true_clusters.tolist()):
        group, turns = divmod(cluster, len(degrees))
        for index in (data.train[client], data.test[client]):
            images, labels = data.examples.batch(index)
            raw = module.pool().examples.inputs[index % 400]
            assert set((labels // 2).tolist()) == {group}
            assert torch.equal(images, raw.rot90(degrees[turns] // 90, (2, 3)))


def test_product_of_skews_is_as_frequent_in_every_combination():
    data = Squares(IID(24, 0.2), [Rotations((0, 90)), LabelShifts((0, 1, 2))]).federated(0)
    assert data.true_clusters.bincount().tolist() == [4] * 6
    assert data.true_clusters[:8].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize(
    ("skew", "name"),
    [
        ([], "other"),
        ([Rotations((90,))], "other"),  # all alike
        ([Rotations()], "feature"),
        ([NoiseLevels()], "feature"),
        ([Rotations(), NoiseLevels()], "feature"),
        ([LabelShifts((0, 1))], "label"),
        ([LabelPermutations(2)], "label"),
        ([Rotations(), LabelShifts((0, 1))], "other"),
    ],
)
def test_data_say_what_skew_they_have(skew: Sequence[Skew], name: str):
    assert Squares(IID(8, 0.2), skew).federated(0).skew == name


def test_without_copies_clusters_share_one_pool():
    data = Squares(IID(8, 0.25), [Rotations()]).federated(0)
    indices = torch.cat([data.train.entries, data.test.entries])
    assert (indices % 400).sort().values.tolist() == list(range(400))


def test_with_copies_each_cluster_divides_the_whole_pool():
    module = Squares(IID(8, 0.25), [Rotations((0, 90, 180))], copies=True)
    data = module.federated(0)
    assert data.true_clusters.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    for split, size in ((data.train, 38), (data.test, 12)):
        assert split.sizes.tolist() == [size] * 24
    indices = torch.cat([data.train.entries, data.test.entries])
    assert indices.sort().values.tolist() == list(range(1200))  # every image once under every view
    assert len(data.examples) == 400  # none of them is copied
    assert set(lists(data.train)[0]) != {index % 400 for index in lists(data.train)[8]}  # each divides anew


def test_copies_without_a_skew_are_refused():
    with pytest.raises(InputError, match="copies is true, but there is no skew"):
        Squares(IID(8), copies=True)


# Noise that belongs to an index


def noisy(levels: Sequence[float] = (0.0, 0.5), size: int = 50) -> Examples:
    return Examples(torch.zeros(size, 1, 4, 4), torch.zeros(size).long(), 1, views=NoiseLevels(levels).views(1))


@few
@given(st.lists(st.integers(0, 99), min_size=1, max_size=20))
def test_noise_of_an_index_never_changes(chosen: list[int]):
    images, _ = noisy().batch(ids(*chosen))
    whole, _ = noisy().batch(torch.arange(100))
    assert torch.equal(images, whole[chosen])


def test_noise_has_the_strength_asked_for():
    images, _ = noisy((0.0, 0.5), 2000).batch(torch.arange(4000))
    assert not images[:2000].any()
    noise = images[2000:].double().flatten()
    assert abs(float(noise.mean())) < 4 * 0.5 / sqrt(len(noise))
    assert abs(float(noise.std()) - 0.5) < 4 * 0.5 / sqrt(2 * len(noise))


def test_noise_is_added_to_the_scaled_input():
    plain = Examples(torch.full((3, 2), 100, dtype=torch.uint8), ids(0, 0, 0), 1, scale=0.01)
    images, _ = Examples(plain.inputs, plain.labels, 1, 0.01, NoiseLevels((0.5,)).views(1)).batch(ids(0, 1, 2))
    assert torch.allclose(images - 1, 0.5 * keyed_normal(torch.arange(3), 2).float())


def test_hash_is_the_finaliser_of_murmurhash3():
    keys = [0, 1, 2, 12345, 2**31, 2**32 - 1, 2**32 + 1]
    assert hashed(ids(*keys)).tolist() == [finaliser(key) for key in keys]
    assert hashed(ids(1)).tolist() == [0x514E28B7]


def finaliser(key: int) -> int:
    """fmix32 of MurmurHash3, in Python's whole numbers."""
    key &= 0xFFFFFFFF
    key = ((key ^ key >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    key = ((key ^ key >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return key ^ key >> 16


KEYS = torch.arange(20_000)


@few
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=10), st.integers(1, 9))
def test_keyed_numbers_depend_on_their_key_alone(keys: list[int], size: int):
    together = keyed_uniform(ids(*keys), size)
    assert torch.equal(together, torch.cat([keyed_uniform(ids(key), size) for key in keys]))
    assert torch.equal(together.flip(0), keyed_uniform(ids(*keys).flip(0), size))
    assert ((together > 0) & (together < 1)).all()


@pytest.mark.parametrize(
    "keys", [KEYS, KEYS << 32, KEYS ^ 0x1234567890ABCDEF, -KEYS], ids=["low", "high", "xor", "minus"]
)
def test_keyed_uniform_numbers_are_uniform(keys: Tensor):
    tenths = (keyed_uniform(keys, 5).flatten() * 10).long().bincount()
    assert len(tenths) == 10
    assert float(((tenths - 10_000) ** 2 / 10_000).sum()) < 33.7  # chi-squared, 9 degrees of freedom, 1 in 10,000


def test_keyed_normal_numbers_are_normal():
    numbers = keyed_normal(KEYS, 8).flatten()
    bound = 4 / sqrt(len(numbers))
    assert abs(float(numbers.mean())) < bound
    assert abs(float(numbers.std()) - 1) < bound / sqrt(2)
    assert abs(float((numbers**3).mean())) < bound * sqrt(15)
    assert abs(float((numbers**4).mean()) - 3) < bound * sqrt(96)
    for limit, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert abs(float((numbers.abs() < limit).double().mean()) - share) < bound


@pytest.mark.parametrize("apart", [1, 2, 28 * 28, 50_000, 2**32])
def test_neighbouring_keys_are_not_correlated(apart: int):
    one, other = keyed_normal(KEYS, 4), keyed_normal(KEYS + apart, 4)
    shared = len(set(KEYS.tolist()) & set((KEYS + apart).tolist()))
    assert shared == max(0, len(KEYS) - apart)
    for k in range(4):  # each position with each position of the other key
        for j in range(4):
            assert abs(correlation(one[:, k], other[:, j])) < 4.5 / sqrt(len(KEYS))


def test_positions_of_a_key_are_not_correlated():
    numbers = keyed_normal(KEYS, 6)
    for k in range(6):
        for j in range(k):
            assert abs(correlation(numbers[:, k], numbers[:, j])) < 4.5 / sqrt(len(KEYS))


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])
