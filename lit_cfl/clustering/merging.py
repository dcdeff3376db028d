"""Hierarchical clustering, and StoCFL's merge. Labels are numbered by each cluster's lowest member."""

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lit_cfl.clustering.products import Rows, gram, require_finite, row_tiles
from lit_cfl.clustering.similarity import cosines
from lit_cfl.errors import InputError, require_word

Linkage = Literal["single", "complete", "average", "weighted", "ward"]
"""How the distance of two clusters follows from those of their members."""


def agglomerate(
    distances: Tensor,
    *,
    linkage: Linkage,
    num_clusters: int | None = None,
    threshold: float | None = None,
) -> Tensor:
    """Clusters hierarchically, and cuts the tree at a number of clusters or at a distance.

    Args:
        distances: Distances `[n, n]`, symmetric, finite and not negative.
        linkage: Distance of two clusters: minimum (`single`), maximum (`complete`) or mean (`average`) distance of
            their members; `weighted` is the mean of the distances of the two parts from which a cluster was merged;
            `ward` merges what adds least to the sum of squares, and needs l2 distances.
        num_clusters: Number of clusters, 1 to n.
        threshold: Distance at or above which clusters stay apart: 0 leaves each client alone, infinity makes one
            cluster. Exactly one of `num_clusters` and `threshold` is given.

    Returns:
        labels int64 `[n]`.

    Raises:
        InputError: both or neither of `num_clusters` and `threshold` are given, there are more clusters than clients,
            the matrix is not a matrix of distances, or the linkage is unknown.
    """
    n = len(distances)
    if (num_clusters is None) == (threshold is None):
        raise InputError(
            f"num_clusters is {num_clusters} and threshold is {threshold}; give one of them, and None for the other"
        )
    if num_clusters is not None and not 1 <= num_clusters <= n:
        raise InputError(f"{n} clients cannot form {num_clusters} clusters; give 1 to {n}")
    if threshold is not None and not threshold >= 0:
        raise InputError(f"threshold {threshold} is not a distance; give 0 or more")
    if bool((distances < 0).any()):
        raise InputError(f"a distance is {float(distances.min())}; give distances of 0 or more")
    tree = merge_tree(distances, linkage)
    kept = n - num_clusters if num_clusters is not None else int((tree[:, 2] < threshold).sum())
    return cut_tree(tree, kept)


def merge_distances(distances: Tensor, *, linkage: Linkage) -> Tensor:
    """Lists the distances at which `agglomerate` merges clusters, ascending, float64 `[n - 1]`.

    Args:
        distances: Distances `[n, n]`, symmetric and finite.
        linkage: Linkage, see `agglomerate`.

    Raises:
        InputError: the matrix is not a matrix of distances, or the linkage is unknown.
    """
    return torch.from_numpy(merge_tree(distances, linkage)[:, 2].copy())


def merge_by_threshold(representations: Rows, tau: float) -> Tensor:
    """Joins clusters whose cosine is tau or more, transitively: StoCFL's merge (Algorithm 1, lines 13-15).

    Args:
        representations: Representations of the clusters `[n, d]`, or their chunks; their common scale does not matter.
        tau: Threshold in [-1, 1]. 1 never merges (C23: so that StoCFL becomes Ditto), -1 always does.

    Returns:
        labels int64 `[n]`. A zero representation merges with no other if tau is above 0.

    Raises:
        InputError: tau outside [-1, 1], or a representation that is not finite.
    """
    if not -1 <= tau <= 1:
        raise InputError(f"tau {tau} is not a cosine; give a number in [-1, 1]")
    if tau < 1:
        return merge_similar(exact_cosines(representations), tau)
    norms = torch.cat([tile.double().square().sum(1) for tile in row_tiles(representations)])
    require_finite(norms, "representation")
    return torch.arange(len(norms))


def merge_similar(similarity: Tensor, tau: float) -> Tensor:
    """Joins clusters as `merge_by_threshold` does, given their cosines `[n, n]` from `exact_cosines`."""
    from scipy.sparse import csr_array

    return components(csr_array((similarity >= tau).numpy())) if tau < 1 else torch.arange(len(similarity))


def exact_cosines(representations: Rows) -> Tensor:
    """Computes the cosines of representations `[n, d]`: float64 `[n, n]`, so that a cosine of exactly tau is found.

    Raises:
        InputError: a representation that is not finite.
    """
    products = gram(representations)
    require_finite(products.diagonal(), "representation")
    return cosines(products)


def merge_tree(distances: Tensor, linkage: Linkage) -> np.ndarray:
    """Computes SciPy's linkage matrix `[n - 1, 4]` from distances `[n, n]`: merges by ascending distance."""
    from scipy.cluster.hierarchy import linkage as scipy_linkage
    from scipy.spatial.distance import squareform

    require_word("linkage", linkage, get_args(Linkage))
    require_symmetric(distances)
    if len(distances) < 2:
        return np.empty((0, 4))
    tree: np.ndarray = scipy_linkage(squareform(distances.double().numpy(), checks=False), linkage)
    return tree


def require_symmetric(matrix: Tensor) -> None:
    """Raises InputError unless the matrix is `[n, n]`, finite and symmetric up to rounding."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"the matrix of all pairs has shape {list(matrix.shape)}; give [n, n]")
    if not matrix.isfinite().all():
        raise InputError("the value of a pair of clients is not finite, as an update diverged; lower the learning rate")
    if not torch.allclose(matrix, matrix.T, rtol=1e-4, atol=1e-6):
        raise InputError("the matrix of all pairs is not symmetric; give the same value for (i, j) and (j, i)")


def cut_tree(tree: np.ndarray, kept: int) -> Tensor:
    """Finds the clusters after the first `kept` merges of a linkage matrix, int64 `[n]`."""
    from scipy.sparse import coo_array

    n = len(tree) + 1
    made = np.repeat(np.arange(n, n + kept), 2)
    edges = coo_array((np.ones(2 * kept), (made, tree[:kept, :2].astype(np.int64).ravel())), shape=(2 * n, 2 * n))
    return components(edges)[:n]


def components(graph: object) -> Tensor:
    """Finds the connected components of an undirected graph `[n, n]`: int64 `[n]`, numbered by lowest member."""
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(graph, directed=False)
    return by_lowest_member(torch.from_numpy(labels.astype(np.int64)))


def by_lowest_member(labels: Tensor) -> Tensor:
    """Renumbers clusters `[n]` in the order of their lowest member."""
    _, inverse = labels.unique(return_inverse=True)
    lowest = torch.full((len(labels),), len(labels)).scatter_reduce_(0, inverse, torch.arange(len(labels)), "amin")
    return lowest.argsort().argsort()[inverse]
