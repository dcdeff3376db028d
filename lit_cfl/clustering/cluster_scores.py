"""Scores of the clusters found: against the true clusters, the previous ones, and the clients' similarity."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_MOST_PAIRS = 4_000_000  # pairs of clusters, one from each of two clusterings, up to which they are matched


def agreement(found: Tensor, truth: Tensor) -> dict[str, float]:
    """Scores how well the found clusters agree with the true clusters, regardless of their numbering.

    Args:
        found, truth: Clusters of the clients, int64 `[n]`.

    Returns:
        `clusters/ari` (adjusted Rand index, at most 1; 0 expected by chance), `clusters/ami` (adjusted mutual
        information), `clusters/purity` (share of clients in the majority of their found cluster) and
        `clusters/matched_accuracy` (share that agrees under the best one-to-one matching; nan for more than 4 million
        pairs of a found and a true cluster); empty for no clients.
    """
    return dict(_agreement(found.numpy().tobytes(), truth.numpy().tobytes())) if len(found) else {}


@lru_cache(2)  # clusters seldom change from one round to the next, and to score 1,000 clients takes as long as two fits
def _agreement(found: bytes, truth: bytes) -> dict[str, float]:
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    one, other = (np.frombuffer(labels, dtype=np.int64) for labels in (found, truth))
    return {
        "clusters/ari": float(adjusted_rand_score(other, one)),
        "clusters/ami": float(adjusted_mutual_info_score(other, one)),
        "clusters/purity": _share_in_majority(one, other),
        "clusters/matched_accuracy": _share_matched(one, other),
    }


def mean_entropy(weights: Tensor) -> float:
    """Computes the mean entropy in nats of the clients' weights over models, from 0 (one model) to log K (equal).

    Args:
        weights: Weights `[n, K]`, not negative; each client's sum to 1.
    """
    return float(torch.special.entr(weights).sum(1).mean())


def churn(before: Tensor, now: Tensor) -> float:
    """Computes the share of clients whose cluster changed, after matching the numbers of the clusters by overlap.

    nan if no client is assigned both times, and for more than 4 million pairs of an earlier and a present cluster: then
    clients are clusters of their own, of which churn says nothing.

    Args:
        before, now: Clusters of the clients, int64 `[n]`, -1 = none.
    """
    both = (before >= 0) & (now >= 0)
    return 1 - _share_matched(before[both].numpy(), now[both].numpy()) if both.any() else float("nan")


def silhouette(similarity: Tensor, labels: Tensor) -> float:
    """Computes the mean silhouette of clients, in [-1, 1], under the distance 1 - cosine.

    nan for fewer than two clusters, and if no cluster has two clients.

    Args:
        similarity: Cosines `[n, n]`.
        labels: Clusters of the clients `[n]`.
    """
    from sklearn.metrics import silhouette_score

    if not 2 <= len(labels.unique()) < len(labels):
        return float("nan")
    distances = (1 - similarity.double()).clamp(min=0).fill_diagonal_(0)
    return float(silhouette_score(distances.numpy(), labels.numpy(), metric="precomputed"))


def _share_in_majority(found: np.ndarray, truth: np.ndarray) -> float:
    """Computes the share of clients whose true cluster is the most frequent one in their found cluster."""
    (_, row), (truths, column) = (np.unique(labels, return_inverse=True) for labels in (found, truth))
    pairs, shared = np.unique(row * len(truths) + column, return_counts=True)
    first = np.flatnonzero(np.diff(pairs // len(truths), prepend=-1))  # first pair of each found cluster
    return float(np.maximum.reduceat(shared, first).sum() / len(found))


def _share_matched(one: np.ndarray, other: np.ndarray) -> float:
    """Computes the share of clients that agree under the best one-to-one matching of two clusterings."""
    from scipy.optimize import linear_sum_assignment

    (rows, row), (columns, column) = (np.unique(labels, return_inverse=True) for labels in (one, other))
    size = len(rows), len(columns)
    if size[0] * size[1] > _MOST_PAIRS:
        return float("nan")
    shared = np.bincount(row * size[1] + column, minlength=size[0] * size[1]).reshape(size)
    return float(shared[linear_sum_assignment(shared, maximize=True)].sum() / len(one))
