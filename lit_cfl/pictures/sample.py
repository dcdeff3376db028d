"""Chooses the clients to show if there are many."""

import numpy as np
import torch

from lit_cfl.seeds import generator

MOST_CLIENTS = 500


def sample(clusters: np.ndarray, most: int = MOST_CLIENTS) -> np.ndarray:
    """Draws a sample of clients by cluster size, at least one per cluster; always the same for the same clusters.

    Args:
        clusters: Clusters of the clients, int `[n]`.
        most: Maximum number of clients.

    Returns:
        Indices into `clusters`, ascending; more than `most` only if there are more clusters.
    """
    if len(clusters) <= most:
        return np.arange(len(clusters))
    names, sizes = np.unique(clusters, return_counts=True)
    shares = np.maximum(1, sizes * most // len(clusters))
    rest = most - int(shares.sum())
    largest = np.argsort(-(sizes * most / len(clusters) - shares), kind="stable")
    shares[largest[: max(0, rest)]] += 1
    rng = generator(0, "report")
    drawn = []
    for name, share in zip(names, shares, strict=True):
        members = np.flatnonzero(clusters == name)
        drawn.append(members[torch.randperm(len(members), generator=rng)[:share].numpy()])
    return np.sort(np.concatenate(drawn))


def describe_sample(shown: int, total: int) -> str:
    """Describes how many clients are shown; empty if all are."""
    return "" if shown == total else f" {shown:,} of {total:,} clients, drawn from each cluster by its size."
