"""Tests rules common to all partitions: each example goes to one client, and equal seeds give equal clients."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import divided, few, held, labels_of, lists, pool_of, seeds
from quadratic import ids
from torch import Tensor

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.datamodules.partition import (
    IID,
    ClassesPerClient,
    Dirichlet,
    DirichletSizes,
    DominantClass,
    InnerDirichlet,
    LabelGroups,
    LogNormalSizes,
    PartitionWithTestRule,
    Pool,
    PowerLawSizes,
    Shards,
)
from lit_cfl.errors import InputError

of_eight = st.lists(st.integers(20, 60), min_size=8, max_size=8)
test_rules = st.sampled_from([0.0, 0.2, 0.5, "alike", "shared", "everything", None])
COUNTS = [50, 40, 45, 60, 55, 44, 61, 38]
EVERYTHING = (
    IID(7),
    LogNormalSizes(7, min_size=3),
    PowerLawSizes(7, min_size=3),
    DirichletSizes(7, min_size=3),
    Dirichlet(7, alpha=1.0, min_size=2),
    InnerDirichlet(7, alpha=1.0),
    ClassesPerClient(9, classes=2),
    Shards(7, shards_per_client=2),
    LabelGroups(groups=[[3, 0], [1], [2, 4, 5, 6, 7]], clients_per_group=3),
)  # partitions that give every example to a client


def all_of(division: Division) -> Tensor:
    """Counts each client's examples, training and test together."""
    return division.train.sizes + division.test.sizes


@few
@given(of_eight, seeds, st.sampled_from(EVERYTHING), test_rules)
def test_every_example_goes_to_one_client(
    counts: list[int], seed: int, partition: PartitionWithTestRule, test: str | float | None
):
    pool = pool_of(labels_of(counts, seed), labels_of([5] * len(counts), seed + 1))
    division = divided(replace(partition, test=test), pool, seed)
    assert division.train.sizes.min() > 0
    assert division.train.entries.unique().numel() == division.train.entries.numel()
    if test in ("shared", "everything"):  # several clients may have the same test examples
        assert division.train.entries.sort().values.tolist() == list(range(pool.num_train))
    else:
        assert held(division) == list(range(len(pool.labels)))


@few
@given(of_eight, seeds, st.sampled_from(EVERYTHING))
def test_training_and_test_part_of_the_source_stay_apart_unless_a_share_is_asked_for(
    counts: list[int], seed: int, partition: PartitionWithTestRule
):
    pool = pool_of(labels_of(counts, seed), labels_of([5] * len(counts), seed + 1))
    division = divided(replace(partition, test="alike"), pool, seed)
    assert int(division.train.entries.max()) < pool.num_train <= int(division.test.entries.min())


@pytest.mark.parametrize("partition", [*EVERYTHING, DominantClass(8)], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("test", [0.0, 0.25, "alike"])
def test_the_same_seed_gives_the_same_clients_and_another_others(partition: PartitionWithTestRule, test: str | float):
    pool = pool_of(labels_of(COUNTS), labels_of([9] * 8))
    one, again, other = (divided(replace(partition, test=test), pool, seed) for seed in (3, 3, 4))
    assert lists(one) == lists(again)
    assert lists(one) != lists(other)


@few
@given(of_eight, seeds, st.sampled_from(EVERYTHING), st.sampled_from([0.0, 0.25]))
def test_only_the_training_part_is_shared_out_if_asked_for(
    counts: list[int], seed: int, partition: PartitionWithTestRule, test: float
):
    pool = pool_of(labels_of(counts, seed), labels_of([5] * len(counts), seed + 1))
    division = divided(replace(partition, test=test, only_train=True), pool, seed)
    assert held(division) == list(range(pool.num_train))
    assert division.test.sizes.tolist() == [round(test * n) for n in all_of(division).tolist()]


def test_share_of_both_parts_leaves_out_nothing_unless_asked_for():
    pool = pool_of(labels_of([20] * 4), labels_of([6] * 4))
    assert [len(held(divided(IID(4, 0.2, only_train=only), pool))) for only in (False, True)] == [104, 80]


@pytest.mark.parametrize(
    ("test", "sizes"), [(None, [3, 3]), ("alike", [3, 3]), ("shared", [6, 6]), ("everything", [6, 6])]
)
@pytest.mark.parametrize("labels", [torch.arange(18) / 2, torch.zeros(18, dtype=torch.int64)], ids=["numbers", "none"])
def test_a_test_part_without_classes_is_shared_out_as_if_all_were_of_one(
    labels: Tensor, test: str | None, sizes: list[int]
):
    pool = Pool(Examples(torch.zeros(18, 2), labels, 0), 12)
    division = divided(IID(2, test), pool)
    assert (division.train.sizes.tolist(), division.test.sizes.tolist()) == ([6, 6], sizes)
    assert set(held(division)) == set(range(18))


def test_leaving_out_the_test_part_needs_a_share():
    with pytest.raises(InputError, match=r"only_train needs a share as test, but test is None; give one"):
        IID(4, only_train=True)


@pytest.mark.parametrize("test", ["own", "similar", ""])
def test_rule_for_test_data_that_does_not_exist_is_refused(test: str):
    with pytest.raises(InputError, match=f"IID: test is '{test}'.*; give alike, shared, everything or a number"):
        IID(3, test)


@pytest.mark.parametrize("partition", EVERYTHING, ids=lambda one: type(one).__name__)
def test_a_share_of_each_client_is_its_test_data(partition: PartitionWithTestRule):
    division = divided(replace(partition, test=0.25), pool_of(labels_of(COUNTS)))
    whole = all_of(division)
    assert division.test.sizes.tolist() == [round(0.25 * n) for n in whole.tolist()]


@pytest.mark.parametrize(
    ("partition", "skew"),
    [
        (IID(2), "other"),
        (DirichletSizes(2), "other"),
        (Dirichlet(2), "label"),
        (ClassesPerClient(5), "label"),
        (Shards(2), "label"),
        (LabelGroups(groups=[[0], [1, 2, 3, 4]], clients_per_group=1), "label"),
        (DominantClass(4), "label"),
        (ClassesPerClient(5, classes=5), "other"),  # there is one true cluster, so clients do not differ
        (LabelGroups(groups=[[0, 1, 2, 3, 4]], clients_per_group=3), "other"),
        (DominantClass(4, num_clusters=1), "other"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_partition_says_what_skew_it_makes(partition: PartitionWithTestRule, skew: str):
    pool = pool_of(labels_of([40] * 5), labels_of([4] * 5))
    for test in (0.2, "alike", "shared", "everything"):
        assert divided(replace(partition, test=test), pool).skew == skew


@pytest.mark.parametrize(
    "partition",
    [IID(51), LogNormalSizes(51, min_size=1), Dirichlet(51, min_size=1), ClassesPerClient(51), Shards(51)],
    ids=lambda one: type(one).__name__,
)
def test_more_clients_than_examples_are_refused(partition: PartitionWithTestRule):
    with pytest.raises(InputError, match=r"51 clients cannot share 50 examples .* give fewer clients"):
        divided(replace(partition, test=0.0), pool_of(labels_of([10] * 5)))


@pytest.mark.parametrize("number", [0, -3])
def test_no_clients_are_refused(number: int):
    with pytest.raises(InputError, match=f"IID: num_clients is {number}; give 1 or more"):
        divided(IID(number), pool_of(labels_of([10, 10])))


@dataclass(frozen=True)
class Given(PartitionWithTestRule):
    """User partition with the given lists, even invalid ones."""

    lists: tuple[tuple[int, ...], ...] = ()

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        return ClientIndex.from_lists([torch.tensor(one, dtype=torch.int64) for one in self.lists])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((0, 1), (1, 2)), "the partition assigns example 1 several times"),
        (((0, 2, 2), (1,)), "the partition assigns example 2 several times"),
        (((0, 1), (), ()), r"2 of 3 clients have no example \(client 1 is the first\)"),
        (((0, 4),), "the partition assigns example 4, but examples are 0 to 3"),
        (((0, -1),), "the partition assigns example -1, but"),
    ],
)
def test_an_invalid_partition_is_refused(given: tuple[tuple[int, ...], ...], message: str):
    for test in (0.0, "alike"):
        with pytest.raises(InputError, match=message):
            divided(Given(test=test, lists=given), pool_of(ids(0, 1, 0, 1), ids(1) if test else None))


@pytest.mark.parametrize("test", ["alike", "shared", "everything"])
def test_a_label_that_only_the_test_part_has_is_refused(test: str):
    pool = pool_of(ids(0, 1, 0, 1), ids(0, 2, 1))
    with pytest.raises(InputError, match="label 2 is in the source's test part but not in its training part"):
        divided(IID(2, test), pool)
    assert held(divided(IID(2, 0.0), pool)) == list(range(7))


@few
@given(st.integers(1, 40), st.integers(0, 500), seeds)
def test_iid_sizes_differ_by_one_at_most(clients: int, more: int, seed: int):
    division = divided(IID(clients, 0.0), pool_of(torch.zeros(clients + more, dtype=torch.int64)), seed)
    assert division.train.sizes.max() - division.train.sizes.min() <= 1
    assert division.true_clusters.tolist() == [0] * clients


@few
@given(
    st.sampled_from([LogNormalSizes(9), PowerLawSizes(9), DirichletSizes(9)]),
    st.integers(1, 12),
    st.integers(0, 400),
    seeds,
)
def test_sizes_keep_their_minimum_and_sum_up(partition: LogNormalSizes, least: int, more: int, seed: int):
    sizes = replace(partition, min_size=least).sizes(9 * least + more, np.random.default_rng(seed))
    assert (int(sizes.min()) >= least, int(sizes.sum())) == (True, 9 * least + more)


def test_sizes_without_spread_are_equal():
    for partition in (LogNormalSizes(4, min_size=2, sigma=0.0), PowerLawSizes(4, min_size=2, exponent=0.0)):
        assert sorted(partition.sizes(102, np.random.default_rng(0)).tolist()) == [25, 25, 26, 26]


def test_lognormal_sizes_have_the_spread_asked_for():
    sizes = LogNormalSizes(20_000, min_size=10).sizes(10**9, np.random.default_rng(0))
    assert (sizes - 10).double().log().std().item() == pytest.approx(2.0, rel=0.02)


def test_extreme_spread_does_not_overflow():
    sizes = LogNormalSizes(10, min_size=1, sigma=1e4).sizes(1000, np.random.default_rng(0))
    assert sorted(sizes.tolist()) == [1] * 9 + [991]


def test_power_law_sizes_follow_the_ranks():
    sizes = PowerLawSizes(4, min_size=5, exponent=2.0).sizes(20 + 205, np.random.default_rng(0))  # 144 + 36 + 16 + 9
    assert sorted(sizes.tolist(), reverse=True) == [149, 41, 21, 14]
    orders = {
        tuple(PowerLawSizes(4, exponent=2.0).sizes(999, np.random.default_rng(seed)).tolist()) for seed in range(9)
    }
    assert len(orders) > 3


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_dirichlet_sizes_have_the_variance_of_their_law(alpha: float):
    n = 4000
    shares = DirichletSizes(n, min_size=1, alpha=alpha).sizes(10**8, np.random.default_rng(0)).double() / 10**8
    assert shares.var().item() == pytest.approx((n - 1) / n**2 / (n * alpha + 1), rel=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogNormalSizes(4, sigma=-1.0), "LogNormalSizes: sigma is -1.0; give 0 or more"),
        (lambda: PowerLawSizes(4, exponent=float("nan")), "PowerLawSizes: exponent is nan; give 0 or more"),
        (lambda: DirichletSizes(4, alpha=0.0), "DirichletSizes: alpha is 0.0; give a number above 0"),
        (
            lambda: DirichletSizes(4, min_size=26),
            "cannot share 100 examples with 26 or more each; give fewer clients .3 at most. or",
        ),
        (lambda: DirichletSizes(4, min_size=0), "DirichletSizes: min_size is 0; give 1 or more"),
    ],
)
def test_impossible_sizes_are_refused(make: Callable[[], PartitionWithTestRule], message: str):
    with pytest.raises(InputError, match=message):
        divided(replace(make(), test=0.0), pool_of(labels_of([50, 50])))
