"""Estimates the number of clusters among clients by prediction strength.

Tibshirani, Walther. Cluster Validation by Prediction Strength. Journal of Computational and Graphical Statistics, 2005.
experiments/studies/automatic_clusters.md says how the threshold and the points were chosen.
"""

import numpy as np
import torch

from lit_cfl.clustering.decomposed import edc_embedding
from lit_cfl.clustering.products import Rows, chunks_of

THRESHOLD, DIVISIONS = 0.9, 10
CLIENTS_PER_CLUSTER = 4  # so that each half of the clients has two per cluster, on average


def number_of_clusters(updates: Rows, most: int, rng: torch.Generator) -> int:
    """Finds the largest number of clusters with which one half of the clients predicts the clusters of the other half.

    Args:
        updates: Updates of clients `[n, d]`, or its chunks; K-means compares them by EDC's embedding.
        most: Maximum number of clusters, 1 or more; at most a quarter of the clients.
        rng: Generator that divides the clients in halves.

    Returns:
        The largest k with a mean prediction strength of 0.9 or more over 10 divisions; 1 if there is none.

    Raises:
        InputError: an update that is not finite.
    """
    n = sum(map(len, chunks_of(updates)))
    most = min(most, n // CLIENTS_PER_CLUSTER)
    if most < 2:
        return 1
    points = edc_embedding(updates, min(most, n)).double().numpy()
    draws = np.random.default_rng(int(torch.randint(2**31 - 1, (), generator=rng)))
    orders = [draws.permutation(n) for _ in range(DIVISIONS)]
    for k in range(most, 1, -1):
        strengths: list[float] = []
        for order in orders:
            strengths.append(prediction_strength(points[order[::2]], points[order[1::2]], k))
            if len(strengths) - sum(strengths) > DIVISIONS * (1 - THRESHOLD) + 1e-6:
                break  # too low already: the mean stays below THRESHOLD even if all other divisions give 1
        else:
            if np.mean(strengths) >= THRESHOLD:
                return k
    return 1


def prediction_strength(one: np.ndarray, other: np.ndarray, k: int) -> float:
    """Computes the minimum share of a cluster's pairs that the centres of the other half keep together.

    Args:
        one, other: Points of the halves `[n, m]`. Both are clustered by K-means; the clusters are those of `other`.
        k: Number of clusters, 2 or more.

    Returns:
        In [0, 1]; a cluster of one point counts as 1. 0 if a half has fewer different points than clusters.
    """
    from sklearn.cluster import KMeans  # takes a second to import, needed only for clustering

    if min(len(np.unique(half, axis=0)) for half in (one, other)) < k:
        return 0.0
    known, own = (KMeans(k, n_init=10, random_state=0).fit(half) for half in (one, other))
    predicted, shares = known.predict(other), []
    for cluster in range(k):
        mine = predicted[own.labels_ == cluster]
        together = (mine[:, None] == mine).sum() - len(mine)
        shares.append(together / (len(mine) * (len(mine) - 1)) if len(mine) > 1 else 1.0)
    return float(min(shares))
