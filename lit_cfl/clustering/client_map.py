"""The map from clients to clusters: int64 `[clients]`, -1 = none."""

import torch
from torch import Tensor


def assign(index: Tensor, clients: Tensor, labels: Tensor) -> Tensor:
    """Writes new entries into a client map: a new int64 `[clients]`, longer where a client is new (-1 between).

    Args:
        labels: int64 `[n]`; -1 leaves the client as it is.
    """
    clients, labels = clients[labels >= 0], labels[labels >= 0]
    missing = int(clients.max()) + 1 - len(index) if len(clients) else 0
    grown = torch.cat([index, torch.full((max(missing, 0),), -1)])
    return grown.index_copy(0, clients, labels)


def clusters_of(index: Tensor, clients: Tensor) -> Tensor:
    """Looks up the clusters of clients `[n]` in a client map; -1 for clients that it does not know."""
    known = clients < len(index)
    return torch.where(known, index[clients.clamp(max=len(index) - 1)], -1)
