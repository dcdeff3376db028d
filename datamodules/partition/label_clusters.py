"""Partitions into clusters of clients that have the same labels, or mostly the same label."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex
from lit_cfl.datamodules.partition.base import PartitionWithTestRule, apportion, shuffle_lists
from lit_cfl.datamodules.partition.labels import consecutive_starts, join_pieces
from lit_cfl.datamodules.partition.sizes import iid
from lit_cfl.errors import InputError
from lit_cfl.options import FROM_1, SHARE, bounded


@dataclass(frozen=True)
class LabelGroups(PartitionWithTestRule):
    """Divides the examples of each group of labels equally, at random, among the clients of that group.

    The true cluster is the group. The defaults are StoCFL's pathological MNIST (Zeng et al., section A.1).

    Args:
        groups: Labels of each group. Every label of the data must be in exactly one group.
        clients_per_group: Clients of each group, 1 or more; the first group's clients have the lowest ids.
    """

    skew: ClassVar[str] = "label"
    num_clients: int = field(init=False)
    groups: Sequence[Sequence[int]] = ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))
    clients_per_group: int = bounded(100, FROM_1)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "num_clients", len(self.groups) * self.clients_per_group)

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        groups = self.groups
        named = sorted(label for group in groups for label in group)
        if len(set(named)) < len(named) or not set(labels.unique().tolist()) <= set(named) <= set(range(num_labels)):
            raise InputError(
                f"groups are {groups}, but each label of the data must be in exactly one group; the labels are 0 to "
                f"{num_labels - 1}"
            )
        lists = []
        for group in groups:
            mine = torch.isin(labels, torch.tensor(group)).nonzero().flatten()
            shared = iid(len(mine), self.clients_per_group, rng)
            lists.append(ClientIndex(mine[shared.values], shared.starts, shared.sizes))
        values, sizes = torch.cat([one.values for one in lists]), torch.cat([one.sizes for one in lists])
        return ClientIndex.from_sizes(values, sizes)

    def clusters(self, shares: ClientIndex, num_labels: int) -> Tensor:
        return torch.arange(len(shares)) // self.clients_per_group


@dataclass(frozen=True)
class DominantClass(PartitionWithTestRule):
    """A share `beta` of a client's examples has its cluster's label; the rest is drawn from all other labels.

    Client u is in cluster u mod `num_clusters`, whose label has the same number. No example goes to two clients, and
    some are left over: all clients have equally many, so one label runs out first. This is the label distribution skew
    of LayerCFL: 20 clients, 4 clusters, beta 0.5 (0.8 is easier to cluster).

    Args:
        num_clusters: Number of clusters, at most the number of labels or clients.
        beta: Share of a client's examples with its cluster's label, 0 to 1.
        examples_per_client: Examples of each client, 1 or more; null: as many as every client can have.
    """

    skew: ClassVar[str] = "label"
    num_clients: int = bounded(20, FROM_1)
    num_clusters: int = bounded(4, FROM_1)
    beta: float = bounded(0.5, SHARE)
    examples_per_client: int | None = bounded(None, FROM_1)

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        if self.num_clusters > min(self.num_clients, num_labels):
            raise InputError(
                f"num_clusters is {self.num_clusters}; give 1 to {min(self.num_clients, num_labels)}, as there are "
                f"{self.num_clients} clients and {num_labels} labels"
            )
        clusters = torch.arange(self.num_clients) % self.num_clusters
        there, members = torch.bincount(labels, minlength=num_labels), torch.bincount(clusters)
        size = self._size(there, members)
        own, others = count_taken(there, members, self.beta, size)
        of_label = shuffle_lists(ClientIndex.from_owners(labels, num_labels), rng)
        which = torch.arange(num_labels).expand(len(members), -1)
        starts = consecutive_starts(which, own + others, num_labels)
        first = join_pieces(of_label, which, starts, own)  # examples of each cluster's own label
        # drawn from the other labels in proportion to their sizes
        second = shuffle_lists(join_pieces(of_label, which, starts, others), rng)
        number = torch.full_like(clusters, round(self.beta * size))
        parts = ClientIndex.from_sizes(first.entries, number), ClientIndex.from_sizes(second.entries, size - number)
        ranks = clusters.argsort(stable=True).argsort()  # rank of each client when sorted by cluster
        return parts[0].plus(parts[1]).select(ranks).pack()

    def _size(self, there: Tensor, members: Tensor) -> int:
        """Finds a possible number of examples per client, or raises InputError. Arguments as in `count_taken`."""
        if int((there > 0).sum()) < 2 or (self.beta and not there[: len(members)].all()):
            raise InputError(
                f"DominantClass needs 2 or more labels, and examples with each label of 0 to {len(members) - 1}, but "
                f"their numbers are {there.tolist()}; number the labels from 0 without gaps, or give fewer clusters"
            )
        most = find_max_size(there, members, self.beta)
        size = most if self.examples_per_client is None else self.examples_per_client
        if size < 1 or not fits(there, members, self.beta, size) or (self.beta and not round(self.beta * size)):
            raise InputError(
                f"{self.num_clients} clients cannot have {size} examples each, with a share of {self.beta} of the "
                f"cluster's label, 1 or more; at most {most} each are possible: change examples_per_client, the number "
                "of clients or beta"
            )
        return size

    def clusters(self, shares: ClientIndex, num_labels: int) -> Tensor:
        return torch.arange(len(shares)) % self.num_clusters


def count_taken(there: Tensor, members: Tensor, beta: float, size: int) -> tuple[Tensor, Tensor]:
    """Counts the examples that each cluster takes of its own label and of others: int64 `[clusters, labels]` each.

    Args:
        there: Examples of each label, int64 `[labels]`.
        members: Clients of each cluster, int64 `[clusters]`.
        beta: Share of examples with the cluster's own label.
        size: Examples of each client.
    """
    dominant = round(beta * size)
    own = torch.zeros(len(members), len(there), dtype=torch.int64)
    own.fill_diagonal_(1)
    weights = there * (1 - own)
    rest = [apportion(w.double(), int(n) * (size - dominant)) for w, n in zip(weights, members, strict=True)]
    return own * members[:, None] * dominant, torch.stack(rest)


def find_max_size(there: Tensor, members: Tensor, beta: float) -> int:
    """Finds the maximum number of examples per client, 0 if none is possible; arguments as in `count_taken`."""
    low, high = 0, int(there.sum()) // int(members.sum()) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(there, members, beta, middle) else (low, middle)
    return low


def fits(there: Tensor, members: Tensor, beta: float, size: int) -> bool:
    """Returns whether there are enough examples for clients of this size; for the arguments see `count_taken`."""
    own, others = count_taken(there, members, beta, size)
    return bool(((own + others).sum(0) <= there).all())
