"""Data modules that divide a pool by any partition, combined with any skews."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.datamodules.partition import Partition, Pool
from lit_cfl.datamodules.partition.checks import labels_by_name
from lit_cfl.datamodules.skew import Skew, all_views, apply_views, deal_views, skew_name
from lit_cfl.errors import InputError, Notice


class PooledDataModule(FederatedDataModule, ABC):
    """Data module that divides a pool of examples by a partition, and changes the clients' data by skews.

    A subclass loads the `pool`.

    Args:
        partition: Rule that divides the examples among clients.
        skew: Differences between clusters of clients; several give the product of their clusters.
        copies: Give each cluster of the skew the whole pool, divided among separate clients, instead of sharing one
            pool. The partition's clients are then those of one cluster (StoCFL's rotated MNIST).
        options: Options of `FederatedDataModule`.
    """

    def __init__(
        self, partition: Partition, skew: Skew | Sequence[Skew] = (), copies: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        if not isinstance(partition, Partition):
            raise InputError(f"partition is {partition!r}; give a Partition, such as IID(num_clients=100)")
        self.skew = _skews(skew)
        self.partition, self.copies = partition, copies
        if copies and not self.skew:
            raise InputError(
                "copies is true, but without a skew there are no clusters to copy the data for; add a skew, or set "
                "copies to false"
            )

    @abstractmethod
    def pool(self) -> Pool:
        """Loads the examples before they are divided."""

    @cached_property
    def _pool(self) -> Pool:
        return self.pool()

    def load(self) -> Examples:
        examples = self._pool.examples
        for skew in self.skew:
            if skew.kind == "label":
                examples.require_classes(type(skew).__name__)
        return replace(examples, views=all_views(self.skew, examples.num_labels)) if self.skew else examples

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        if not self.skew:
            return self._partition(rng)
        num_views = len(all_views(self.skew, examples.num_labels))
        if self.copies:
            divisions = [self._partition(rng) for _ in range(num_views)]
            division = join_divisions(divisions)
            views = torch.arange(num_views).repeat_interleave(len(divisions[0].train))
        else:
            division = self._partition(rng)
            views = deal_views(division.true_clusters, num_views)
            _warn_if_too_few(division.true_clusters, num_views)
        kinds = [skew.kind for skew in self.skew if len(skew.views(examples.num_labels)) > 1]
        name = skew_name(division.skew, *kinds)
        return apply_views(replace(division, skew=name), views, num_views, len(examples))

    def _partition(self, rng: np.random.Generator) -> Division:
        with labels_by_name(self._pool.examples.label_names):
            return self.partition.divide(self._pool, rng)


def _skews(given: object) -> tuple[Skew, ...]:
    """Returns a single skew or several skews as a tuple. Raises InputError for anything else."""
    several = given if isinstance(given, list | tuple) else [given]
    for one in several:
        if not isinstance(one, Skew):
            raise InputError(f"skew holds {one!r}; give skews, such as [Rotations([0, 180])]")
    return tuple(several)


def _warn_if_too_few(clusters: Tensor, num_views: int) -> None:
    fewest = int(clusters.unique(return_counts=True)[1].min())
    if fewest < num_views:
        warnings.warn(
            f"the skew has {num_views} views, but a cluster of the partition has only {fewest} clients, so not every "
            "combination occurs",
            Notice,
            stacklevel=2,
        )


def join_divisions(divisions: Sequence[Division]) -> Division:
    """Concatenates the clients of all divisions."""
    train, test = (
        ClientIndex(
            torch.cat([index.values for index in lists]),
            torch.cat([index.starts + before for index, before in zip(lists, _offsets(lists), strict=True)]),
            torch.cat([index.sizes for index in lists]),
        )
        for lists in ([d.train for d in divisions], [d.test for d in divisions])
    )
    clusters = torch.cat([d.true_clusters for d in divisions])
    some = any(d.names for d in divisions)
    names = tuple(name for d in divisions for name in d.names or [""] * len(d.train)) if some else ()
    return Division(train, test, clusters, divisions[0].skew, names)


def _offsets(lists: Sequence[ClientIndex]) -> list[int]:
    sizes = torch.tensor([0, *(len(index.values) for index in lists)])
    return sizes.cumsum(0)[:-1].tolist()
