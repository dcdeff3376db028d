"""Makes pools of examples that have only labels, and summarises the data of clients."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.datamodules.partition import Partition, Pool
from lit_cfl.datamodules.partition.base import label_counts

few = settings(deadline=None, derandomize=True, max_examples=30)
seeds = st.integers(0, 2**32 - 1)


def labels_of(counts: Sequence[int], seed: int = 0) -> Tensor:
    """Makes shuffled labels with `counts[k]` examples of label k."""
    return torch.from_numpy(np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts)))


def pool_of(
    labels: Tensor, test: Tensor | None = None, owner: Tensor | None = None, num_labels: int | None = None
) -> Pool:
    every = labels if test is None else torch.cat([labels, test])
    number = int(every.max()) + 1 if num_labels is None else num_labels
    return Pool(Examples(torch.zeros(len(every), 1), every, number), len(labels), owner)


def divided(partition: Partition, pool: Pool, seed: int = 0) -> Division:
    return partition.divide(pool, np.random.default_rng(seed))


def held(division: Division) -> list[int]:
    """Returns the sorted indices of all examples that clients have, with repetitions."""
    return torch.cat([division.train.entries, division.test.entries]).sort().values.tolist()


def counts_in(index: ClientIndex, pool: Pool) -> Tensor:
    """Counts the examples of each label that each client has, int64 `[clients, labels]`."""
    return label_counts(index, pool.labels, pool.examples.num_labels)
