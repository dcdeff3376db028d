"""The clients' example lists and true clusters, if known, and their conversion to tensors for files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from lit_cfl.data.examples import Examples
from lit_cfl.data.index import ClientIndex
from lit_cfl.notebook import short_repr

_LISTS = ("train", "validation", "test", "withheld")
_PARTS = ("values", "starts", "sizes")
# names of the arrays in partition files
LIST_ARRAYS = (*(f"{name}_{part}" for name in _LISTS for part in _PARTS), "true_clusters")

Split = Literal["train", "validation", "test"]
"""A part of a client's examples."""


@dataclass(frozen=True, eq=False)
class Division:
    """Examples divided among clients.

    Args:
        train: Lists of the clients' training examples.
        test: Lists of their test examples.
        true_clusters: True cluster of each client, int64 `[clients]`, -1 = unknown.
        skew: Difference between true clusters (between clients if there are none): `feature`, `label`, or `other` for
            both, for none, and if it is unknown.
        names: Names of the clients in the source; empty = none.
        cluster_names: Names of the true clusters 0, 1, ... in the source; empty = none.
        is_ordered: Examples are in the order of time, so that validation examples are the last ones for training.
    """

    train: ClientIndex
    test: ClientIndex
    true_clusters: Tensor
    skew: str = "other"
    names: tuple[str, ...] = ()
    cluster_names: tuple[str, ...] = ()
    is_ordered: bool = False


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Examples, the clients' lists of them, and the true cluster of each client if known.

    Args:
        examples: Pool of examples.
        train: Lists of the clients' training examples.
        validation: Lists of their validation examples; may be empty.
        test: Lists of their test examples.
        true_clusters: True cluster of each client, int64 `[clients]`, -1 = unknown. For scoring only; no algorithm
            except an upper bound sees it.
        skew: Skew that the data module was configured to make, before any shift: `feature`, `label` or `other`; see
            `Division`.
        newcomers: True for clients that never take part in training and join after it, bool `[clients]`; None = there
            are none.
        withheld: Lists of training examples that a shift has not released yet; None = there are none.
        partition_seed: Seed of the partition; None = unknown.
        names: Names of the clients in the source (writers, users), for display; empty = none.
        cluster_names: Names of the true clusters 0, 1, ... in the source, for display; empty = none.
    """

    examples: Examples
    train: ClientIndex
    validation: ClientIndex
    test: ClientIndex
    true_clusters: Tensor
    skew: str = "other"
    newcomers: Tensor | None = None
    withheld: ClientIndex | None = None
    partition_seed: int | None = None
    names: tuple[str, ...] = ()
    cluster_names: tuple[str, ...] = ()

    __repr__ = short_repr

    @property
    def num_clients(self) -> int:
        return len(self.train)

    def split(self, name: Split) -> ClientIndex:
        index: ClientIndex = getattr(self, name)
        return index

    @cached_property
    def population(self) -> Tensor:
        """Ids of the clients that take part in training, ascending, int64."""
        if self.newcomers is None:
            return torch.arange(self.num_clients)
        return (~self.newcomers).nonzero().flatten()

    @cached_property
    def num_examples(self) -> Tensor:
        """n_i, the number of training examples, int64 `[clients]`."""
        return self.train.sizes

    @cached_property
    def label_counts(self) -> Tensor:
        """Number of training examples per label, int64 `[clients, labels]`; no columns if labels are numbers or absent.

        Of several labels per example, those above 0.5 count.
        """
        if self.examples.label_kind == "multi-label":
            held = (self.examples.targets(self.train.entries) > 0.5).long().cpu()
            return held.new_zeros(self.num_clients, held.shape[1]).index_add_(0, self.train.owners, held)
        labels = self.examples.num_labels
        if not labels:
            return torch.zeros(self.num_clients, 0, dtype=torch.int64)
        cell = self.train.owners * labels + self.examples.targets(self.train.entries).cpu()
        return torch.bincount(cell, minlength=self.num_clients * labels).view(self.num_clients, labels)

    def of_lists(self, change: Callable[[ClientIndex], ClientIndex]) -> "FederatedData":
        """Applies a function to each kind of list: training, validation, test and withheld examples."""
        withheld = None if self.withheld is None else change(self.withheld)
        lists: dict[str, Any] = {
            "train": change(self.train),
            "validation": change(self.validation),
            "test": change(self.test),
        }
        return replace(self, withheld=withheld, **lists)

    def offset_clients(self, clients: int) -> "FederatedData":
        """Increases all client ids by `clients`; the new lower ids have no data and empty names."""
        unknown = torch.full((clients,), -1)
        lists = self.of_lists(lambda index: index.offset_clients(clients))
        names = ("",) * clients + self.names if self.names else ()
        return replace(lists, true_clusters=torch.cat([unknown, self.true_clusters]), newcomers=None, names=names)

    def subset(self, clients: Tensor, max_examples: int | None = None) -> "FederatedData":
        """Selects clients, renumbered from 0, with at most `max_examples` per split."""
        size = 2**62 if max_examples is None else max_examples
        newcomers = None if self.newcomers is None else self.newcomers[clients]
        lists = self.of_lists(lambda index: index.select(clients).first(size))
        names = tuple(self.names[client] for client in clients.tolist()) if self.names else ()
        return replace(lists, true_clusters=self.true_clusters[clients], newcomers=newcomers, names=names)


def lists_of(data: FederatedData) -> dict[str, Tensor]:
    """Returns the clients' example numbers and the true clusters as named tensors; equal lists give equal tensors."""
    lists = {name: index.compact() for name in _LISTS if (index := getattr(data, name)) is not None}
    tensors = {f"{name}_{part}": getattr(index, part) for name, index in lists.items() for part in _PARTS}
    return tensors | {"true_clusters": data.true_clusters}


def with_lists(data: FederatedData, tensors: Mapping[str, Tensor]) -> FederatedData:
    """Returns the data with other lists, given as tensors by name. Raises KeyError if a list is missing."""
    present = [name for name in _LISTS if name != "withheld" or f"{name}_values" in tensors]
    lists: dict[str, Any] = {name: ClientIndex(*(tensors[f"{name}_{part}"] for part in _PARTS)) for name in present}
    return replace(data, true_clusters=tensors["true_clusters"], **lists)
