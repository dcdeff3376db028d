"""FedGroup's measures: EDC with K-means++, and MADC."""

import numpy as np
import torch
from torch import Tensor

from lit_cfl.clustering.merging import by_lowest_member
from lit_cfl.clustering.products import Rows, chunks_of, gram, require_finite
from lit_cfl.errors import InputError

_NO_DIRECTION = 1e-6  # a direction whose singular value is below this share of the largest is a rounding error


def madc(similarity: Tensor) -> Tensor:
    """Computes the mean absolute difference of cosines (FedGroup, Eq. 7).

    Args:
        similarity: Cosines `[n, n]`, n of at least 3.

    Returns:
        `[n, n]`: (1 / (n - 2)) * sum over z other than i and j of |S_iz - S_jz|; in [0, 2], 0 on the diagonal.

    Raises:
        InputError: fewer than three clients, for which it is not defined.
    """
    n = len(similarity)
    if n < 3:
        raise InputError(
            f"MADC compares two clients by their similarities to all others, so {n} clients are too few; give at "
            "least 3"
        )
    difference = torch.cdist(similarity, similarity, p=1)  # includes z = i and z = j
    own = similarity.diagonal()
    both = (own[:, None] - similarity.T).abs() + (similarity - own[None, :]).abs()
    return ((difference - both) / (n - 2)).clamp(min=0).fill_diagonal_(0)


def edc_embedding(updates: Rows, num_directions: int) -> Tensor:
    """Computes cosines of the updates with their main singular directions (FedGroup, Eq. 8 and Algorithm 3).

    The directions are the left singular vectors of the updates' transpose, not centred, found from the
    n x n Gram matrix: the same subspace as the papers' truncated SVD, at O(n^2 d).

    Args:
        updates: Updates `[n, d]`, or their chunks.
        num_directions: Number of directions m, 1 to n.

    Returns:
        `[n, m]` in [-1, 1]; 0 in the row of a zero update, and for directions beyond the rank.

    Raises:
        InputError: more directions than updates, or an update that is not finite.
    """
    parts = chunks_of(updates)
    n = sum(map(len, parts))
    if not 1 <= num_directions <= n:
        raise InputError(f"{num_directions} directions cannot be found from {n} updates; give 1 to {n}")
    products = gram(updates)
    norms = products.diagonal().sqrt()[:, None]
    require_finite(norms[:, 0])
    values, vectors = torch.linalg.eigh(products)  # eigenvalues in ascending order
    values, vectors = values.flip(0)[:num_directions].clamp(min=0).sqrt(), vectors.flip(1)[:, :num_directions]
    values = torch.where(values > _NO_DIRECTION * values[0], values, 0.0)
    return torch.where(norms > 0, values * vectors / norms, 0.0).to(parts[0].dtype)


def edc(updates: Rows, num_directions: int) -> Tensor:
    """Computes the Euclidean distances between decomposed cosines (FedGroup, Eq. 8).

    Args:
        updates: Updates `[n, d]`, or their chunks.
        num_directions: Number of directions m, 1 to n.

    Returns:
        `[n, n]`: (1/m) * |E_i - E_j| with E the embedding; 0 on the diagonal.

    Raises:
        InputError: as in `edc_embedding`.
    """
    embedding = edc_embedding(updates, num_directions)
    exact = torch.cdist(embedding, embedding, compute_mode="donot_use_mm_for_euclid_dist")
    return exact / num_directions


def kmeans(points: Tensor, num_clusters: int, rng: torch.Generator) -> Tensor:
    """Clusters points by K-means++ with 10 restarts of at most 20 iterations (FedGroup, Algorithm 3, line 14).

    Args:
        points: Points `[n, m]`.
        num_clusters: Number of clusters, 1 to n; a centre that loses all its points moves to the farthest point.
        rng: Generator that seeds scikit-learn.

    Returns:
        labels int64 `[n]`; every cluster has a point.

    Raises:
        InputError: fewer different points than clusters.
    """
    from sklearn.cluster import KMeans  # takes a second to import, needed only for clustering

    different = len(points.unique(dim=0))
    if different < num_clusters:
        raise InputError(
            f"num_clusters is {num_clusters}, but K-means cannot tell more than {different} of the clients apart; "
            "lower it, or train longer before clustering"
        )

    seed = int(torch.randint(2**31 - 1, (), generator=rng))
    model = KMeans(num_clusters, init="k-means++", n_init=10, max_iter=20, random_state=seed)
    return by_lowest_member(torch.from_numpy(model.fit_predict(points.double().numpy()).astype(np.int64)))
