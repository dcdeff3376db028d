"""Tests the sizes and labels that each partition gives its clients: laws, limits and worked examples."""

from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from partition_cases import counts_in, divided, few, held, labels_of, pool_of, seeds

from lit_cfl.config.catalogue import classes
from lit_cfl.data.shift import apply_shifts
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition import (
    IID,
    ClassesPerClient,
    Dirichlet,
    DirichletSizes,
    DominantClass,
    InnerDirichlet,
    LabelGroups,
    LogNormalSizes,
    PowerLawSizes,
    Shards,
)
from lit_cfl.datamodules.partition import labels as labels_module
from lit_cfl.datamodules.partition.labels import grant_requests
from lit_cfl.errors import InputError

some_counts = st.lists(st.integers(20, 60), min_size=4, max_size=8)  # numbers of examples of each label


def test_iid_sizes_differ_by_one_at_most():
    division = divided(IID(5, 0.0), pool_of(labels_of([13])))
    assert (division.train.sizes.tolist(), division.true_clusters.tolist()) == ([3, 3, 3, 2, 2], [0] * 5)


@pytest.mark.parametrize(
    ("partition", "total", "expected"),
    [
        (LogNormalSizes(4, min_size=2, sigma=0.0), 102, [26, 26, 25, 25]),
        (PowerLawSizes(4, min_size=2, exponent=0.0), 102, [26, 26, 25, 25]),
        (LogNormalSizes(10, min_size=1, sigma=1e4), 1000, [991] + [1] * 9),  # without an overflow
        (PowerLawSizes(4, min_size=5, exponent=2.0), 225, [149, 41, 21, 14]),  # 5 more than 144, 36, 16 and 9
    ],
)
def test_sizes_of_a_known_spread(partition: LogNormalSizes, total: int, expected: list[int]):
    assert sorted(partition.sizes(total, np.random.default_rng(0)).tolist(), reverse=True) == expected


def test_sizes_have_the_variance_of_their_law():
    n, rng = 20_000, np.random.default_rng(0)
    sizes = LogNormalSizes(n, min_size=10).sizes(10**9, rng)
    assert (sizes - 10).double().log().std().item() == pytest.approx(2.0, rel=0.02)
    for alpha in (0.5, 5.0):
        shares = DirichletSizes(4000, min_size=1, alpha=alpha).sizes(10**8, rng).double() / 10**8
        assert shares.var().item() == pytest.approx(3999 / 4000**2 / (4000 * alpha + 1), rel=0.1)


@few
@given(some_counts, st.sampled_from([0.3, 1.0]), seeds)
def test_dirichlet_keeps_the_minimum(counts: list[int], alpha: float, seed: int):
    least = sum(counts) // 8  # half of the average size: most first draws fail
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels_module, "MOST_DRAWS", 1000)
        division = divided(Dirichlet(4, 0.0, alpha, min_size=least), pool_of(labels_of(counts)), seed)
    assert (int(division.train.sizes.min()) >= least, held(division)) == (True, list(range(sum(counts))))


def test_dirichlet_shares_each_label_by_its_law():
    n, alpha = 500, 0.5
    pool = pool_of(labels_of([100_000, 50_000]))
    counts = counts_in(divided(Dirichlet(n, 0.0, alpha, min_size=1), pool).train, pool).double()
    variance = (counts / counts.sum(0)).var(0)
    assert variance.tolist() == pytest.approx([(n - 1) / n**2 / (n * alpha + 1)] * 2, rel=0.3)
    assert abs(torch.corrcoef(counts.T)[0, 1].item()) < 0.15  # the proportions of each label are drawn independently


def test_limits_of_dirichlet():
    pool = pool_of(labels_of([1000, 500]))
    equal = counts_in(divided(Dirichlet(5, 0.0, alpha=1e9), pool).train, pool)
    assert equal.tolist() == [[200, 100]] * 5
    pool = pool_of(labels_of([30] * 6))
    whole = counts_in(divided(Dirichlet(2, 0.0, alpha=1e-6), pool).train, pool)
    assert ((whole == 0) | (whole == 30)).all()  # each label goes to one client


@pytest.mark.parametrize("alpha", [0.01, 0.3, 100.0])
def test_inner_dirichlet_keeps_the_sizes(alpha: float):
    division = divided(InnerDirichlet(4, 0.0, sizes=[60, 3, 30, 1], alpha=alpha), pool_of(labels_of([20, 60, 41, 25])))
    assert division.train.sizes.tolist() == [60, 3, 30, 1]
    assert len(set(held(division))) == 94


def test_inner_dirichlet_draws_the_labels_of_each_client_by_its_law():
    n, labels, alpha = 400, 5, 0.5
    pool = pool_of(labels_of([100_000] * labels))
    shares = counts_in(divided(InnerDirichlet(n, 0.0, sizes=[100] * n, alpha=alpha), pool).train, pool).double() / 100
    mean = 1 / labels
    assert shares.mean(0).tolist() == pytest.approx([mean] * labels, abs=0.05)
    assert shares.var(0).tolist() == pytest.approx([mean * (1 - mean) / (labels * alpha + 1)] * labels, rel=0.25)


def test_of_a_label_that_is_short_each_gets_the_same_share_of_what_it_wants():
    wishes = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64)
    counts = grant_requests(wishes, torch.tensor([40, 40]), torch.tensor([30, 30, 40]))
    assert counts[:, 0].tolist() == [20, 10]  # the clients want 40 and 20, and 30 are available: each gets half
    # Of labels 1 and 2, 10 and 40 examples are left. The first client wants 20 in this proportion, 4 and 16, the second
    # wants 10 of label 1. These are 14 in total, so each gets less: 2 and 7; the second ends with two of label 2.
    assert counts.tolist() == [[20, 2, 18], [10, 28, 2]]


@few
@given(some_counts, st.integers(1, 8), st.integers(0, 9), seeds)
def test_clients_have_the_labels_of_their_type_in_equal_shares(counts: list[int], classes: int, more: int, seed: int):
    total, classes = len(counts), min(classes, len(counts))
    pool = pool_of(labels_of(counts))
    division = divided(ClassesPerClient(total + more, 0.0, classes), pool, seed)
    has = counts_in(division.train, pool)
    for client, row in enumerate(has):
        assert set(row.nonzero().flatten().tolist()) == {(client + step) % total for step in range(classes)}
    for label in range(total):
        shares = has[:, label][has[:, label] > 0]
        assert (int(shares.max() - shares.min()) <= 1, int(shares.sum())) == (True, counts[label])
    types = [client % total if classes < total else 0 for client in range(total + more)]
    assert division.true_clusters.tolist() == types


@few
@given(some_counts, st.integers(1, 9), st.integers(1, 4), seeds)
def test_a_client_has_whole_shards_of_the_sorted_examples(counts: list[int], clients: int, each: int, seed: int):
    pool = pool_of(labels_of(counts))
    division = divided(Shards(clients, 0.0, each), pool, seed)
    place = pool.labels.argsort(stable=True).argsort()  # position of each example in the sorted pool
    least, longer = divmod(sum(counts), clients * each)
    starts = [k * least + min(k, longer) for k in range(clients * each + 1)]
    shards = {tuple(range(a, b)) for a, b in pairwise(starts)}
    assert len(division.train) == clients
    for mine in division.train:
        places, found = place[mine].tolist(), []
        while places:
            size = least + (places[0] < longer * (least + 1))
            found.append(tuple(places[:size]))
            places = places[size:]
        assert len(found) == each
        assert set(found) <= shards


def test_groups_have_clients_of_their_own():
    pool = pool_of(labels_of([40, 50, 61, 30, 31]))
    division = divided(LabelGroups(0.0, [[4, 0], [1, 2, 3]], clients_per_group=3), pool)
    counts = counts_in(division.train, pool)
    assert division.true_clusters.tolist() == [0, 0, 0, 1, 1, 1]
    assert division.train.sizes.tolist() == [24, 24, 23, 47, 47, 47]
    assert counts[:3].sum(0).tolist() == [40, 0, 0, 0, 31]
    assert counts[3:].sum(0).tolist() == [0, 50, 61, 30, 0]
    assert counts[0].tolist() != [14, 0, 0, 0, 10]  # examples are dealt at random, not label by label


@few
@given(
    st.lists(st.integers(100, 300), min_size=3, max_size=6),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.25, 0.5, 0.8, 1.0]),
    st.integers(1, 12),
    seeds,
)
def test_dominant_class_has_its_share_of_each_client(counts, clusters: int, more: int, beta: float, size: int, seed):
    assume(not beta or round(beta * size))  # otherwise the partition is refused
    pool = pool_of(labels_of(counts, seed))
    division = divided(DominantClass(clusters + more, 0.0, clusters, beta, size), pool, seed)
    truth = torch.arange(clusters + more) % clusters
    assert torch.equal(division.true_clusters, truth)
    assert division.train.sizes.tolist() == [size] * (clusters + more)
    dominant = counts_in(division.train, pool).gather(1, truth[:, None])
    assert dominant.flatten().tolist() == [round(beta * size)] * (clusters + more)
    assert division.train.entries.unique().numel() == division.train.entries.numel()


def test_the_rest_is_drawn_from_the_other_labels_in_proportion():
    pool = pool_of(labels_of([9000, 3000, 6000, 12_000]))
    has = counts_in(divided(DominantClass(10, 0.0, 2, 0.5, 400), pool).train, pool)
    # the other labels are taken in the ratio 3000 : 6000 : 12,000
    assert has[0::2].sum(0).tolist() == [1000, 143, 286, 571]
    assert has[1::2].sum(0).tolist() == [333, 1000, 222, 445]
    assert len({tuple(row) for row in has.tolist()}) == 10  # the labels of each client are random


def test_dominant_class_gives_out_as_much_as_there_is_for_all():
    pool = pool_of(labels_of([600] * 10), labels_of([100] * 10))
    division = divided(DominantClass(), pool)
    assert division.train.sizes.tolist() == [180] * 20  # 5 * 90 + 15 * 90 / 9 = 600 of a cluster's label
    with pytest.raises(InputError, match=r"182 examples each, .* at most 18\d each"):
        divided(DominantClass(examples_per_client=182), pool)
    assert counts_in(division.test, pool)[:4].argmax(1).tolist() == [0, 1, 2, 3]


POOL = pool_of(labels_of([6000] * 10), labels_of([1000] * 10, 1), torch.arange(70_000) % 70)
# what partitions and shifts always drew, since recorded results depend on their draws
DRAWN = """
ClassesPerClient b2ad1716, Dirichlet b1a2fc7c, DirichletSizes 9a38f698, Ditto500 f8f84f8b
DominantClass 21eed4f3, FedProxFEMNIST d9f807d1, IID 390f04b1, InnerDirichlet 4e60df9f
LabelGroups 1910e77f, LogNormalSizes 48e7bbeb, MNIST1000 1778c282, Natural 2671a187
PowerLawSizes bab37fd8, Shards a1af12d1, Incremental 5121f690, LabelDrift a5440f52
SwapAll 42c8996f, SwapPart 60db507a
"""  # digests of the entries, sizes and true clusters under the seed 5


def test_default_partitions_and_the_first_change_of_each_shift_are_those_recorded():
    found = {name: divided(kind(), POOL, 5) for name, kind in classes("partitions").items()}
    for name, kind in classes("shifts").items():
        data = Digits(partition=ClassesPerClient(8, 0.25, classes=3), shift=kind()).federated(5)
        rounds = (apply_shifts(data, [kind()], number, 5, data.population) for number in range(200))
        found[name] = next(after for after, moves in rounds if moves)
    for name, data in found.items():
        parts = [data.train.entries, data.train.sizes, data.test.entries, data.test.sizes, data.true_clusters]
        found[name] = sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:8]
    assert found == dict(pair.split() for pair in DRAWN.strip().replace("\n", ", ").split(", "))
