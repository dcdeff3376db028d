"""Refuses mini-batches of one example that BatchNorm cannot train on, in every engine alike and before it trains.

A channel has no variance where it has one value. After a convolution it has one for each place of an image, so a
single example may do.
"""

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from lightning import LightningModule
from torch.nn.modules.batchnorm import _BatchNorm

from lit_cfl.data import Examples
from lit_cfl.engines.task_protocol import losses_of
from lit_cfl.errors import InputError


def refuses_single(module: LightningModule, examples: Examples) -> bool:
    """Says whether a BatchNorm layer of the module cannot train on a batch of one example; tries it on a copy."""
    if not any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        return False
    copied = copy.deepcopy(module).cpu().double()
    try:
        with torch.no_grad():
            losses_of(copied, examples.batch(torch.zeros(1, dtype=torch.int64), torch.float64, "cpu"))
    except Exception as error:  # any other reason is found by what trains or scores the module
        return "more than 1 value per channel" in str(error)
    return False


def meets_single(num_steps: int, num_examples: int, batch_size: int | Literal["full"]) -> bool:
    """Says whether one of the first so many mini-batches of a client has a single example."""
    size = min(batch_size, num_examples) if isinstance(batch_size, int) else num_examples
    if not size or not num_steps:
        return False
    return size == 1 or (num_examples % size == 1 and num_steps >= -(-num_examples // size))


def require_no_single(
    clients: Sequence[int], steps: Sequence[int], sizes: Sequence[int], batch_size: int | Literal["full"]
) -> None:
    """Raises InputError for the first client that meets a mini-batch of one example.

    Args:
        clients: ids.
        steps: mini-batches that each trains on.
        sizes: examples of each.
        batch_size: B, or `full`.
    """
    for client, count, size in zip(clients, steps, sizes, strict=True):
        if meets_single(count, size, batch_size):
            raise InputError(
                f"client {client} cannot be trained: with batch size {batch_size}, one of its {size} example(s) is "
                "alone in a mini-batch, where BatchNorm has no variance; choose another batch size or larger clients, "
                "or take GroupNorm"
            )
