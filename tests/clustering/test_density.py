"""Tests DBSCAN with an automatic radius against scikit-learn, and the knees of known curves."""

import pytest
import torch
from quadratic import rng
from sklearn.cluster import DBSCAN
from torch import Tensor

from lit_cfl.clustering.density import cluster_by_density, find_knee
from lit_cfl.clustering.merging import by_lowest_member


def line(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def by_scikit_learn(points: Tensor, radius: float) -> list[int]:
    """Clusters points with scikit-learn's DBSCAN; every noise point becomes a separate cluster."""
    labels = torch.from_numpy(DBSCAN(eps=radius, min_samples=2).fit_predict(points.numpy())).long()
    noise = (labels < 0).nonzero().flatten()
    labels[noise] = len(points) + noise
    return by_lowest_member(labels).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_clusters_are_those_of_scikit_learn_at_the_same_radius(seed: int):
    points = torch.randn(25, 3, generator=rng(seed), dtype=torch.float64)
    points[:10] += 4
    apart = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = apart.fill_diagonal_(torch.inf).amin(1).sort().values
    knee = find_knee(nearest)
    for scale in (0.5, 1.0, 1.5):
        radius = scale * float(nearest[-1 if knee is None else knee])
        assert cluster_by_density(points, scale).tolist() == by_scikit_learn(points, radius * (1 + 1e-12))


def test_points_at_the_radius_belong_together_and_noise_is_alone():
    """The distances to the nearest neighbours are 1 1 1 1 1 1 7, so the knee is at the last 1."""
    points = line(0, 1, 2, 20, 21, 22, 29)
    assert cluster_by_density(points).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert cluster_by_density(points, 7.0).tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_without_a_knee_the_largest_distance_is_the_radius():
    assert cluster_by_density(line(0, 1, 2)).tolist() == [0, 0, 0]  # all nearest distances are 1
    assert cluster_by_density(line(5, 5, 5)).tolist() == [0, 0, 0]
    assert cluster_by_density(line(3)).tolist() == [0]
    assert cluster_by_density(line(0, 8)).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("values", "knee"),
    [  # results of kneed 0.9.0: KneeLocator(range(n), values, curve="convex", direction="increasing").elbow
        ([0, 1, 2, 3, 4], None),
        ([2], None),
        ([0, 0, 0, 1, 5], 3),
        ([0, 1, 4, 9, 16, 25, 36, 49, 64], 4),
        ([1, 1, 1.1, 1.2, 1.2, 1.3, 4, 4.1, 4.2], 8),
        ([1, 1.1, 1.2, 5, 5.1, 5.2, 9, 9.1], 5),
        ([0, 5, 5, 5, 5, 6], 5),
        ([0, 3, 3, 3, 4, 9, 9.5, 20], 4),
    ],
)
def test_knee_is_where_values_start_to_rise_steeply(values: list[float], knee: int | None):
    assert find_knee(torch.tensor(values, dtype=torch.float64)) == knee


def test_rounding_decides_no_knee():
    """Mutual nearest neighbours have equal distances, whose rounding errors must not move the knee."""
    nearest = torch.tensor([1.8, 1.8, 1.9, 1.9, 1.95, 1.95, 2.0, 2.0, 2.1, 2.2, 2.2, 2.4], dtype=torch.float64)
    for seed in range(20):
        rounded = nearest * (1 + 1e-14 * torch.randn(12, generator=rng(seed), dtype=torch.float64))
        assert find_knee(rounded.sort().values) == 10
