"""Scores of found clusters: against the true ones, those before, and the clients' similarity."""

from functools import lru_cache

import torch
from torch import Tensor


def agreement(found: Tensor, truth: Tensor) -> dict[str, float]:
    """Scores how well found clusters agree with true ones, whatever their numbers.

    Args:
        found, truth: cluster of each client, int64 `[n]`.

    Returns:
        `clusters/ari` (adjusted Rand index, at most 1; 0 expected by chance), `clusters/ami` (adjusted mutual
        information), `clusters/purity` (share of clients in the majority of their found cluster) and
        `clusters/matched_accuracy` (share that agrees under the best one-to-one matching); empty for no clients.
    """
    if not len(found):
        return {}
    return dict(_agreement(found.numpy().tobytes(), truth.numpy().tobytes()))


# Clusters seldom change from one round to the next, and this is a third of an evaluation of 1,000 clients.
@lru_cache(maxsize=2)
def _agreement(found_bytes: bytes, truth_bytes: bytes) -> dict[str, float]:
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    found, truth = (torch.frombuffer(bytearray(labels), dtype=torch.int64) for labels in (found_bytes, truth_bytes))
    table = _contingency(found, truth)
    return {
        "clusters/ari": float(adjusted_rand_score(truth.numpy(), found.numpy())),
        "clusters/ami": float(adjusted_mutual_info_score(truth.numpy(), found.numpy())),
        "clusters/purity": int(table.max(1).values.sum()) / len(found),
        "clusters/matched_accuracy": _matched(table) / len(found),
    }


def churn(before: Tensor, now: Tensor) -> float:
    """Computes the share of clients, assigned both times, whose cluster changed, ids matched by overlap; nan for none.

    Args:
        before, now: cluster of each client, int64 `[n]`, -1 = none.
    """
    both = (before >= 0) & (now >= 0)
    if not both.any():
        return float("nan")
    return 1 - _matched(_contingency(before[both], now[both])) / int(both.sum())


def silhouette(similarity: Tensor, labels: Tensor) -> float:
    """Computes the mean silhouette of clients under the distance 1 - cosine, -1 to 1.

    nan for fewer than two clusters, and where no cluster has two clients.

    Args:
        similarity: cosines `[n, n]`.
        labels: cluster of each client `[n]`.
    """
    from sklearn.metrics import silhouette_score

    if not 2 <= len(labels.unique()) < len(labels):
        return float("nan")
    distances = (1 - similarity.double()).clamp(min=0).fill_diagonal_(0)
    return float(silhouette_score(distances.numpy(), labels.numpy(), metric="precomputed"))


def _contingency(rows: Tensor, columns: Tensor) -> Tensor:
    row, column = rows.unique(return_inverse=True), columns.unique(return_inverse=True)
    shape = len(row[0]), len(column[0])
    return torch.bincount(row[1] * shape[1] + column[1], minlength=shape[0] * shape[1]).view(shape)


def _matched(table: Tensor) -> int:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(table.numpy(), maximize=True)
    return int(table[rows, columns].sum())
