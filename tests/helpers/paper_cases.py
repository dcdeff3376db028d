"""Makes pools of examples with the papers' ten labels, and summarises the data of clients."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from lit_cfl.data import Division, Examples
from lit_cfl.datamodules.partition import Partition, Pool
from lit_cfl.datamodules.partition.base import label_counts

DATA = Path(__file__).parents[3] / "shared/data"


def pool_of(train: Tensor, test: Tensor | None = None, num_labels: int = 10) -> Pool:
    labels = train if test is None else torch.cat([train, test])
    return Pool(Examples(torch.zeros(len(labels), 1), labels, num_labels), len(train))


def balanced(per_label: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).permutation(np.repeat(np.arange(10), per_label)))


def real(name: str) -> Pool:
    if not (DATA / name).is_dir():
        pytest.skip(f"no real data in {DATA / name}")
    parts = [pq.read_table(next((DATA / name).glob(f"{split}-*")), columns=["label"]) for split in ("train", "test")]
    return pool_of(*(torch.tensor(part["label"].to_pylist()) for part in parts))


def divided(partition: Partition, pool: Pool, seed: int = 0) -> Division:
    return partition.divide(pool, np.random.default_rng(seed))


def all_of(division: Division) -> Tensor:
    return torch.cat([division.train.entries, division.test.entries])


def sizes_of(division: Division) -> Tensor:
    return division.train.sizes + division.test.sizes


def labels_by_client(division: Division, pool: Pool) -> list[set[int]]:
    has = sum(label_counts(index, pool.labels, 10) for index in (division.train, division.test))
    return [set(row.nonzero().flatten().tolist()) for row in has]
