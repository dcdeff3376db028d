"""Tests clusters of clients with the same labels, or with one dominant label."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from partition_cases import counts_in, divided, few, labels_of, pool_of, seeds

from lit_cfl.datamodules.partition import DominantClass, LabelGroups, PartitionWithTestRule
from lit_cfl.datamodules.partition.base import label_counts
from lit_cfl.errors import InputError


def test_groups_have_clients_of_their_own():
    pool = pool_of(labels_of([40, 50, 61, 30, 31]))
    division = divided(LabelGroups(0.0, [[4, 0], [1, 2, 3]], clients_per_group=3), pool)
    counts = label_counts(division.train, pool.labels, 5)
    assert division.true_clusters.tolist() == [0, 0, 0, 1, 1, 1]
    assert division.train.sizes.tolist() == [24, 24, 23, 47, 47, 47]
    assert counts[:3].sum(0).tolist() == [40, 0, 0, 0, 31]
    assert counts[3:].sum(0).tolist() == [0, 50, 61, 30, 0]
    assert counts[0].tolist() != [14, 0, 0, 0, 10]  # examples are dealt at random, not label by label


def test_stocfl_has_four_groups_of_a_hundred_clients():
    pool = pool_of(labels_of([150] * 10), labels_of([10] * 10))
    division = divided(LabelGroups(), pool)
    assert (len(division.train), LabelGroups().num_clients) == (400, 400)
    assert division.true_clusters.bincount().tolist() == [100] * 4
    shared = divided(LabelGroups("shared"), pool)
    assert counts_in(shared.test, pool)[::100] == [
        [10, 10, 10, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 10, 10, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 10, 10, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 10, 10, 10],
    ]
    assert counts_in(divided(LabelGroups("everything"), pool).test, pool) == [[10] * 10] * 400


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            [[0, 1]],
            r"groups are \[\[0, 1\]\], but each label of the data must be in exactly one group; the labels are 0 to 3",
        ),
        ([], "each label of the data must be in exactly one group"),
        ([[0, 1, 2], [2, 3]], "each label of the data must be in exactly one group"),
        ([[0, 1, 2], [3, 4]], "each label of the data must be in exactly one group"),
        ([[0, -1, 1, 2], [3]], "each label of the data must be in exactly one group"),
        ([[0, 1, 2, 3], []], "5 clients cannot share 0 examples"),
    ],
)
def test_impossible_groups_are_refused(groups: list[list[int]], message: str):
    with pytest.raises(InputError, match=message):
        divided(LabelGroups(0.0, groups, 5), pool_of(labels_of([10] * 4)))


@few
@given(
    st.lists(st.integers(100, 300), min_size=3, max_size=6),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.25, 0.5, 0.8, 1.0]),
    st.integers(1, 12),
    seeds,
)
def test_dominant_class_has_its_share_of_each_client(
    counts: list[int], clusters: int, more: int, beta: float, size: int, seed: int
):
    assume(not beta or round(beta * size))  # otherwise the partition is refused, which a test below checks
    pool = pool_of(labels_of(counts, seed))
    division = divided(DominantClass(clusters + more, 0.0, clusters, beta, size), pool, seed)
    has = label_counts(division.train, pool.labels, len(counts))
    truth = torch.arange(clusters + more) % clusters
    assert torch.equal(division.true_clusters, truth)
    assert division.train.sizes.tolist() == [size] * (clusters + more)
    assert has.gather(1, truth[:, None]).flatten().tolist() == [round(beta * size)] * (clusters + more)
    assert division.train.entries.unique().numel() == division.train.entries.numel()


def test_the_rest_is_drawn_from_the_other_labels_in_proportion():
    pool = pool_of(labels_of([9000, 3000, 6000, 12_000]))
    has = label_counts(divided(DominantClass(10, 0.0, 2, 0.5, 400), pool).train, pool.labels, 4)
    # the other labels are taken in the ratio 3000 : 6000 : 12,000
    assert has[0::2].sum(0).tolist() == [1000, 143, 286, 571]
    assert has[1::2].sum(0).tolist() == [333, 1000, 222, 445]
    assert len({tuple(row) for row in has.tolist()}) == 10  # the labels of each client are random


def test_dominant_class_gives_out_as_much_as_there_is_for_all():
    pool = pool_of(labels_of([600] * 10), labels_of([100] * 10))
    division = divided(DominantClass(), pool)
    assert division.train.sizes.tolist() == [180] * 20  # 5 * 90 + 15 * 90 / 9 = 600 of a cluster's label
    with pytest.raises(InputError, match=r"20 clients cannot have 182 examples each, .* at most 18\d each"):
        divided(DominantClass(examples_per_client=182), pool)
    counts = label_counts(division.test, pool.labels, 10)
    assert counts[:4].argmax(1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DominantClass(8, 0.0, 5), "num_clusters is 5; give 1 to 4, as there are 8 clients and 4 labels"),
        (lambda: DominantClass(3, 0.0, 4), "num_clusters is 4; give 1 to 3"),
        (lambda: DominantClass(8, 0.0, 0), "num_clusters is 0"),
        (lambda: DominantClass(8, 0.0, 2, 1.2), "DominantClass: beta is 1.2; give 0 to 1"),
        (lambda: DominantClass(8, 0.0, 2, 0.5, 0), "examples_per_client is 0; give 1 or more, or null"),
        (lambda: DominantClass(100, 0.0, 2, 1.0), "100 clients cannot have 0 examples each, .* at most 0 each"),
    ],
)
def test_impossible_dominance_is_refused(make: Callable[[], PartitionWithTestRule], message: str):
    with pytest.raises(InputError, match=message):
        divided(make(), pool_of(labels_of([10] * 4)))


def test_label_of_a_cluster_that_nobody_has_is_refused():
    with pytest.raises(
        InputError, match=r"needs .* examples with each label of 0 to 3, but their numbers are \[0, 10, 10, 10\]"
    ):
        divided(DominantClass(8, 0.0, 4), pool_of(labels_of([0, 10, 10, 10])))


def test_share_below_one_example_is_refused():
    with pytest.raises(InputError, match=r"cannot have 2 examples each, with a share of 0\.2"):
        divided(DominantClass(8, 0.0, 4, 0.2, 2), pool_of(labels_of([10] * 4)))


def test_one_label_cannot_dominate_others():
    with pytest.raises(InputError, match="2 or more labels"):
        divided(DominantClass(2, 0.0, 1), pool_of(labels_of([10])))
