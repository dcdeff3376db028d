"""Tests partitions by label: Dirichlet, classes per client, shards."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import counts_in, divided, few, held, labels_of, pool_of, seeds, some_counts

from lit_cfl.datamodules.partition import ClassesPerClient, Dirichlet, InnerDirichlet, PartitionWithTestRule, Shards
from lit_cfl.datamodules.partition import labels as labels_module
from lit_cfl.datamodules.partition.base import label_counts
from lit_cfl.datamodules.partition.labels import grant_requests
from lit_cfl.errors import InputError


@few
@given(some_counts, st.sampled_from([0.3, 1.0]), seeds)
def test_dirichlet_keeps_the_minimum(counts: list[int], alpha: float, seed: int):
    least = sum(counts) // 8  # half of the average size: most first draws fail
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels_module, "MOST_DRAWS", 1000)
        division = divided(Dirichlet(4, 0.0, alpha, min_size=least), pool_of(labels_of(counts)), seed)
    assert (int(division.train.sizes.min()) >= least, held(division)) == (True, list(range(sum(counts))))
    assert division.true_clusters.tolist() == [-1] * 4


def test_dirichlet_shares_each_label_by_its_law():
    n, alpha = 500, 0.5
    pool = pool_of(labels_of([100_000, 50_000]))
    counts = label_counts(divided(Dirichlet(n, 0.0, alpha, min_size=1), pool).train, pool.labels, 2).double()
    variance = (counts / counts.sum(0)).var(0)
    assert variance.tolist() == pytest.approx([(n - 1) / n**2 / (n * alpha + 1)] * 2, rel=0.3)
    assert abs(torch.corrcoef(counts.T)[0, 1].item()) < 0.15  # the proportions of each label are drawn independently


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
        divided(Dirichlet(7, 0.0, alpha=1e-6), pool_of(labels_of([50] * 6)))  # 6 labels for 7 clients


def test_dirichlet_does_not_try_on_where_it_is_hopeless(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(labels_module, "MOST_DRAWS", 10**12)
    with pytest.raises(InputError, match="in the last draw of at most 1000000000000"):
        divided(Dirichlet(100, 0.0, alpha=0.01), pool_of(labels_of([300] * 6)))


def test_dirichlet_tries_again(monkeypatch: pytest.MonkeyPatch):
    pool, refused = pool_of(labels_of([40] * 4)), 0
    for seed in range(20):
        with monkeypatch.context() as patch:
            patch.setattr(labels_module, "MOST_DRAWS", 1)
            try:
                divided(Dirichlet(4, 0.0, alpha=0.5), pool, seed)
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
    ("make", "message"),
    [
        (lambda: ClassesPerClient(9, 0.0, 0), "ClassesPerClient: classes is 0; give 1 or more"),
        (lambda: ClassesPerClient(9, 0.0, 6), "classes is 6, but the data have 5 labels; give 1 to 5"),
        (
            lambda: ClassesPerClient(3, 0.0, 2),
            "3 clients with 2 classes each have only 4 of the 5 labels together; give at least 4",
        ),
        (lambda: ClassesPerClient(10, 0.0, 2), "label 3 has 3 examples for 4 clients; give fewer clients"),
        (lambda: Shards(4, 0.0, 0), "shards_per_client is 0; give 1 or more"),
        (lambda: Shards(4, 0.0, 11), "4 clients cannot share 43 examples with 11 or more each"),
        (lambda: Dirichlet(2, 0.0, alpha=-0.1), "Dirichlet: alpha is -0.1; give a number above 0"),
        (lambda: InnerDirichlet(2, 0.0, alpha=0.0), "InnerDirichlet: alpha is 0.0; give a number above 0"),
        (lambda: InnerDirichlet(2, 0.0, sizes=[5]), r"sizes is \[5\]; give 1 or more for each of the 2 clients"),
        (lambda: InnerDirichlet(2, 0.0, sizes=[5, 0]), r"sizes is \[5, 0\]; give 1 or more"),
        (
            lambda: InnerDirichlet(2, 0.0, sizes=[40, 4]),
            "at most 43 together, the number of examples",
        ),
    ],
)
def test_impossible_labels_are_refused(make: Callable[[], PartitionWithTestRule], message: str):
    with pytest.raises(InputError, match=message):
        divided(make(), pool_of(labels_of([10, 10, 10, 3, 10])))


def test_fewest_clients_that_have_all_labels_are_enough():
    assert held(divided(ClassesPerClient(4, 0.0, 2), pool_of(labels_of([10] * 5)))) == list(range(50))


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


def test_shards_are_dealt_at_random():
    pool = pool_of(torch.arange(5).repeat_interleave(4))
    firsts = {tuple(divided(Shards(5, 0.0, 1), pool, seed).train[0].tolist()) for seed in range(40)}
    assert firsts == {tuple(range(4 * k, 4 * k + 4)) for k in range(5)}


@few
@given(some_counts, st.sampled_from([0.01, 0.3, 100.0]), seeds)
def test_inner_dirichlet_keeps_the_sizes(counts: list[int], alpha: float, seed: int):
    total = sum(counts)
    sizes = [total // 2, 3, total // 4, 1]
    division = divided(InnerDirichlet(4, 0.0, sizes=sizes, alpha=alpha), pool_of(labels_of(counts)), seed)
    assert division.train.sizes.tolist() == sizes
    assert len(set(held(division))) == sum(sizes)
    assert division.true_clusters.tolist() == [-1] * 4
    whole = divided(InnerDirichlet(4, 0.0, alpha=alpha), pool_of(labels_of(counts)), seed)
    assert held(whole) == list(range(total))


def test_inner_dirichlet_draws_the_labels_of_each_client_by_its_law():
    n, labels, alpha = 400, 5, 0.5
    pool = pool_of(labels_of([100_000] * labels))
    division = divided(InnerDirichlet(n, 0.0, sizes=[100] * n, alpha=alpha), pool)
    counts = label_counts(division.train, pool.labels, labels)
    shares = counts.double() / 100
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
