"""Data modules that divide a pool by any partition, combined with any skews."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.datamodules.federated import FederatedDataModule, list_of
from lit_cfl.datamodules.partition import Partition, Pool
from lit_cfl.datamodules.skew import Skew, all_views, apply_views, deal_views, skew_name
from lit_cfl.errors import InputError


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
        self.skew = list_of(Skew, "skew", skew)
        self.partition, self.copies = partition, copies
        if copies and not self.skew:
            raise InputError("copies is true, but without a skew there are no clusters to copy for; add a skew")

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
        kinds = [skew.kind for skew in self.skew if len(skew.views(examples.num_labels)) > 1]
        name = skew_name(division.skew, *kinds)
        return apply_views(replace(division, skew=name), views, num_views, len(examples))

    def _partition(self, rng: np.random.Generator) -> Division:
        return replace(self.partition.divide(self._pool, rng), is_ordered=self._pool.is_ordered)


def join_divisions(divisions: Sequence[Division]) -> Division:
    """Concatenates the clients of all divisions."""
    train, test = (_join([getattr(one, name) for one in divisions]) for name in ("train", "test"))
    clusters = torch.cat([one.true_clusters for one in divisions])
    named = any(one.names for one in divisions)
    names = tuple(name for one in divisions for name in one.names or [""] * len(one.train)) if named else ()
    is_ordered = all(one.is_ordered for one in divisions)
    return Division(train, test, clusters, divisions[0].skew, names, is_ordered=is_ordered)


def _join(lists: Sequence[ClientIndex]) -> ClientIndex:
    before = accumulate((len(one.values) for one in lists), initial=0)
    starts = [one.starts + offset for one, offset in zip(lists, before, strict=False)]
    values, sizes = (torch.cat([getattr(one, name) for one in lists]) for name in ("values", "sizes"))
    return ClientIndex(values, torch.cat(starts), sizes)
