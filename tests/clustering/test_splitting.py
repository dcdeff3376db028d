import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import ids

from lit_cfl.clustering import bipartition, distances, separation_gap, separation_threshold

few = settings(deadline=None, derandomize=True, max_examples=60)


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


@few
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
