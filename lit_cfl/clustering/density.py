"""Density-based clustering without a given number of clusters: DBSCAN with a radius chosen from the points."""

import torch
from torch import Tensor

from lit_cfl.clustering.merging import components

_TIE = 1e-9  # tolerance: between two equal values, the height falls by exactly 1 / (n - 1), which counts as a fall


def cluster_by_density(points: Tensor, radius_scale: float = 1.0) -> Tensor:
    """Clusters points by DBSCAN with two points per neighbourhood; isolated points become clusters of one.

    The radius is the knee of the ascending distances to the nearest other point, or the largest of them if they have no
    knee. As two points make a neighbourhood dense, the clusters are the connected components of the graph of all pairs
    within the radius.

    Args:
        points: Points `[n, d]`, n at least 1.
        radius_scale: Factor of the radius, above 0.

    Returns:
        labels int64 `[n]`, numbered by lowest member.
    """
    if len(points) == 1:
        return torch.zeros(1, dtype=torch.int64)
    apart = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    alone = torch.eye(len(points), dtype=torch.bool)
    nearest = apart.masked_fill(alone, torch.inf).amin(1).sort().values
    at = find_knee(nearest)
    radius = radius_scale * nearest[-1 if at is None else at]
    return components((apart <= radius).numpy())


def find_knee(values: Tensor) -> int | None:
    """Finds the position in ascending values `[n]` at which they start to rise steeply; None if there is none.

    Kneedle (Satopaa, Albrecht, Irwin, Raghavan. ICDCS Workshops 2011) with sensitivity 1 for a convex curve: seen
    from the largest value, the first peak of the normalised curve's height above the diagonal from which the height
    falls by 1 / (n - 1) or more before it rises again. Mutual nearest neighbours have equal distances, and the height
    falls by exactly 1 / (n - 1) between them. If only a larger fall counts, as in kneed, rounding decides.
    """
    n = len(values)
    if n < 2 or not values[-1] > values[0]:
        return None
    # distance from the largest value, scaled to 0 to 1
    fallen = (values[-1] - values.flip(0)) / (values[-1] - values[0])
    height = (fallen - torch.linspace(0, 1, n, dtype=values.dtype)).tolist()
    peak = None
    for k in range(n - 1):
        around = height[max(k - 1, 0)], height[k + 1]
        if height[k] >= max(around):
            peak = k
        if height[k] <= min(around):
            peak = None
        if peak is not None and height[k + 1] < height[peak] - 1 / (n - 1) + _TIE:
            return n - 1 - peak
    return None
