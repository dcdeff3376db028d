"""Scores of the clusters found: against the true clusters, the previous ones, and the clients' similarity."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Clusters seldom change from one round to the next, and scoring them takes a third of an evaluation of 1,000 clients.
_latest: dict[tuple[bytes, ...], dict[str, float]] = {}  # scores by the digests of found and true clusters
_KEPT = 2
_DENSE = 2**20  # maximum number of cells of a dense matrix of overlaps


def agreement(found: Tensor, truth: Tensor) -> dict[str, float]:
    """Scores how well the found clusters agree with the true clusters, regardless of their numbering.

    Args:
        found, truth: Clusters of the clients, int64 `[n]`.

    Returns:
        `clusters/ari` (adjusted Rand index, at most 1; 0 expected by chance), `clusters/ami` (adjusted mutual
        information), `clusters/purity` (share of clients in the majority of their found cluster) and
        `clusters/matched_accuracy` (share that agrees under the best one-to-one matching); empty for no clients.
    """
    if not len(found):
        return {}
    key = tuple(blake2b(np.ascontiguousarray(labels.numpy()).data).digest() for labels in (found, truth))
    if key not in _latest:
        _latest[key] = _agreement(found, truth)
        if len(_latest) > _KEPT:
            del _latest[next(iter(_latest))]
    return dict(_latest[key])


def _agreement(found: Tensor, truth: Tensor) -> dict[str, float]:
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    overlaps = _Overlaps.of(found, truth)
    return {
        "clusters/ari": float(adjusted_rand_score(truth.numpy(), found.numpy())),
        "clusters/ami": float(adjusted_mutual_info_score(truth.numpy(), found.numpy())),
        "clusters/purity": _in_majority(overlaps) / len(found),
        "clusters/matched_accuracy": _count_matched(overlaps) / len(found),
    }


def mean_entropy(weights: Tensor) -> float:
    """Computes the mean entropy in nats of the clients' weights over models, from 0 (one model) to log K (equal).

    Args:
        weights: Weights `[n, K]`, not negative; each client's sum to 1.
    """
    return float(torch.special.entr(weights).sum(1).mean())


def churn(before: Tensor, now: Tensor) -> float:
    """Computes the share of clients whose cluster changed, after matching the numbers of the clusters by overlap.

    nan if no client is assigned both times.

    Args:
        before, now: Clusters of the clients, int64 `[n]`, -1 = none.
    """
    both = (before >= 0) & (now >= 0)
    if not both.any():
        return float("nan")
    return 1 - _count_matched(_Overlaps.of(before[both], now[both])) / int(both.sum())


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


@dataclass(frozen=True, eq=False)
class _Overlaps:
    """Number of shared clients for each pair of overlapping clusters, one from each of two clusterings.

    Args:
        rows, columns: Clusters of each pair `[pairs]`, numbered from 0 without gaps.
        shared: Number of clients of each pair `[pairs]`.
    """

    rows: np.ndarray
    columns: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor) -> "_Overlaps":
        row, column = (labels.unique(return_inverse=True)[1] for labels in (rows, columns))
        width = int(column.max()) + 1 if len(column) else 1
        pairs, shared = (row * width + column).unique(return_counts=True)
        return cls((pairs // width).numpy(), (pairs % width).numpy(), shared.numpy())

    def part(self, pairs: np.ndarray) -> "_Overlaps":
        """Selects some of the pairs, and renumbers their clusters from 0."""
        row, column = (np.unique(ids[pairs], return_inverse=True)[1] for ids in (self.rows, self.columns))
        return _Overlaps(row, column, self.shared[pairs])

    def matrix(self) -> Any:
        from scipy.sparse import csr_array

        return csr_array((self.shared, (self.rows, self.columns)))


def _in_majority(overlaps: _Overlaps) -> int:
    """Counts the clients in the largest overlap of each cluster of the first clustering, and adds these counts."""
    return int(_largest(overlaps.rows, overlaps.shared).sum())


def _largest(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Finds the largest value of each group; groups are numbered from 0 without gaps."""
    largest = np.zeros(int(groups.max(initial=-1)) + 1, dtype=values.dtype)
    np.maximum.at(largest, groups, values)
    return largest


def _count_matched(overlaps: _Overlaps) -> int:
    """Counts the clients that agree under the best one-to-one matching of the clusters.

    Clusters that no pair connects are matched separately: if each client is a separate cluster, a matrix of all
    clusters would have as many cells as the square of the number of clients.
    """
    connected = _number_components(overlaps)
    tall, wide = (_group_sizes(ids, connected) for ids in (overlaps.rows, overlaps.columns))
    simple = (tall == 1) | (wide == 1)
    # simple components have one row or one column, so that only one of their pairs can be matched
    total = int(_largest(connected, overlaps.shared)[simple].sum())
    rest = np.flatnonzero(~simple[connected])
    rest = rest[connected[rest].argsort(kind="stable")]
    ends = np.flatnonzero(np.diff(connected[rest])) + 1
    return total + sum(_best_matching(overlaps.part(pairs)) for pairs in np.split(rest, ends) if len(pairs))


def _number_components(overlaps: _Overlaps) -> np.ndarray:
    """Finds the connected component of each pair in the overlap graph, numbered from 0 without gaps."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not len(overlaps.rows):
        return overlaps.rows
    first = int(overlaps.rows.max()) + 1
    nodes = first + int(overlaps.columns.max()) + 1
    graph = coo_array((overlaps.shared, (overlaps.rows, first + overlaps.columns)), shape=(nodes, nodes))
    parts: np.ndarray = connected_components(graph, directed=False)[1][overlaps.rows]
    return parts


def _group_sizes(ids: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Counts the distinct ids in each group, where each id is in only one group."""
    _, first = np.unique(ids, return_index=True)
    return np.bincount(groups[first])


def _best_matching(overlaps: _Overlaps) -> int:
    """Counts the clients in the best matching of connected clusters; some clusters may stay unmatched."""
    from scipy.optimize import linear_sum_assignment
    from scipy.sparse import eye_array, hstack
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    shared = overlaps.matrix()
    if shared.shape[0] * shared.shape[1] <= _DENSE:
        whole = shared.toarray()
        return int(whole[linear_sum_assignment(whole, maximize=True)].sum())
    # Each row may stay unmatched by taking an extra column. All values are raised by 1, as a sparse matrix drops zeros.
    shared.data += 1
    choices = hstack([shared, eye_array(len(shared.indptr) - 1, dtype=np.int64)], format="csr")
    rows, columns = min_weight_full_bipartite_matching(choices, maximize=True)
    return int(choices[rows, columns].sum()) - len(rows)
