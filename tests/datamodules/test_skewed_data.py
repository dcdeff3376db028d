"""Data under a skew: who sees which view, true clusters, copies."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import ids

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.data.partition_file import partition_hash
from lit_cfl.datamodules.partition import IID, Partition, Pool
from lit_cfl.datamodules.pooled import PooledDataModule, join_divisions
from lit_cfl.datamodules.skew import (
    Blurs,
    Brightnesses,
    FreeRotations,
    LabelPermutations,
    LabelShifts,
    LabelSwaps,
    NoiseLevels,
    Rotations,
    Skew,
    apply_views,
    deal_views,
    view_indices,
)
from lit_cfl.errors import InputError

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


@few
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=40), st.integers(1, 6))
def test_views_are_dealt_in_turn_within_each_cluster(clusters: list[int], num_views: int):
    views = deal_views(ids(*clusters), num_views).tolist()
    for cluster in set(clusters):
        mine = [view for view, its in zip(views, clusters, strict=True) if its == cluster]
        assert mine == [k % num_views for k in range(len(mine))]


@few
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12))
def test_numbers_become_indices_of_the_view(clients: list[tuple[int, int]]):
    index = ClientIndex.from_lists([torch.arange(size) + k for k, (size, _) in enumerate(clients)])
    views = ids(*(view for _, view in clients))
    seen = view_indices(index, views, 100)
    assert lists(seen) == [[k + j + 100 * view for j in range(size)] for k, (size, view) in enumerate(clients)]


def test_stretches_that_are_shared_stay_shared_within_a_view():
    index = ClientIndex(torch.arange(7), ids(0, 4, 0, 0, 4), ids(4, 3, 4, 4, 3))
    seen = view_indices(index, ids(0, 0, 1, 0, 0), 10)
    assert lists(seen) == [[0, 1, 2, 3], [4, 5, 6], [10, 11, 12, 13], [0, 1, 2, 3], [4, 5, 6]]
    assert len(seen.values) == 4 + 3 + 4
    assert seen.starts[0] == seen.starts[3]
    assert seen.starts[1] == seen.starts[4]


def test_true_cluster_is_the_pair_of_cluster_and_view():
    train = ClientIndex.from_lists([ids(0), ids(1), ids(2), ids(3)])
    division = Division(train, train.first(0), ids(0, 1, 1, 0), "label")
    seen = apply_views(division, ids(0, 0, 1, 1), 2, 4)
    assert seen.true_clusters.tolist() == [0, 2, 3, 1]
    assert lists(seen.train) == [[0], [1], [6], [7]]
    assert seen.skew == "label"


def test_unknown_clusters_become_those_of_the_view():
    train = ClientIndex.from_lists([ids(0), ids(1)])
    assert apply_views(Division(train, train, ids(-1, -1)), ids(1, 0), 2, 2).true_clusters.tolist() == [1, 0]


def test_an_unknown_cluster_among_known_ones_stays_unknown():
    train = ClientIndex.from_lists([ids(0), ids(1), ids(2)])
    assert apply_views(Division(train, train, ids(0, -1, 1)), ids(1, 0, 1), 2, 3).true_clusters.tolist() == [1, -1, 3]


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
        ([FreeRotations((0, 20)), Blurs()], "feature"),
        ([Brightnesses()], "feature"),
        ([LabelSwaps(((), (0, 1)))], "label"),
        ([LabelShifts((0, 1))], "label"),
        ([LabelPermutations(2)], "label"),
        ([Rotations(), LabelShifts((0, 1))], "other"),
        ([Rotations((90,)), LabelShifts((0, 1))], "label"),  # a skew of one view makes no difference
        ([Rotations(), LabelShifts((1,))], "feature"),
    ],
)
def test_data_say_what_skew_they_have(skew: Sequence[Skew], name: str):
    assert Squares(IID(8, 0.2), skew).federated(0).skew == name


def test_partitions_of_other_looks_are_others():
    hashes = [partition_hash(Squares(IID(8, 0.2), skew).federated(0)) for skew in ([], [Blurs([1.0])], [Blurs([2.0])])]
    assert len(set(hashes)) == 3


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


@pytest.mark.parametrize(("test", "leaks"), [("alike", False), ("shared", False), (0.2, True)])
def test_copies_leak_test_images_into_other_views_only_where_test_is_a_share(test: str | float, leaks: bool):
    class WithTestPart(Squares):
        def pool(self) -> Pool:
            return replace(super().pool(), num_train=300)

    data = WithTestPart(IID(8, test), [Rotations((0, 180))], copies=True).federated(0)
    trained, tested = (set((index.entries % 400).tolist()) for index in (data.train, data.test))
    assert bool(trained & tested) == leaks
    assert not set(data.train.entries.tolist()) & set(data.test.entries.tolist())  # never under the same view


def test_copies_without_a_skew_are_refused():
    with pytest.raises(InputError, match="copies is true, but there is no skew"):
        Squares(IID(8), copies=True)


def test_names_of_the_clients_are_repeated_for_each_view():
    divisions = [Division(ClientIndex.empty(2), ClientIndex.empty(2), ids(-1, -1), names=("ann", "bob"))] * 2
    assert join_divisions(divisions).names == ("ann", "bob", "ann", "bob")
    unnamed = replace(divisions[0], names=())
    assert join_divisions([unnamed, divisions[0]]).names == ("", "", "ann", "bob")
    assert join_divisions([unnamed, unnamed]).names == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "IID"}, r"partition is 'IID'; give a Partition, such as IID\(num_clients=100\)"),
        ({"partition": IID}, "partition is <class .*>; give a Partition"),
        ({"partition": None}, "partition is None"),
        ({"partition": IID(8), "skew": "Rotations"}, "skew holds 'Rotations'; give skews"),
        ({"partition": IID(8), "skew": Rotations}, "skew holds <class .*>; give skews"),
        ({"partition": IID(8), "skew": 90}, "skew holds 90; give skews"),
        ({"partition": IID(8), "skew": [Rotations]}, "skew holds <class .*>; give skews, such as .Rotations"),
    ],
)
def test_what_is_no_partition_or_skew_is_refused(options: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        Squares(**options)
