"""Cutting the examples of each label into pieces for the clients that have it."""

import torch
from torch import Tensor

from lit_cfl.data import ClientIndex


def cyclic_labels(num_clients: int, classes: int, num_labels: int) -> Tensor:
    """Client u has the labels u, u + 1, ... modulo C: int64 `[clients, classes]`."""
    return (torch.arange(num_clients)[:, None] + torch.arange(classes)) % num_labels


def pieces(of_label: ClientIndex, which: Tensor, starts: Tensor, sizes: Tensor) -> ClientIndex:
    """The examples of clients that have one piece each of several labels.

    Args:
        of_label: the examples of each label.
        which: the labels of each client, int64 `[clients, k]`.
        starts, sizes: where its piece begins among the examples of that label, and its length, int64 `[clients, k]`.
    """
    cut = ClientIndex(of_label.values, (of_label.starts[which] + starts).flatten(), sizes.flatten())
    return ClientIndex.from_sizes(cut.entries, sizes.sum(1))


def in_turn(which: Tensor, sizes: Tensor, num_labels: int) -> Tensor:
    """Starts of the pieces where those of a label follow one another in the order of the clients, int64 `[clients, k]`.

    Args:
        which: the labels of each client, all different, int64 `[clients, k]`.
        sizes: how much of each it gets, int64 `[clients, k]`.
        num_labels: C.
    """
    taken = torch.zeros(len(which), num_labels, dtype=torch.int64).scatter(1, which, sizes)
    return (taken.cumsum(0) - taken).gather(1, which)
