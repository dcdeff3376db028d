"""Partitions in which clients have different labels: label distribution skew."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex
from lit_cfl.datamodules.partition.base import PartitionWithTestRule, apportion, divide_in_proportion, shuffle_lists
from lit_cfl.datamodules.partition.checks import require_enough
from lit_cfl.datamodules.partition.sizes import dirichlet_weights, equal_sizes
from lit_cfl.errors import InputError
from lit_cfl.options import ABOVE_0, FROM_1, bounded

MOST_DRAWS = 100
_HOPELESS = 50  # if more clients than this are too small in one draw, a good draw is expected once in about e^50


@dataclass(frozen=True)
class Dirichlet(PartitionWithTestRule):
    """Divides each label's examples in proportions drawn from a symmetric Dirichlet; every example goes to one client.

    Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.
    arXiv:1909.06335; drawn label by label, as in Yurochkin et al., ICML 2019, arXiv:1905.12022. No true clusters.

    Args:
        alpha: Concentration, above 0: the smaller it is, the fewer labels a client has.
        min_size: Minimum number of examples of each client, 1 or more; all proportions are drawn again until it is
            reached.
    """

    skew: ClassVar[str] = "label"
    alpha: float = bounded(0.5, ABOVE_0)
    min_size: int = bounded(10, FROM_1)

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        require_enough(len(labels), self.num_clients, self.min_size)
        totals = torch.bincount(labels, minlength=num_labels).tolist()
        for _ in range(MOST_DRAWS):
            drawn = [apportion(dirichlet_weights(self.num_clients, self.alpha, rng), total) for total in totals]
            counts = torch.stack(drawn, 1)  # [clients, labels]
            short = int((counts.sum(1) < self.min_size).sum())
            if not short:
                return divide_in_proportion(counts, labels, rng)
            if short > _HOPELESS:
                break
        raise InputError(
            f"Dirichlet with alpha {self.alpha} leaves some of {self.num_clients} clients with fewer than "
            f"{self.min_size} examples, {short} of them in the last draw of at most {MOST_DRAWS}; take a larger "
            "alpha, fewer clients or a smaller min_size"
        )


@dataclass(frozen=True)
class InnerDirichlet(PartitionWithTestRule):
    """Clients of given sizes, each with label proportions drawn from a symmetric Dirichlet. No true clusters.

    Acar, Zhao, Matas, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic Regularization. ICLR 2021,
    arXiv:2111.04263. If clients want more of a label than there is, each gets the same share of what it wants, and the
    rest from the remaining labels.

    Args:
        sizes: Examples of each client, training and test together if `test` is a share; None = equal shares of all.
        alpha: Concentration, above 0: the smaller it is, the fewer labels a client has.
    """

    skew: ClassVar[str] = "label"
    sizes: Sequence[int] | None = None
    alpha: float = bounded(0.5, ABOVE_0)

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        if self.sizes is None:
            require_enough(len(labels), self.num_clients)
            sizes = equal_sizes(len(labels), self.num_clients)
        else:
            sizes = self._given_sizes(len(labels))
        wishes = torch.stack([dirichlet_weights(num_labels, self.alpha, rng) for _ in range(len(sizes))])
        counts = grant_requests(wishes, sizes, torch.bincount(labels, minlength=num_labels))
        which = torch.arange(num_labels).expand(len(sizes), -1)
        of_label = shuffle_lists(ClientIndex.from_owners(labels, num_labels), rng)
        return shuffle_lists(join_pieces(of_label, which, counts.cumsum(0) - counts, counts), rng)

    def _given_sizes(self, num_examples: int) -> Tensor:
        given = list(self.sizes or [])
        if len(given) != self.num_clients or any(size < 1 for size in given) or sum(given) > num_examples:
            raise InputError(
                f"sizes is {given}; give 1 or more for each of the {self.num_clients} clients, and at most "
                f"{num_examples} together, the number of examples"
            )
        return torch.tensor(given)


@dataclass(frozen=True)
class ClassesPerClient(PartitionWithTestRule):
    """Client u has the labels u, u + 1, ... modulo C: the "pathological" partition, with C types of clients.

    Each label is divided equally among the clients that have it; every example goes to one client. The true cluster is
    the type, u mod C; if every client has all labels, there is one cluster.

    Args:
        classes: Number of labels of each client, 1 to C.
    """

    skew: ClassVar[str] = "label"
    classes: int = bounded(2, FROM_1)

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        number, classes = self.num_clients, self.classes
        require_enough(len(labels), number)
        if classes > num_labels:
            raise InputError(f"classes is {classes}, but the data have {num_labels} labels; give 1 to {num_labels}")
        if number + classes - 1 < num_labels:
            raise InputError(
                f"{number} clients with {classes} classes each have only {number + classes - 1} of the {num_labels} "
                f"labels together; give at least {num_labels - classes + 1} clients"
            )
        has = torch.zeros(number, num_labels, dtype=torch.bool)
        has.scatter_(1, cyclic_labels(number, classes, num_labels), True)
        there, wanted = torch.bincount(labels, minlength=num_labels), has.sum(0)
        if (there < wanted).any():
            label = int((there < wanted).nonzero()[0])
            raise InputError(
                f"label {label} has {int(there[label])} examples for {int(wanted[label])} clients; give fewer clients, "
                "or number the labels from 0 without gaps"
            )
        return divide_in_proportion(has, labels, rng)

    def clusters(self, shares: ClientIndex, num_labels: int) -> Tensor:
        return torch.arange(len(shares)) % (num_labels if self.classes < num_labels else 1)


@dataclass(frozen=True)
class Shards(PartitionWithTestRule):
    """Sorts examples by label, and deals equal shards of them to the clients at random. No true clusters.

    McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep Networks from
    Decentralized Data. AISTATS 2017, arXiv:1602.05629, section 3.

    Args:
        shards_per_client: Number of shards of each client, 1 or more.
    """

    skew: ClassVar[str] = "label"
    shards_per_client: int = bounded(2, FROM_1)

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        number = self.num_clients * self.shards_per_client
        require_enough(len(labels), self.num_clients, self.shards_per_client, "shards_per_client")
        shards = ClientIndex.from_sizes(labels.argsort(stable=True), equal_sizes(len(labels), number))
        dealt = shards.select(torch.from_numpy(rng.permutation(number)))
        sizes = dealt.sizes.view(self.num_clients, self.shards_per_client)
        return ClientIndex.from_sizes(dealt.entries, sizes.sum(1))


def grant_requests(wishes: Tensor, sizes: Tensor, there: Tensor) -> Tensor:
    """Computes the number of examples of each label that each client gets, int64 `[clients, labels]`.

    Args:
        wishes: Proportions of the labels, float64 `[clients, labels]`.
        sizes: Examples of each client, int64 `[clients]`.
        there: Examples of each label, int64 `[labels]`.
    """
    counts = torch.zeros(wishes.shape, dtype=torch.int64)
    while True:
        need, left = sizes - counts.sum(1), there - counts.sum(0)
        weights = wishes * (left > 0)
        # clients whose wanted labels are used up take any others
        weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, left.double())
        wanted = weights / weights.sum(1, keepdim=True).clamp(min=1e-300) * need[:, None]
        more = (wanted * (left / wanted.sum(0).clamp(min=1e-300)).clamp(max=1)).floor().long()
        if not more.any():
            break
        counts += more
    # rounding leaves remainders: the most wanted labels get them first
    for client in need.nonzero().flatten().tolist():
        for _ in range(int(need[client])):
            label = int(wanted[client].where(left > 0, -torch.inf).argmax())
            counts[client, label] += 1
            wanted[client, label] -= 1
            left[label] -= 1
    return counts


def cyclic_labels(num_clients: int, classes: int, num_labels: int) -> Tensor:
    """Lists the labels u, u + 1, ... modulo C of each client u: int64 `[clients, classes]`."""
    return (torch.arange(num_clients)[:, None] + torch.arange(classes)) % num_labels


def join_pieces(of_label: ClientIndex, which: Tensor, starts: Tensor, sizes: Tensor) -> ClientIndex:
    """Joins each client's pieces, one per label, into its list of examples.

    Args:
        of_label: Examples of each label.
        which: Labels of each client, int64 `[clients, k]`.
        starts, sizes: Start of each piece among the examples of its label, and its length, int64 `[clients, k]`.
    """
    cut = ClientIndex(of_label.values, (of_label.starts[which] + starts).flatten(), sizes.flatten())
    return ClientIndex.from_sizes(cut.entries, sizes.sum(1))


def consecutive_starts(which: Tensor, sizes: Tensor, num_labels: int) -> Tensor:
    """Finds where each client's piece of a label starts if the clients' pieces follow each other, int64 `[clients, k]`.

    Args:
        which: Labels of each client, all different, int64 `[clients, k]`.
        sizes: Examples that a client gets of each of its labels, int64 `[clients, k]`.
        num_labels: C.
    """
    taken = torch.zeros(len(which), num_labels, dtype=torch.int64).scatter(1, which, sizes)
    return (taken.cumsum(0) - taken).gather(1, which)
