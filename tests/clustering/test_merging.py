import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_arrays import assert_refused
from quadratic import ids, rng
from sklearn.metrics import adjusted_rand_score

from lit_cfl.clustering import (
    agglomerate,
    bipartition,
    distances,
    merge_by_threshold,
    merge_distances,
    separation_gap,
    separation_threshold,
)
from lit_cfl.clustering.merging import by_lowest_member

few = settings(deadline=None, derandomize=True, max_examples=25)

LINKAGES = ["single", "complete", "average", "ward"]
LINE = torch.tensor([[10.0], [0.0], [1.0], [10.5], [30.0]], dtype=torch.float64)
APART = distances(LINE, "l2")


def random_rows(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=rng(seed), dtype=torch.float64)


@pytest.mark.parametrize("linkage", LINKAGES)
def test_cut_at_a_number_of_clusters(linkage: str):
    assert agglomerate(APART, linkage=linkage, num_clusters=3).tolist() == [0, 1, 1, 0, 2]
    assert agglomerate(APART, linkage=linkage, num_clusters=5).tolist() == [0, 1, 2, 3, 4]
    assert agglomerate(APART, linkage=linkage, num_clusters=1).tolist() == [0] * 5


def test_cut_at_a_distance_keeps_apart_what_is_at_it_or_further():
    assert agglomerate(APART, linkage="single", threshold=1.01).tolist() == [0, 1, 1, 0, 2]
    assert agglomerate(APART, linkage="single", threshold=1.0).tolist() == [0, 1, 2, 0, 3]
    assert agglomerate(APART, linkage="single", threshold=9.01).tolist() == [0, 0, 0, 0, 1]
    assert agglomerate(APART, linkage="complete", threshold=9.01).tolist() == [0, 1, 1, 0, 2]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_agglomeration_equals_that_of_scikit_learn(linkage: str):
    from sklearn.cluster import AgglomerativeClustering

    rows = random_rows(20, 3)
    for num_clusters in (1, 2, 5, 19, 20):
        found = agglomerate(distances(rows, "l2"), linkage=linkage, num_clusters=num_clusters)
        expected = AgglomerativeClustering(num_clusters, linkage=linkage).fit_predict(rows.numpy())
        assert adjusted_rand_score(found, expected) == 1


def test_merge_distances_show_where_the_tree_can_be_cut():
    assert merge_distances(APART, linkage="single").tolist() == [0.5, 1.0, 9.0, 19.5]
    assert merge_distances(APART, linkage="complete").tolist() == [0.5, 1.0, 10.5, 30.0]


def test_labels_are_numbered_by_their_lowest_member():
    assert by_lowest_member(torch.tensor([7, 2, 5, 7, 2])).tolist() == [0, 1, 2, 0, 1]
    assert by_lowest_member(torch.tensor([], dtype=torch.int64)).tolist() == []


def at_angles(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.6, 0.8, 0.28, 0.96])
def test_pair_exactly_at_tau_is_merged(tau: float, dtype: torch.dtype):  # check 21
    other = {0.6: (3, 4), 0.8: (4, 3), 0.28: (7, 24), 0.96: (24, 7)}[tau]
    pair = torch.tensor([(1, 0), other], dtype=dtype)
    assert merge_by_threshold(pair, tau).tolist() == [0, 0]
    assert merge_by_threshold(pair, tau + 1e-9).tolist() == [0, 1]


def test_limits_of_tau():  # check 20
    rows = torch.cat([at_angles(0, 0, 90, 180), torch.zeros(1, 2).double()])
    assert merge_by_threshold(rows, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert merge_by_threshold(rows, -1.0).tolist() == [0] * 5


def test_zero_representation_merges_with_nobody_where_tau_is_positive():
    rows = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.1], [0.0, 0.0]])
    assert merge_by_threshold(rows, 0.001).tolist() == [0, 1, 0, 2]


@few
@given(st.integers(0, 10_000), st.permutations(range(9)), st.floats(-0.9, 0.99))
def test_merge_depends_neither_on_the_order_nor_on_a_common_scale(seed: int, order: list[int], tau: float):
    rows = random_rows(9, 3, seed)
    labels = merge_by_threshold(rows, tau)
    assert adjusted_rand_score(merge_by_threshold(rows[order], tau), labels[order]) == 1
    assert torch.equal(merge_by_threshold(1024 * rows, tau), labels)
    first = [labels.tolist().index(cluster) for cluster in range(int(labels.max()) + 1)]
    assert first == sorted(first)  # numbered by lowest member


@few
@given(st.integers(0, 10_000), st.floats(-0.9, 0.99))
def test_merge_is_single_linkage_at_tau(seed: int, tau: float):  # check 21, full participation
    rows = random_rows(10, 3, seed)
    expected = agglomerate(distances(rows, "cosine"), linkage="single", threshold=1 - tau)
    assert torch.equal(merge_by_threshold(rows, tau), expected)


@st.composite
def similarities(draw: st.DrawFn, values: st.SearchStrategy[float]) -> torch.Tensor:
    n = draw(st.integers(2, 8))
    pairs = draw(st.lists(values, min_size=n * (n - 1) // 2, max_size=n * (n - 1) // 2))
    matrix = torch.eye(n, dtype=torch.float64)
    upper = torch.triu_indices(n, n, 1)
    matrix[upper[0], upper[1]] = torch.tensor(pairs, dtype=torch.float64)
    return matrix.triu() + matrix.triu(1).T


def greatest_across(similarity: torch.Tensor, labels: torch.Tensor) -> float:
    return similarity[labels[:, None] != labels].max().item()


def best_of_all(similarity: torch.Tensor) -> float:
    """Tries every split in two; returns the smallest maximum similarity between the two sides."""
    splits = [torch.tensor((0, *rest)) for rest in product((0, 1), repeat=len(similarity) - 1)]
    return min(greatest_across(similarity, labels) for labels in splits if labels.any())


@settings(few, max_examples=60)
@given(similarities(st.floats(-1, 1)) | similarities(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])))
def test_bipartition_is_the_best_of_all_splits(similarity: torch.Tensor):
    labels = bipartition(similarity)
    assert sorted(labels.unique().tolist()) == [0, 1]
    assert labels[0] == 0
    assert greatest_across(similarity, labels) == best_of_all(similarity)
    assert torch.equal(bipartition(similarity.clone()), labels)


def test_gap_of_a_hand_worked_matrix():
    similarity = torch.tensor([[1.0, 0.8, 0.1], [0.8, 1.0, -0.3], [0.1, -0.3, 1.0]], dtype=torch.float64)
    assert separation_gap(similarity, ids(0, 0, 1)) == pytest.approx(0.8 - 0.1)
    assert separation_gap(similarity, ids(4, 2, 2)) == pytest.approx(-0.3 - 0.8)  # a wrong division


def test_gap_of_distances_is_across_minus_within():
    points = torch.tensor([[0.0], [1.0], [5.0], [7.0]])
    assert separation_gap(-distances(points, "l2"), ids(0, 0, 1, 1)) == pytest.approx(4 - 2)
    assert separation_gap(-distances(points, "l2"), ids(0, 1, 0, 1)) == pytest.approx(1 - 6)


@pytest.mark.parametrize("labels", [ids(0, 1, 2), ids(0, 0, 0)], ids=["nobody has a partner", "one cluster"])
def test_gap_is_not_a_number_where_there_is_nothing_to_compare(labels: torch.Tensor):
    assert math.isnan(separation_gap(torch.eye(3), labels))
    assert math.isnan(separation_gap(torch.eye(3) - 1, labels))


@pytest.mark.parametrize(
    ("across", "bound"), [(-1, 1), (0, 0.70711), (0.5, 0.5), (1, 0), (1 + 1e-7, 0), (-1 - 1e-7, 1)]
)
def test_bound_of_theorem_1(across: float, bound: float):  # CFL, Theorem 1
    assert separation_threshold(across) == pytest.approx(bound, abs=1e-5)


def cut(distances: torch.Tensor, linkage: str = "single", **where: float) -> torch.Tensor:
    return agglomerate(distances, linkage=linkage, **where)


def test_bad_input_is_refused():
    assert_refused(lambda: cut(APART, num_clusters=2, threshold=1.0), "one of them")
    assert_refused(lambda: cut(APART, num_clusters=6), "5 clients  | 6 clusters")
    assert_refused(lambda: cut(torch.full((3, 3), math.nan), num_clusters=2), "not finite")
    assert_refused(lambda: merge_by_threshold(torch.eye(3), 1.5), "tau 1.5")
    assert_refused(lambda: merge_by_threshold(torch.tensor([[1.0, 0.0], [math.inf, 0.0]]), 0.5), "representation 1 ")
