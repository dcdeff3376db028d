"""Dividing examples among clients: pure functions over index arrays and an explicit rng, each behind an option."""

from datamodules.partition.base import Partition, Pool, SharedOut, split_each
from datamodules.partition.sizes import IID

__all__ = ["IID", "Partition", "Pool", "SharedOut", "split_each"]
