"""The base classes of partitions, and the rules for clients' test data."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.datamodules.partition.checks import require_partition, require_share, require_trained
from lit_cfl.errors import InputError, Notice
from lit_cfl.options import FROM_1, PART, bounded, require_options

TestRule = float | Literal["alike", "shared", "everything"] | None


@dataclass(frozen=True, eq=False)
class Pool:
    """A data set before it is divided.

    Args:
        examples: All examples, those of the source's training part first.
        num_train: Number of examples in the training part; the rest is the source's own test part, which may be empty.
        owner: Natural client of each example, int64 `[N]` from 0, or None if the source names none.
        names: Names of the natural clients, by number; empty = none.
        is_ordered: Examples are in the order of time, so that a share of a client's examples is its last ones.
    """

    examples: Examples
    num_train: int
    owner: Tensor | None = None
    names: tuple[str, ...] = ()
    is_ordered: bool = False

    @property
    def labels(self) -> Tensor:
        """The labels in their stored form `[N]`."""
        return self.examples.labels

    @property
    def has_test(self) -> bool:
        return self.num_train < len(self.examples)


@dataclass(frozen=True)
class Partition(ABC):
    """A rule that divides a pool among clients."""

    skew: ClassVar[str] = "other"  # kind of difference between clients: feature, label or other

    def __post_init__(self) -> None:
        require_options(self, f"{type(self).__name__}: ")

    @abstractmethod
    def divide(self, pool: Pool, rng: np.random.Generator) -> Division:
        """Divides a pool among clients, and finds their true clusters.

        The indices of the division are numbers of examples in the pool, without views.
        """


@dataclass(frozen=True)
class PartitionWithTestRule(Partition):
    """A partition that offers several rules for the clients' test data.

    Args:
        num_clients: Number of clients, 1 or more.
        test: Share (0 to below 1): the source's training and test part are divided together, and this share of each
            client's examples is its test data; `alike`: the source's test part, divided in proportion to the training
            examples of each label; `shared`: every client is tested on all of the source's test examples whose labels
            its cluster trains on (StoCFL); `everything`: every client is tested on the source's whole test part, under
            its own view; null: `alike` if the source has a test part, otherwise 0.2.
        only_train: With a share as `test`, leave out the source's test part (StoCFL's Table 2).
    """

    by_label: ClassVar[bool] = True  # True if `shares` depends on the labels

    num_clients: int = bounded(100, FROM_1)
    test: TestRule = bounded(None, PART)
    only_train: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.only_train and not isinstance(self.test, float | int):
            raise InputError(
                f"only_train needs a share as test, but test is {self.test!r}; give one, such as test: 0.2"
            )

    @abstractmethod
    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        """Divides examples among clients: returns each client's positions in `labels` `[N]`."""

    def clusters(self, shares: ClientIndex, num_labels: int) -> Tensor:
        """Finds the true cluster of each client, int64 `[clients]`; -1 if the partition makes none."""
        return torch.full((len(shares),), -1)

    def divide(self, pool: Pool, rng: np.random.Generator) -> Division:
        test = self.test if self.test is not None else "alike" if pool.has_test else 0.2
        if isinstance(test, str) and not pool.has_test:
            raise InputError(f"test is {test!r}, but this source has no test part; give a share, such as test: 0.2")
        if self.by_label:
            pool.examples.require_classes(type(self).__name__)
        labels, num_labels = pool.labels, pool.examples.num_labels
        if pool.examples.label_kind != "classes":
            labels, num_labels = torch.zeros(len(labels), dtype=torch.int64), 1  # all examples count as one label
        if isinstance(test, float | int):
            whole = self._check_shares(labels[: pool.num_train] if self.only_train else labels, num_labels, rng)
            train, own = split_each(whole, float(test), rng, last=pool.is_ordered)
            return self._division(train, own, self.clusters(whole, num_labels))
        of_train, of_test = labels[: pool.num_train], labels[pool.num_train :]
        require_trained(of_train, of_test)
        train = self._check_shares(of_train, num_labels, rng)
        clusters = self.clusters(train, num_labels)
        counts = label_counts(train, labels, num_labels)
        if test == "alike":
            found = divide_in_proportion(counts, of_test, rng)
        elif test == "shared":
            found = find_same_labels(counts, clusters, of_test)
        else:
            starts = torch.zeros(len(train), dtype=torch.int64)
            found = ClientIndex(torch.arange(len(of_test)), starts, torch.full_like(starts, len(of_test)))
        return self._division(train, replace(found, values=found.values + pool.num_train), clusters)

    def _division(self, train: ClientIndex, test: ClientIndex, clusters: Tensor) -> Division:
        alike = bool((clusters == 0).all())  # with one true cluster, clients do not differ
        return Division(train, test, clusters, "other" if alike else self.skew)

    def _check_shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        shares = self.shares(labels, num_labels, rng)
        require_partition(shares, len(labels))
        return shares


def split_each(
    index: ClientIndex, share: float, rng: np.random.Generator, name: str = "test", last: bool = False
) -> tuple[ClientIndex, ClientIndex]:
    """Splits off a share of each client's examples, at random. Warns if the share rounds to 0 for all clients.

    Args:
        index: Index of each client.
        share: Share to split off, 0 to below 1: round(share * n) of n examples, but never all of them.
        name: Name of the option that sets the share.
        last: Split off the examples with the highest numbers, instead of random ones.

    Returns:
        the remaining examples, and those split off, of each client.
    """
    require_share("the share of each client's examples", share)
    if share == 0:
        return index, ClientIndex.empty(len(index))
    mixed = _arrange_lists(index, index.entries.argsort()) if last else shuffle_lists(index, rng)
    taken = (share * mixed.sizes.double()).round().long().minimum(mixed.sizes - 1).clamp(min=0)
    if not taken.any():
        warnings.warn(f"{name} is {share}, {explain_empty_share(mixed.sizes)}", Notice, stacklevel=3)
    if last:
        return mixed.first(mixed.sizes - taken).pack(), mixed.after(mixed.sizes - taken).pack()
    return mixed.after(taken).pack(), mixed.first(taken).pack()


def explain_empty_share(sizes: Tensor) -> str:
    """Explains why a share of examples rounds to 0 for clients of these sizes, and which share would not."""
    most = int(sizes.max()) if len(sizes) else 0
    remedy = f"give more than {0.5 / most:.3g}" if most > 1 else "a client keeps at least one to train on"
    return f"which rounds to no example of any client, as the largest has {most}; {remedy}"


def shuffle_lists(index: ClientIndex, rng: np.random.Generator) -> ClientIndex:
    """Shuffles the order of the examples within each list."""
    return _arrange_lists(index, torch.from_numpy(rng.permutation(len(index.entries))))


def _arrange_lists(index: ClientIndex, order: Tensor) -> ClientIndex:
    """Arranges the examples within each list in the order of these positions in `entries`, int64 `[M]`."""
    order = order[index.owners[order].argsort(stable=True)]
    return ClientIndex.from_sizes(index.entries[order], index.sizes)


def label_counts(index: ClientIndex, labels: Tensor, num_labels: int) -> Tensor:
    """Counts the examples of each label that each client has, int64 `[clients, labels]`."""
    cells = index.owners * num_labels + labels[index.entries]
    return torch.bincount(cells, minlength=len(index) * num_labels).view(len(index), num_labels)


def divide_in_proportion(counts: Tensor, labels: Tensor, rng: np.random.Generator) -> ClientIndex:
    """Divides the examples of each label at random, in proportion to the clients' counts of that label.

    Args:
        counts: Examples of each label per client, int64 `[clients, labels]`.
        labels: Labels of the examples to divide, int64 `[n]`. Examples of a label that no client has are left out.
    """
    owners = torch.full((len(labels),), -1)
    for label in labels.unique().tolist():
        weights = counts[:, label].double()
        if not weights.any():
            continue
        where = torch.from_numpy(rng.permutation((labels == label).nonzero().flatten().numpy()))
        owners[where] = torch.repeat_interleave(torch.arange(len(counts)), apportion(weights, len(where)))
    return ClientIndex.from_owners(owners, len(counts))


def apportion(weights: Tensor, total: int) -> Tensor:
    """Divides `total` into integers in proportion to the weights, by largest remainders; ties go to the first weight.

    Args:
        weights: Weights `[n]`, 0 or more, not all 0.
        total: Sum of the integers, 0 or more.
    """
    exact = weights / weights.sum() * total
    whole = exact.floor().long()
    missing = total - int(whole.sum())
    whole[(exact - whole).argsort(descending=True, stable=True)[:missing]] += 1
    return whole


def find_same_labels(counts: Tensor, clusters: Tensor, labels: Tensor) -> ClientIndex:
    """Finds for each client all examples with a label of its cluster, or of the client if it has no cluster.

    Clients with the same labels share one slice.

    Args:
        counts: Examples of each label per client, int64 `[clients, labels]`.
        clusters: Cluster of each client, int64 `[clients]`, -1 = none.
        labels: Labels of the examples, int64 `[n]`.
    """
    has = counts > 0
    for cluster in clusters[clusters >= 0].unique():
        mine = clusters == cluster
        has[mine] = has[mine].any(0)
    sets, set_of = has.unique(dim=0, return_inverse=True)
    index = ClientIndex.from_lists([wanted[labels].nonzero().flatten() for wanted in sets])
    return ClientIndex(index.values, index.starts[set_of], index.sizes[set_of])
