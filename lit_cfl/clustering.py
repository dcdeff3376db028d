"""Similarities between clients' updates, and what is made of them. Pure functions; the dtype is kept.

Rows are updates (local model minus the model it started from) restricted to trainable parameters.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lit_cfl.errors import InputError

_NO_DIRECTION = 1e-6  # a direction whose singular value is below this share of the largest is rounding alone


def cosine_similarity(updates: Tensor) -> Tensor:
    """Cosine of the angle between every two updates.

    Args:
        updates: `[n, d]`.

    Returns:
        `[n, n]` in [-1, 1], symmetric, 1 on the diagonal; the row of a zero update is 0 throughout.
    """
    unit = _unit(updates)
    return (unit @ unit.T).clamp(-1, 1)


def madc(similarity: Tensor) -> Tensor:
    """Mean absolute difference of cosines (FedGroup, Eq. 7).

    Args:
        similarity: cosines `[n, n]`, n of at least 3.

    Returns:
        `[n, n]`: (1 / (n - 2)) * sum over z other than i and j of |S_iz - S_jz|; in [0, 2], 0 on the diagonal.

    Raises:
        InputError: fewer than three clients, for which it is not defined.
    """
    n = len(similarity)
    if n < 3:
        raise InputError(f"MADC compares two clients by all the others: {n} clients are too few, give at least 3")
    difference = torch.cdist(similarity, similarity, p=1)  # includes z = i and z = j
    own = similarity.diagonal()
    both = (own[:, None] - similarity.T).abs() + (similarity - own[None, :]).abs()
    return ((difference - both) / (n - 2)).clamp(min=0).fill_diagonal_(0)


def edc_embedding(updates: Tensor, num_directions: int) -> Tensor:
    """Cosines between the updates and the main directions of all of them (FedGroup, Eq. 8 and Algorithm 3).

    The directions are the left singular vectors of the updates' transpose, not centred, found from the
    n x n Gram matrix: the same subspace as the papers' truncated SVD, at O(n^2 d).

    Args:
        updates: `[n, d]`.
        num_directions: m, 1 to n.

    Returns:
        `[n, m]` in [-1, 1]; the row of a zero update is 0, and so is a direction beyond the rank.

    Raises:
        InputError: more directions than updates.
    """
    n = len(updates)
    if not 1 <= num_directions <= n:
        raise InputError(f"{num_directions} directions cannot be found from {n} updates; give 1 to {n}")
    rows = updates.double()
    values, vectors = torch.linalg.eigh(rows @ rows.T)  # ascending
    values, vectors = values.flip(0)[:num_directions].clamp(min=0).sqrt(), vectors.flip(1)[:, :num_directions]
    values = torch.where(values > _NO_DIRECTION * values[0], values, 0.0)
    norms = rows.norm(dim=1, keepdim=True)
    embedding = torch.where(norms > 0, values * vectors / norms, 0.0)
    return embedding.to(updates.dtype)


def edc(updates: Tensor, num_directions: int) -> Tensor:
    """Euclidean distance of decomposed cosines (FedGroup, Eq. 8).

    Args:
        updates: `[n, d]`.
        num_directions: m, 1 to n.

    Returns:
        `[n, n]`: (1/m) * |E_i - E_j| with E the embedding; 0 on the diagonal.
    """
    embedding = edc_embedding(updates, num_directions)
    exact = torch.cdist(embedding, embedding, compute_mode="donot_use_mm_for_euclid_dist")
    return exact / num_directions


def direction_cosines(updates: Tensor, directions: Tensor) -> Tensor:
    """Cosines between updates and clusters' directions.

    Args:
        updates: `[n, d]`.
        directions: `[clusters, d]`.

    Returns:
        `[n, clusters]` in [-1, 1]; 0 for a zero update or direction.
    """
    return (_unit(updates) @ _unit(directions).T).clamp(-1, 1)


def nearest_direction(updates: Tensor, directions: Tensor) -> Tensor:
    """The direction that each update is most alike by cosine (FedGroup, Eq. 9): client cold start.

    Args:
        updates: `[n, d]`.
        directions: `[clusters, d]`.

    Returns:
        int64 `[n]`; ties, and zero updates, go to the lowest index.
    """
    return direction_cosines(updates, directions).argmax(1)


def kmeans(points: Tensor, num_clusters: int, rng: torch.Generator) -> Tensor:
    """K-means++ with 10 restarts of at most 20 iterations (FedGroup, Algorithm 3, line 14).

    Args:
        points: `[n, m]`.
        num_clusters: 1 to n; a centre that loses all its points is put on the farthest one.
        rng: seeds scikit-learn.

    Returns:
        labels int64 `[n]`; every cluster has a point.

    Raises:
        InputError: fewer different points than clusters.
    """
    from sklearn.cluster import KMeans  # a second of import, wanted only where clusters are made

    different = len(points.unique(dim=0))
    if different < num_clusters:
        raise InputError(
            f"num_clusters is {num_clusters}, but the clients' updates show only {different} different directions; "
            "lower it, or train longer before clustering"
        )

    seed = int(torch.randint(2**31 - 1, (), generator=rng))
    model = KMeans(num_clusters, init="k-means++", n_init=10, max_iter=20, random_state=seed)
    return torch.from_numpy(model.fit_predict(points.double().numpy()).astype(np.int64))


def agglomerate(
    distances: Tensor,
    *,
    linkage: Literal["single", "complete", "average"],
    num_clusters: int | None = None,
    threshold: float | None = None,
) -> Tensor:
    """Hierarchical clustering, cut at a number of clusters or at a distance.

    Args:
        distances: `[n, n]`, symmetric.
        linkage: distance of two clusters: least, greatest or mean distance of their members.
        num_clusters: 1 to n.
        threshold: clusters at or above this distance stay apart. Exactly one of the two is given.

    Returns:
        labels int64 `[n]`.
    """
    from sklearn.cluster import AgglomerativeClustering

    if (num_clusters is None) == (threshold is None):
        raise InputError(f"give num_clusters or threshold, one of them (got {num_clusters} and {threshold})")
    if num_clusters is not None and not 1 <= num_clusters <= len(distances):
        raise InputError(f"{num_clusters} clusters cannot be made of {len(distances)} clients")
    if len(distances) == 1:
        return torch.zeros(1, dtype=torch.int64)
    model = AgglomerativeClustering(
        num_clusters, metric="precomputed", linkage=linkage, distance_threshold=threshold
    )  # fmt: skip
    return torch.from_numpy(model.fit_predict(distances.double().numpy()).astype(np.int64))


def assign(index: Tensor, clients: Tensor, labels: Tensor) -> Tensor:
    """The client map with new entries: a new int64 `[clients]`, longer where a client is new (-1 between)."""
    missing = int(clients.max()) + 1 - len(index) if len(clients) else 0
    grown = torch.cat([index, torch.full((max(missing, 0),), -1)])
    return grown.index_copy(0, clients, labels)


def clusters_of(index: Tensor, clients: Tensor) -> Tensor:
    """The entries of a client map `[n]`; -1 for clients that it does not know."""
    known = clients < len(index)
    return torch.where(known, index[clients.clamp(max=len(index) - 1)], -1)


def _unit(rows: Tensor) -> Tensor:
    norms = rows.norm(dim=1, keepdim=True)
    return torch.where(norms > 0, rows / norms, 0.0)
