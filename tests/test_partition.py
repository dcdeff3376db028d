"""Partitions: equal and unequal sizes, labels, clusters of labels, natural clients."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import ids
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datamodules.partition import (
    IID,
    ClassesPerClient,
    Dirichlet,
    DirichletSizes,
    DominantClass,
    LabelGroups,
    LogNormalSizes,
    Natural,
    Partition,
    Pool,
    PowerLawSizes,
    Shards,
    SharedOut,
)
from datamodules.partition.base import label_counts
from datamodules.partition.sizes import lognormal_sizes
from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.errors import InputError

few = settings(deadline=None, derandomize=True, max_examples=30)
some_counts = st.lists(st.integers(20, 60), min_size=4, max_size=8)  # examples of each label
of_eight = st.lists(st.integers(20, 60), min_size=8, max_size=8)
seeds = st.integers(0, 2**32 - 1)
test_rules = st.sampled_from([0.0, 0.2, 0.5, "alike", "shared", None])

COUNTS = [50, 40, 45, 60, 55, 44, 61, 38]
EVERYTHING = (
    IID(7),
    LogNormalSizes(7, min_size=3),
    PowerLawSizes(7, min_size=3),
    DirichletSizes(7, min_size=3),
    Dirichlet(7, alpha=1.0, min_size=2),
    ClassesPerClient(9, classes=2),
    Shards(7, shards_per_client=2),
    LabelGroups(groups=[[3, 0], [1], [2, 4, 5, 6, 7]], clients_per_group=3),
)  # partitions that leave no example to nobody


def labels_of(counts: list[int], seed: int = 0) -> Tensor:
    """So many examples of each label, mixed."""
    return torch.from_numpy(np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts)))


def pool_of(
    labels: Tensor, test: Tensor | None = None, owner: Tensor | None = None, num_labels: int | None = None
) -> Pool:
    every = labels if test is None else torch.cat([labels, test])
    number = int(every.max()) + 1 if num_labels is None else num_labels
    return Pool(Examples(torch.zeros(len(every), 1), every, number), len(labels), owner)


def divided(partition: Partition, pool: Pool, seed: int = 0) -> Division:
    return partition.divide(pool, np.random.default_rng(seed))


def held(division: Division) -> list[int]:
    """Numbers of all examples that clients have, as often as they have them, ascending."""
    return torch.cat([division.train.entries, division.test.entries]).sort().values.tolist()


def lists(division: Division) -> list[list[int]]:
    return [one.tolist() for index in (division.train, division.test) for one in index]


def counts_in(index: ClientIndex, pool: Pool) -> list[list[int]]:
    return label_counts(index, pool.labels, pool.examples.num_labels).tolist()


def all_of(division: Division) -> Tensor:
    """Examples of each client, training and test together."""
    return division.train.sizes + division.test.sizes


# What all promise


@few
@given(of_eight, seeds, st.sampled_from(EVERYTHING), test_rules)
def test_every_example_goes_to_one_client(counts: list[int], seed: int, partition: SharedOut, test: str | float | None):
    pool = pool_of(labels_of(counts, seed), labels_of([5] * len(counts), seed + 1))
    division = divided(replace(partition, test=test), pool, seed)
    assert division.train.sizes.min() > 0
    assert division.train.entries.unique().numel() == division.train.entries.numel()
    if test == "shared":  # test examples may be held by several
        assert division.train.entries.sort().values.tolist() == list(range(pool.num_train))
    else:
        assert held(division) == list(range(len(pool.labels)))


@few
@given(of_eight, seeds, st.sampled_from(EVERYTHING))
def test_training_and_test_part_of_the_source_stay_apart_unless_a_share_is_asked_for(
    counts: list[int], seed: int, partition: SharedOut
):
    pool = pool_of(labels_of(counts, seed), labels_of([5] * len(counts), seed + 1))
    division = divided(replace(partition, test="alike"), pool, seed)
    assert int(division.train.entries.max()) < pool.num_train <= int(division.test.entries.min())


@pytest.mark.parametrize("partition", [*EVERYTHING, DominantClass(8)], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("test", [0.0, 0.25, "alike"])
def test_the_same_seed_gives_the_same_clients_and_another_others(partition: SharedOut, test: str | float):
    pool = pool_of(labels_of(COUNTS), labels_of([9] * 8))
    one, again, other = (divided(replace(partition, test=test), pool, seed) for seed in (3, 3, 4))
    assert lists(one) == lists(again)
    assert lists(one) != lists(other)


@pytest.mark.parametrize("partition", EVERYTHING, ids=lambda one: type(one).__name__)
def test_a_share_of_each_client_is_its_test_data(partition: SharedOut):
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
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_partition_says_what_skew_it_makes(partition: SharedOut, skew: str):
    assert divided(partition, pool_of(labels_of([40] * 5))).skew == skew


@pytest.mark.parametrize(
    "partition",
    [IID(51), LogNormalSizes(51, min_size=1), Dirichlet(51, min_size=1), ClassesPerClient(51), Shards(51)],
    ids=lambda one: type(one).__name__,
)
def test_more_clients_than_examples_are_refused(partition: SharedOut):
    with pytest.raises(InputError, match=r"51 clients cannot share 50 examples .* give fewer clients"):
        divided(replace(partition, test=0.0), pool_of(labels_of([10] * 5)))


@pytest.mark.parametrize("number", [0, -3])
def test_no_clients_are_refused(number: int):
    with pytest.raises(InputError, match=f"{number} clients with 1 or more examples each make no sense; give 1"):
        divided(IID(number), pool_of(labels_of([10, 10])))


@dataclass(frozen=True)
class Given(SharedOut):
    """A user's own partition, as broken as can be."""

    lists: tuple[tuple[int, ...], ...] = ()

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        return ClientIndex.from_lists([torch.tensor(one, dtype=torch.int64) for one in self.lists])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((0, 1), (1, 2)), "example 1 is given out 2 times"),
        (((0, 2, 2), (1,)), "example 2 is given out 2 times"),
        (((0, 1), (), ()), r"2 of 3 clients have no example \(client 1 is the first\)"),
        (((0, 4),), "a client has example 4; give out numbers 0 to 3"),
        (((0, -1),), "a client has example -1"),
    ],
)
def test_what_is_no_partition_is_refused(given: tuple[tuple[int, ...], ...], message: str):
    for test in (0.0, "alike"):
        with pytest.raises(InputError, match=message):
            divided(Given(test=test, lists=given), pool_of(ids(0, 1, 0, 1), ids(1) if test else None))


@pytest.mark.parametrize("test", ["alike", "shared"])
def test_a_label_that_only_the_test_part_has_is_refused(test: str):
    pool = pool_of(ids(0, 1, 0, 1), ids(0, 2, 1))
    with pytest.raises(InputError, match="label 2 is in the source's test part but not in its training part"):
        divided(IID(2, test), pool)
    assert held(divided(IID(2, 0.0), pool)) == list(range(7))


# Sizes


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
    sizes = lognormal_sizes(10**9, 20_000, 2.0, 10, np.random.default_rng(0))
    assert (sizes - 10).double().log().std().item() == pytest.approx(2.0, rel=0.02)


def test_extreme_spread_is_no_overflow():
    sizes = lognormal_sizes(1000, 10, 1e4, 1, np.random.default_rng(0))
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
    ("partition", "message"),
    [
        (LogNormalSizes(4, sigma=-1.0), "sigma of the sizes is -1.0; give 0 or more"),
        (PowerLawSizes(4, exponent=float("nan")), "exponent of the sizes is nan; give 0 or more"),
        (DirichletSizes(4, alpha=0.0), "alpha of the Dirichlet distribution is 0.0; it must be above 0"),
        (
            DirichletSizes(4, min_size=26),
            "cannot share 100 examples with 26 or more each; give fewer clients .3 at most. or",
        ),
        (DirichletSizes(4, min_size=0), "4 clients with 0 or more examples each make no sense; give 1 or more"),
    ],
)
def test_impossible_sizes_are_refused(partition: SharedOut, message: str):
    with pytest.raises(InputError, match=message):
        divided(replace(partition, test=0.0), pool_of(labels_of([50, 50])))


# Labels


@few
@given(some_counts, st.sampled_from([0.3, 1.0]), seeds)
def test_dirichlet_keeps_the_minimum(counts: list[int], alpha: float, seed: int):
    least = sum(counts) // 8  # half of what there is on average: most first draws fail
    partition = Dirichlet(4, 0.0, alpha, min_size=least, max_tries=1000)
    division = divided(partition, pool_of(labels_of(counts)), seed)
    assert (int(division.train.sizes.min()) >= least, held(division)) == (True, list(range(sum(counts))))
    assert division.true_clusters.tolist() == [-1] * 4


def test_dirichlet_shares_each_label_by_its_law():
    n, alpha = 500, 0.5
    pool = pool_of(labels_of([100_000, 50_000]))
    counts = label_counts(divided(Dirichlet(n, 0.0, alpha, min_size=1), pool).train, pool.labels, 2).double()
    variance = (counts / counts.sum(0)).var(0)
    assert variance.tolist() == pytest.approx([(n - 1) / n**2 / (n * alpha + 1)] * 2, rel=0.3)
    assert abs(torch.corrcoef(counts.T)[0, 1].item()) < 0.15  # each label has proportions of its own


def test_large_alpha_is_nearly_iid():
    pool = pool_of(labels_of([1000, 500]))
    counts = counts_in(divided(Dirichlet(5, 0.0, alpha=1e9), pool).train, pool)
    assert counts == [[200, 100]] * 5


def test_small_alpha_gives_each_label_to_one_client():
    pool = pool_of(labels_of([30] * 6))
    counts = label_counts(divided(Dirichlet(2, 0.0, alpha=1e-6), pool).train, pool.labels, 6)
    assert ((counts == 0) | (counts == 30)).all()


def test_dirichlet_that_cannot_satisfy_the_minimum_names_the_remedy():
    remedy = "alpha 1e-06 leaves some of 7 clients .* take a larger alpha, fewer clients or a smaller min_size"
    with pytest.raises(InputError, match=remedy):
        divided(Dirichlet(7, 0.0, alpha=1e-6, max_tries=20), pool_of(labels_of([50] * 6)))  # 6 labels for 7 clients


def test_dirichlet_does_not_try_on_where_it_is_hopeless():
    with pytest.raises(InputError, match="in the last draw of at most 1000000000000"):
        divided(Dirichlet(100, 0.0, alpha=0.01, max_tries=10**12), pool_of(labels_of([300] * 6)))


def test_dirichlet_tries_again():
    pool, refused = pool_of(labels_of([40] * 4)), 0
    for seed in range(20):
        try:
            divided(Dirichlet(4, 0.0, alpha=0.5, max_tries=1), pool, seed)
        except InputError:
            refused += 1
        divided(Dirichlet(4, 0.0, alpha=0.5), pool, seed)
    assert 2 < refused < 20


@few
@given(some_counts, st.integers(1, 8), st.integers(0, 9), seeds)
def test_clients_have_the_labels_of_their_type_in_equal_shares(counts: list[int], classes: int, more: int, seed: int):
    total, classes = len(counts), min(classes, len(counts))
    pool = pool_of(labels_of(counts))
    division = divided(ClassesPerClient(total + more, 0.0, classes), pool, seed)
    has = label_counts(division.train, pool.labels, total)
    for client, row in enumerate(has):
        assert set(row.nonzero().flatten().tolist()) == {(client + step) % total for step in range(classes)}
    for label in range(total):
        shares = has[:, label][has[:, label] > 0]
        assert (int(shares.max() - shares.min()) <= 1, int(shares.sum())) == (True, counts[label])
    types = [client % total if classes < total else 0 for client in range(total + more)]
    assert division.true_clusters.tolist() == types


def test_clients_are_tested_on_the_labels_of_their_type():
    pool = pool_of(labels_of([20, 22, 24, 26]), labels_of([4, 8, 12, 16]))
    alike = divided(ClassesPerClient(4), pool)
    assert counts_in(alike.test, pool) == [[2, 4, 0, 0], [0, 4, 6, 0], [0, 0, 6, 8], [2, 0, 0, 8]]
    shared = divided(ClassesPerClient(8, "shared"), pool)
    assert counts_in(shared.test, pool) == [[4, 8, 0, 0], [0, 8, 12, 0], [0, 0, 12, 16], [4, 0, 0, 16]] * 2


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (ClassesPerClient(9, 0.0, 0), "classes is 0; each client can have 1 to 5"),
        (ClassesPerClient(9, 0.0, 6), "classes is 6; each client can have 1 to 5"),
        (ClassesPerClient(3, 0.0, 2), "3 clients with 2 classes each have 4 of the 5 labels; give at least 4 clients"),
        (ClassesPerClient(10, 0.0, 2), "label 3 has 3 examples for 4 clients; give fewer clients"),
        (Shards(4, 0.0, 0), "shards_per_client is 0; give 1 or more"),
        (Shards(4, 0.0, 11), "4 clients cannot share 43 examples with 11 or more each"),
        (Dirichlet(2, 0.0, alpha=-0.1), "alpha of the Dirichlet distribution is -0.1"),
        (Dirichlet(2, 0.0, max_tries=0), "max_tries is 0; give 1 or more"),
    ],
)
def test_impossible_labels_are_refused(partition: SharedOut, message: str):
    with pytest.raises(InputError, match=message):
        divided(partition, pool_of(labels_of([10, 10, 10, 3, 10])))


def test_fewest_clients_that_have_all_labels_are_enough():
    assert held(divided(ClassesPerClient(4, 0.0, 2), pool_of(labels_of([10] * 5)))) == list(range(50))


@few
@given(some_counts, st.integers(1, 9), st.integers(1, 4), seeds)
def test_a_client_has_whole_shards_of_the_sorted_examples(counts: list[int], clients: int, each: int, seed: int):
    pool = pool_of(labels_of(counts))
    division = divided(Shards(clients, 0.0, each), pool, seed)
    place = pool.labels.argsort(stable=True).argsort()  # of each example among the sorted ones
    least, longer = divmod(sum(counts), clients * each)
    starts = [k * least + min(k, longer) for k in range(clients * each + 1)]
    shards = {tuple(range(a, b)) for a, b in pairwise(starts)}
    for mine in division.train:
        places, found = place[mine].tolist(), []
        while places:
            size = least + (places[0] < longer * (least + 1))
            found.append(tuple(places[:size]))
            places = places[size:]
        assert len(found) == each
        assert set(found) <= shards


def test_shards_are_dealt_at_random():
    pool = pool_of(torch.arange(5).repeat_interleave(4))
    firsts = {tuple(divided(Shards(5, 0.0, 1), pool, seed).train[0].tolist()) for seed in range(40)}
    assert firsts == {tuple(range(4 * k, 4 * k + 4)) for k in range(5)}


# Clusters of labels


def test_groups_have_clients_of_their_own():
    pool = pool_of(labels_of([40, 50, 61, 30, 31]))
    division = divided(LabelGroups(0.0, [[4, 0], [1, 2, 3]], clients_per_group=3), pool)
    counts = label_counts(division.train, pool.labels, 5)
    assert division.true_clusters.tolist() == [0, 0, 0, 1, 1, 1]
    assert division.train.sizes.tolist() == [24, 24, 23, 47, 47, 47]
    assert counts[:3].sum(0).tolist() == [40, 0, 0, 0, 31]
    assert counts[3:].sum(0).tolist() == [0, 50, 61, 30, 0]
    assert counts[0].tolist() != [14, 0, 0, 0, 10]  # at random, not label by label


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


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 1]], r"labels \[2, 3\] of the data are in none of the groups .* add them to one"),
        ([], r"labels \[0, 1, 2, 3\] of the data are in none"),
        ([[0, 1, 2], [2, 3]], "name a label twice"),
        ([[0, 1, 2], [3, 4]], "name labels that are not among 0 to 3"),
        ([[0, -1, 1, 2], [3]], "name labels that are not among 0 to 3"),
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
    assert has[0::2].sum(0).tolist() == [1000, 143, 286, 571]  # 3000 : 6000 : 12,000
    assert has[1::2].sum(0).tolist() == [333, 1000, 222, 445]
    assert len({tuple(row) for row in has.tolist()}) == 10  # who gets which of them is chance


def test_dominant_class_gives_out_as_much_as_there_is_for_all():
    pool = pool_of(labels_of([600] * 10), labels_of([100] * 10))
    division = divided(DominantClass(), pool)
    assert division.train.sizes.tolist() == [180] * 20  # 5 * 90 + 15 * 90 / 9 = 600 of a cluster's label
    with pytest.raises(InputError, match=r"20 clients cannot have 182 examples each, .* but 18\d at most"):
        divided(DominantClass(examples_per_client=182), pool)
    counts = label_counts(division.test, pool.labels, 10)
    assert counts[:4].argmax(1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (DominantClass(8, 0.0, 5), "num_clusters is 5; give 1 to 4, as there are 8 clients and 4 labels"),
        (DominantClass(3, 0.0, 4), "num_clusters is 4; give 1 to 3"),
        (DominantClass(8, 0.0, 0), "num_clusters is 0"),
        (DominantClass(8, 0.0, 2, 1.2), "beta is 1.2, with 4 labels; give 0 to 1"),
        (DominantClass(8, 0.0, 2, 0.5, 0), "8 clients cannot have 0 examples each"),
        (DominantClass(100, 0.0, 2, 1.0), "100 clients cannot have 0 examples each, .* but 0 at most"),
    ],
)
def test_impossible_dominance_is_refused(partition: SharedOut, message: str):
    with pytest.raises(InputError, match=message):
        divided(partition, pool_of(labels_of([10] * 4)))


def test_one_label_cannot_dominate_others():
    with pytest.raises(InputError, match="2 labels or more"):
        divided(DominantClass(2, 0.0, 1), pool_of(labels_of([10])))


# Natural clients

OWNER = ids(2, 0, 2, 4, 0, 2, -1, 2, 4, 2)  # owners 1 and 3 have nothing


def owned_pool(owner: Tensor = OWNER, num_train: int | None = None) -> Pool:
    labels = torch.arange(len(owner)) % 2
    num_train = len(owner) if num_train is None else num_train
    return pool_of(labels[:num_train], labels[num_train:], owner, 2)


def owners(division: Division, owner: Tensor = OWNER) -> list[set[int]]:
    """Owners of what each client has."""
    both = zip(division.train, division.test, strict=True)
    return [set(owner[torch.cat([train, test])].tolist()) for train, test in both]


def test_each_owner_is_a_client():
    division = divided(Natural(test=0.0), owned_pool())
    assert [one.tolist() for one in division.train] == [[1, 4], [0, 2, 5, 7, 9], [3, 8]]
    assert (division.true_clusters.tolist(), division.skew) == ([-1, -1, -1], "other")
    assert division.test.sizes.tolist() == [0, 0, 0]


@few
@given(st.lists(st.integers(-1, 6), min_size=2, max_size=60), st.floats(0, 0.9), st.integers(0, 60), seeds)
def test_owners_keep_their_examples_whatever_the_test_share(owner: list[int], share: float, cut: int, seed: int):
    held_by = torch.tensor([*owner, 3])
    pool = owned_pool(held_by, min(cut, len(held_by)))
    division = divided(Natural(test=share), pool, seed)
    assert owners(division, held_by) == [{number} for number in sorted(set(held_by.tolist()) - {-1})]
    assert held(division) == (held_by >= 0).nonzero().flatten().tolist()
    assert division.train.sizes.min() > 0


def test_own_test_part_goes_to_its_owners():
    division = divided(Natural(test="own"), owned_pool(num_train=5))
    assert [one.tolist() for one in division.train] == [[1, 4], [0, 2], [3]]
    assert [one.tolist() for one in division.test] == [[], [5, 7, 9], [8]]
    assert lists(divided(Natural(), owned_pool(num_train=5))) == lists(division)  # null


def test_owners_of_test_examples_alone_are_no_clients():
    owner = ids(0, 0, 1, 2, 1, 3)
    division = divided(Natural(test="own"), owned_pool(owner, 3))
    assert owners(division, owner) == [{0}, {1}]


def test_tests_are_a_tenth_where_nobody_who_trains_owns_any():
    owner = torch.cat([torch.arange(4).repeat(20), torch.full((7,), -1)])  # as in Sent140
    division = divided(Natural(), owned_pool(owner, 80))
    assert (division.train.sizes.tolist(), division.test.sizes.tolist()) == ([18] * 4, [2] * 4)


def test_small_owners_are_left_out():
    assert owners(divided(Natural(3, test=0.0), owned_pool())) == [{2}]
    assert owners(divided(Natural(2, test=0.0), owned_pool())) == [{0}, {2}, {4}]
    assert owners(divided(Natural(2, test="own"), owned_pool(num_train=5))) == [{0}, {2}, {4}]  # 1 + 1 count as 2


def test_clients_are_drawn_at_random_in_their_order():
    owner = torch.arange(10).repeat(3)
    drawn = [owners(divided(Natural(max_clients=4), owned_pool(owner), seed), owner) for seed in range(30)]
    assert all(len(one) == 4 and [max(o) for o in one] == sorted(max(o) for o in one) for one in drawn)
    assert {number for one in drawn for o in one for number in o} == set(range(10))
    assert len(divided(Natural(max_clients=99), owned_pool(owner)).train) == 10


def test_natural_clients_follow_the_seed():
    pool = owned_pool(torch.arange(5).repeat(20))
    one, again, other = (lists(divided(Natural(max_clients=3, test=0.3), pool, seed)) for seed in (1, 1, 2))
    assert (one == again, one == other) == (True, False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: divided(Natural(), pool_of(ids(0, 1))), "names no owners .* name its client column, or use IID"),
        (lambda: divided(Natural(6), owned_pool()), "no client has 6 examples, the largest has 5; lower min_examples"),
        (lambda: divided(Natural(), owned_pool(ids(-1, -1))), "no client has 1 examples, the largest has 0"),
        (lambda: divided(Natural(test="own"), owned_pool()), "test is 'own', but no client that trains owns a test"),
        (lambda: Natural(test=1.0), "test is 1.0; it must be 0 or more and below 1"),
        (lambda: Natural(0), "min_examples is 0; give 1 or more"),
        (lambda: Natural(max_clients=0), "max_clients is 0; give 1 or more, or null for all"),
    ],
)
def test_impossible_natural_clients_are_refused(make: object, message: str):
    with pytest.raises(InputError, match=message):
        make()
