import pytest
import torch
from quadratic import rng
from torch.testing import assert_close

from lit_cfl.clustering import cross_distances, distances

ROWS = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0], [4.0, -3.0]])
METRICS = ["l1", "l2", "cosine"]


def random_rows(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=rng(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("l1", [[0, 7, 14, 7], [7, 0, 7, 8], [14, 7, 0, 13], [7, 8, 13, 0]]),
        ("l2", [[0, 5, 10, 5], [5, 0, 5, 50**0.5], [10, 5, 0, 125**0.5], [5, 50**0.5, 125**0.5, 0]]),
        # a zero row has similarity 0 to all others
        ("cosine", [[0, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 0]]),
    ],
)
def test_distances_of_hand_worked_rows(metric: str, expected: list[list[float]]):
    assert_close(distances(ROWS, metric), torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("metric", METRICS)
def test_distance_to_others_is_that_between_rows(metric: str):
    rows = random_rows(9, 30).float()
    assert_close(cross_distances(rows, rows[2:5], metric)[:2], distances(rows, metric)[:2, 2:5])
    assert metric == "cosine" or (cross_distances(rows, rows, metric).diagonal() == 0).all()


# no cancellation, as it would occur in |a|^2 - 2ab + |b|^2
def test_models_that_lie_close_together_keep_their_distances():
    updates = 1e-6 * random_rows(6, 500)
    models = 100 * random_rows(1, 500, seed=1) + updates
    assert_close(distances(models, "l2"), distances(updates, "l2"), rtol=1e-6, atol=0)


def test_equal_models_have_distance_zero():
    for seed in range(5):
        rows = random_rows(7, 333, seed).repeat(2, 1)
        found = distances(rows, "l2")
        assert (found[:7, 7:].diagonal() == 0).all()
        assert not found.isnan().any()
