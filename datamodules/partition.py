"""Dividing examples among clients: pure functions over index arrays and an explicit rng."""

import numpy as np
import torch
from torch import Tensor

from lit_cfl.errors import InputError


def iid(num_examples: int, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
    """Every example to exactly one client, at random; sizes differ by one at most.

    Args:
        num_examples: N.
        num_clients: 1 to N.

    Returns:
        example numbers int64 of each client.
    """
    if not 1 <= num_clients <= num_examples:
        raise InputError(
            f"{num_clients} clients cannot share {num_examples} examples; give 1 to {num_examples} clients"
        )
    order = torch.from_numpy(rng.permutation(num_examples))
    return list(order.tensor_split(num_clients))


def split_each(lists: list[Tensor], share: float, rng: np.random.Generator) -> tuple[list[Tensor], list[Tensor]]:
    """Parts a share of each client's examples, at random.

    Args:
        lists: indices int64 of each client.
        share: 0 to 1; the part has round(share * n) of n examples, but never all of them.

    Returns:
        what stays, and the part taken, for each client.
    """
    kept, taken = [], []
    for one in lists:
        size = min(round(share * len(one)), max(len(one) - 1, 0))
        order = torch.from_numpy(rng.permutation(len(one)))
        taken.append(one[order[:size]])
        kept.append(one[order[size:]])
    return kept, taken
