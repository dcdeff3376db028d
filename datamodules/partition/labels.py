"""Partitions in which clients have different labels: label distribution skew."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex
from lit_cfl.datamodules.partition.base import SharedOut, apportioned, in_proportion
from lit_cfl.datamodules.partition.checks import require_enough
from lit_cfl.datamodules.partition.sizes import dirichlet_weights
from lit_cfl.errors import InputError

_HOPELESS = 50  # clients short of examples in one draw: a draw with none would then come once in e^50


@dataclass(frozen=True)
class Dirichlet(SharedOut):
    """Each label is shared out in proportions drawn from a symmetric Dirichlet; every example goes to one client.

    Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.
    arXiv:1909.06335; drawn label by label, as in Yurochkin et al., ICML 2019, arXiv:1905.12022. No true clusters.

    Args:
        alpha: concentration, above 0: the smaller, the fewer labels a client has.
        min_size: examples that each client has at least, 1 or more; all proportions are drawn again until it is so.
        max_tries: draws at most.
    """

    skew: ClassVar[str] = "label"
    alpha: float = 0.5
    min_size: int = 10
    max_tries: int = 100

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        return dirichlet(labels, num_labels, self.num_clients, self.alpha, self.min_size, self.max_tries, rng)


@dataclass(frozen=True)
class ClassesPerClient(SharedOut):
    """Client u has the labels u, u + 1, ... modulo C: as many types of client as labels ("pathological").

    Each label is shared equally among the clients that have it; every example goes to one client. The true cluster is
    the type, u mod C; with all labels for everyone there is one.

    Args:
        classes: labels of each client, 1 to C.
    """

    skew: ClassVar[str] = "label"
    classes: int = 2

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        return cyclic_classes(labels, num_labels, self.num_clients, self.classes, rng)

    def clusters(self, shares: ClientIndex, num_labels: int) -> Tensor:
        return torch.arange(len(shares)) % (num_labels if self.classes < num_labels else 1)


@dataclass(frozen=True)
class Shards(SharedOut):
    """Examples sorted by label and cut into equal shards, which are dealt to the clients at random. No true clusters.

    McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep Networks from
    Decentralized Data. AISTATS 2017, arXiv:1602.05629, section 3.

    Args:
        shards_per_client: 1 or more.
    """

    skew: ClassVar[str] = "label"
    shards_per_client: int = 2

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        return shards(labels, self.num_clients, self.shards_per_client, rng)


def dirichlet(
    labels: Tensor,
    num_labels: int,
    num_clients: int,
    alpha: float,
    min_size: int,
    max_tries: int,
    rng: np.random.Generator,
) -> ClientIndex:
    """Shares out each label in proportions from Dirichlet(alpha) until each client has `min_size` examples.

    Raises:
        InputError: no draw was good enough, or one was so far from it that more would not help.
    """
    require_enough(len(labels), num_clients, min_size)
    if max_tries < 1:
        raise InputError(f"max_tries is {max_tries}; give 1 or more")
    totals = torch.bincount(labels, minlength=num_labels).tolist()
    for _ in range(max_tries):
        drawn = [apportioned(dirichlet_weights(num_clients, alpha, rng), total) for total in totals]
        counts = torch.stack(drawn, 1)  # [clients, labels]
        short = int((counts.sum(1) < min_size).sum())
        if not short:
            return in_proportion(counts, labels, rng)
        if short > _HOPELESS:
            break
    raise InputError(
        f"Dirichlet with alpha {alpha} leaves some of {num_clients} clients with fewer than {min_size} examples, "
        f"{short} of them in the last draw of at most {max_tries}; take a larger alpha, fewer clients or a "
        "smaller min_size"
    )


def cyclic_classes(
    labels: Tensor, num_labels: int, num_clients: int, classes: int, rng: np.random.Generator
) -> ClientIndex:
    """Gives client u the labels u to u + classes - 1 modulo C, each shared equally among the clients that have it.

    Raises:
        InputError: a label has nobody to go to, or fewer examples than clients.
    """
    require_enough(len(labels), num_clients)
    if not 1 <= classes <= num_labels:
        raise InputError(f"classes is {classes}; each client can have 1 to {num_labels} of these {num_labels} labels")
    if num_clients + classes - 1 < num_labels:
        raise InputError(
            f"{num_clients} clients with {classes} classes each have {num_clients + classes - 1} of the {num_labels} "
            f"labels; give at least {num_labels - classes + 1} clients"
        )
    has = torch.zeros(num_clients, num_labels, dtype=torch.bool)
    has.scatter_(1, cyclic_labels(num_clients, classes, num_labels), True)
    there, wanted = torch.bincount(labels, minlength=num_labels), has.sum(0)
    if (there < wanted).any():
        label = int((there < wanted).nonzero()[0])
        remedy = "give fewer clients" if there[label] else "number the labels from 0 without gaps, or divide otherwise"
        raise InputError(f"label {label} has {int(there[label])} examples for {int(wanted[label])} clients; {remedy}")
    return in_proportion(has, labels, rng)


def shards(labels: Tensor, num_clients: int, shards_per_client: int, rng: np.random.Generator) -> ClientIndex:
    """Sorts by label, cuts into shards whose sizes differ by one at most, and deals them to the clients at random."""
    if shards_per_client < 1:
        raise InputError(f"shards_per_client is {shards_per_client}; give 1 or more")
    require_enough(len(labels), num_clients, shards_per_client, "shards_per_client")
    number = num_clients * shards_per_client
    cut = ClientIndex.from_sizes(labels.argsort(stable=True), apportioned(torch.ones(number).double(), len(labels)))
    dealt = cut.select(torch.from_numpy(rng.permutation(number)))
    return ClientIndex.from_sizes(dealt.entries, dealt.sizes.view(num_clients, shards_per_client).sum(1))


def cyclic_labels(num_clients: int, classes: int, num_labels: int) -> Tensor:
    """Gives client u the labels u, u + 1, ... modulo C: int64 `[clients, classes]`."""
    return (torch.arange(num_clients)[:, None] + torch.arange(classes)) % num_labels


def pieces(of_label: ClientIndex, which: Tensor, starts: Tensor, sizes: Tensor) -> ClientIndex:
    """Joins the examples of clients that have one piece each of several labels.

    Args:
        of_label: the examples of each label.
        which: the labels of each client, int64 `[clients, k]`.
        starts, sizes: where its piece begins among the examples of that label, and its length, int64 `[clients, k]`.
    """
    cut = ClientIndex(of_label.values, (of_label.starts[which] + starts).flatten(), sizes.flatten())
    return ClientIndex.from_sizes(cut.entries, sizes.sum(1))


def in_turn(which: Tensor, sizes: Tensor, num_labels: int) -> Tensor:
    """Finds the starts of pieces that follow one another in the order of the clients, int64 `[clients, k]`.

    Args:
        which: the labels of each client, all different, int64 `[clients, k]`.
        sizes: how much of each it gets, int64 `[clients, k]`.
        num_labels: C.
    """
    taken = torch.zeros(len(which), num_labels, dtype=torch.int64).scatter(1, which, sizes)
    return (taken.cumsum(0) - taken).gather(1, which)
