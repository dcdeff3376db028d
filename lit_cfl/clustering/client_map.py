"""The map from clients to clusters: int64 `[clients]`, -1 = none."""

import torch
from torch import Tensor


def assign(assignment: Tensor, clients: Tensor, labels: Tensor) -> Tensor:
    """Returns a client map with these entries set, extended for new clients: int64 `[clients]`.

    Args:
        labels: Clusters of the clients, int64 `[n]`; -1 leaves an entry unchanged.
    """
    clients, labels = clients[labels >= 0], labels[labels >= 0]
    missing = int(clients.max()) + 1 - len(assignment) if len(clients) else 0
    grown = torch.cat([assignment, torch.full((max(missing, 0),), -1)])
    return grown.index_copy(0, clients, labels)


def clusters_of(assignment: Tensor, clients: Tensor) -> Tensor:
    """Looks up the clusters of clients `[n]` in a client map; -1 for clients that are not in the map."""
    known = clients < len(assignment)
    return torch.where(known, assignment[clients.clamp(max=len(assignment) - 1)], -1)
