"""ArrayData: its clients and their true clusters."""

from typing import Any

import numpy as np
import pytest
import torch
from own_arrays import error_of, examples_of_clients, given, owned
from torch import Tensor

from lit_cfl.data import ClientIndex
from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.partition.natural import Natural
from lit_cfl.datamodules.skew import LabelShifts, Rotations

# Clients


def test_clients_are_those_named_in_ascending_order():
    module = owned()
    assert examples_of_clients(module.federated(0)) == [[4, 5, 6], [0, 1, 2, 3], [7, 8, 9, 10, 11]]
    assert module.pool().names == ("2", "7", "9")


def test_clients_may_have_words_for_names():
    words = np.array(["b", "a", "b", "c"] * 3)
    module = ArrayData(**given(client=words))
    assert module.pool().names == ("a", "b", "c")
    assert examples_of_clients(module.federated(0))[0] == [1, 5, 9]


def test_each_client_keeps_its_share_for_testing():
    data = owned(test=0.4).federated(0)
    assert data.test.sizes.tolist() == [1, 2, 2]  # round(0.4 n)
    assert owned(test=0).federated(0).test.sizes.tolist() == [0, 0, 0]


def test_without_clients_there_are_ten_of_equal_size():
    data = ArrayData(np.zeros((50, 2)), np.arange(50) % 2, test=0.4).federated(0)
    assert (data.train.sizes.tolist(), data.test.sizes.tolist()) == ([3] * 10, [2] * 10)
    assert sorted(i for client in examples_of_clients(data) for i in client) == list(range(50))


def test_partition_stands_in_place_of_the_clients():
    data = owned(partition=IID(4, 0.0)).federated(0)
    assert data.train.sizes.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("partition", ["IID", IID])
def test_partition_that_is_none_is_refused(partition: Any):
    assert f"partition is {partition!r}; give a Partition" in error_of(lambda: owned(partition=partition))


def test_split_depends_on_the_seed():
    one, other, again = (owned(test=0.5, allow_unseen_labels=True).federated(seed).test for seed in (0, 1, 0))
    assert one.values.tolist() != other.values.tolist()
    assert one.values.tolist() == again.values.tolist()


# True clusters


@pytest.mark.parametrize(
    "cluster",
    [
        [5, 0, 5],  # of clients 2, 7 and 9
        [0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5],  # of each example
    ],
)
def test_true_clusters_are_those_given(cluster: list[int]):
    assert owned(cluster=np.array(cluster)).federated(0).true_clusters.tolist() == [5, 0, 5]


def test_true_clusters_may_be_words():
    assert owned(cluster=np.array(["north", "east", "north"])).federated(0).true_clusters.tolist() == [1, 0, 1]


def test_true_clusters_are_unknown_unless_given():
    assert owned().federated(0).true_clusters.tolist() == [-1, -1, -1]


def test_clients_that_are_left_out_take_their_cluster_with_them():
    cluster = np.array([3, 1, 2])  # of clients 2, 7 and 9 with 3, 4 and 5 examples
    module = owned(cluster=cluster, partition=Natural(min_examples=4, test=0.2))
    assert module.federated(0).true_clusters.tolist() == [1, 2]
    assert examples_of_clients(module.federated(0)) == [[0, 1, 2, 3], [7, 8, 9, 10, 11]]
    drawn = owned(cluster=cluster, partition=Natural(max_clients=1, test=0.0))
    runs = [drawn.federated(seed) for seed in range(20)]
    found = {tuple(examples_of_clients(data)[0]): int(data.true_clusters) for data in runs}
    assert found == {(4, 5, 6): 3, (0, 1, 2, 3): 1, (7, 8, 9, 10, 11): 2}


def test_skew_on_top_gives_the_product_of_clusters():
    clients, cluster = np.arange(40).repeat(3), np.arange(40) % 2
    images = np.random.default_rng(0).integers(0, 256, (120, 4, 4), np.uint8)
    data = ArrayData(images, np.arange(120) % 3, clients, cluster, skew=[Rotations((0, 180))]).federated(0)
    views = data.train.values[data.train.starts] // 120
    assert data.true_clusters.tolist() == (torch.arange(40) % 2 * 2 + views).tolist()
    assert data.true_clusters.bincount().tolist() == [10, 10, 10, 10]  # not the rotation alone, nor the cluster alone


def test_copies_for_each_view_keep_the_clusters_of_their_clients():
    data = owned(cluster=np.array([2, 0, 1]), skew=[LabelShifts((0, 1))], copies=True).federated(0)
    assert data.true_clusters.tolist() == [4, 0, 2, 5, 1, 3]  # 2 cluster + view


def test_single_skew_needs_no_list():
    one, listed = (owned(skew=skew).federated(0) for skew in (LabelShifts((0, 1)), [LabelShifts((0, 1))]))
    assert one.true_clusters.tolist() == listed.true_clusters.tolist()
    assert torch.equal(one.train.values, listed.train.values)


@pytest.mark.parametrize("kind", ["feature", "label", "other"])
def test_skew_is_what_the_user_says(kind: str):
    assert owned(skew_kind=kind).federated(0).skew == kind


def test_skew_of_the_partition_counts_too():
    class ByLabel(IID):
        skew = "label"

        def clusters(self, shares: ClientIndex, num_labels: int) -> Tensor:
            return torch.arange(len(shares))

    assert owned(partition=ByLabel(2)).federated(0).skew == "label"
    assert owned(partition=ByLabel(2), skew_kind="feature").federated(0).skew == "other"


def test_skew_of_two_kinds_is_other():
    assert owned(skew_kind="label", skew=[LabelShifts((0, 1))]).federated(0).skew == "label"
    assert owned(skew_kind="feature", skew=[LabelShifts((0, 1))]).federated(0).skew == "other"


def test_client_in_two_true_clusters_is_named():
    cluster = np.array([1, 1, 1, 1, 0, 0, 0, 2, 2, 2, 4, 2])
    message = error_of(owned(cluster=cluster))
    assert "client 9 has examples of the true clusters 2 and 4 (1 such clients)" in message


def test_partition_that_mixes_true_clusters_is_refused():
    message = error_of(owned(cluster=np.array([0, 1, 2]), partition=IID(2, 0.0)))
    assert "client 0 has examples of the true clusters" in message
    assert "leave it out" in message


@pytest.mark.parametrize("share", [1.0, -0.1])
def test_share_outside_its_range_is_refused(share: float):
    assert f"{share}" in error_of(owned(test=share))
    assert f"{share}" in error_of(ArrayData(**given(), test=share))
