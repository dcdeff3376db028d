"""Partitions that look at no label: equal shares, or shares of unequal size."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from datamodules.partition.base import SharedOut
from lit_cfl.data import ClientIndex
from lit_cfl.errors import InputError


@dataclass(frozen=True)
class IID(SharedOut):
    """Every example to exactly one client, at random; sizes differ by one at most."""

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        return iid(len(labels), self.num_clients, rng)

    def clusters(self, shares: ClientIndex) -> Tensor:
        return torch.zeros(len(shares), dtype=torch.int64)  # all alike


def iid(num_examples: int, num_clients: int, rng: np.random.Generator) -> ClientIndex:
    """Every example to exactly one client, at random; sizes differ by one at most.

    Args:
        num_examples: N.
        num_clients: 1 to N.
    """
    if not 1 <= num_clients <= num_examples:
        raise InputError(
            f"{num_clients} clients cannot share {num_examples} examples; give 1 to {num_examples} clients"
        )
    order = torch.from_numpy(rng.permutation(num_examples))
    sizes = torch.full((num_clients,), num_examples // num_clients)
    sizes[: num_examples % num_clients] += 1
    return ClientIndex.from_sizes(order, sizes)
