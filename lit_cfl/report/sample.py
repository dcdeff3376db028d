"""Chooses which clients are shown where there are many."""

import numpy as np
import torch

from lit_cfl.seeds import generator

MOST_CLIENTS = 500


def sample(clusters: np.ndarray, seed: int, most: int = MOST_CLIENTS) -> np.ndarray:
    """Draws clients so that each cluster has its share, at least one client.

    Args:
        clusters: of the clients, int `[n]`.
        seed: of the draw.
        most: clients that are drawn; all where there are no more.

    Returns:
        places in `clusters`, ascending; more than `most` only where there are more clusters.
    """
    if len(clusters) <= most:
        return np.arange(len(clusters))
    names, sizes = np.unique(clusters, return_counts=True)
    shares = np.maximum(1, sizes * most // len(clusters))
    rest = most - int(shares.sum())
    largest = np.argsort(-(sizes * most / len(clusters) - shares), kind="stable")
    shares[largest[: max(0, rest)]] += 1
    rng = generator(seed, "report")
    drawn = []
    for name, share in zip(names, shares, strict=True):
        members = np.flatnonzero(clusters == name)
        drawn.append(members[torch.randperm(len(members), generator=rng)[:share].numpy()])
    return np.sort(np.concatenate(drawn))


def said(shown: int, total: int) -> str:
    """Says how many clients are shown, where those are not all."""
    if shown == total:
        return ""
    return f" {shown:,} of {total:,} clients, drawn by the run's seed from each cluster by its size."
