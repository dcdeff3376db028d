"""Finds clients that BatchNorm cannot train: those with a mini-batch of a single example.

A channel has no variance if it has a single value. After a convolution it has one value per pixel, so a batch of a
single example may be enough.
"""

import copy

import torch
from lightning import LightningModule
from torch import Tensor, nn

from lit_cfl.data import Examples
from lit_cfl.engines.mini_batches import BatchSize, LastBatch, steps_of_epoch
from lit_cfl.engines.task_protocol import losses_of
from lit_cfl.errors import InputError, count_noun

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
_SIZES = range(2, 129)  # batch sizes that a message may suggest
_NAMED = 5


def has_batch_norm(module: nn.Module) -> bool:
    """Returns whether a module has a layer that normalises by batch statistics (BatchNorm)."""
    return any(isinstance(layer, BatchNorm) for layer in module.modules())


def rejects_single_example(module: LightningModule, examples: Examples) -> bool:
    """Tests on a copy of the module whether a BatchNorm layer fails on a batch of one example."""
    if not has_batch_norm(module):
        return False
    copied = copy.deepcopy(module).cpu().double()
    try:
        with torch.no_grad():
            losses_of(copied, examples.batch(torch.zeros(1, dtype=torch.int64), torch.float64, "cpu"))
    except Exception as error:  # other errors are reported by training or scoring
        return "more than 1 value per channel" in str(error)
    return False


def find_single_batches(sizes: Tensor, steps: Tensor, batch_size: BatchSize, last: LastBatch) -> Tensor:
    """Returns which clients have a mini-batch of a single example in these steps, bool `[n]`.

    Args:
        sizes: Number of examples of each client, int64 `[n]`.
        steps: Number of mini-batches that each client trains on, int64 `[n]`.
        batch_size, last: See `steps_of_epoch`.
    """
    full = sizes if batch_size == "full" else sizes.clamp(max=batch_size)
    rest = (sizes % full.clamp(min=1) == 1) & (steps >= steps_of_epoch(sizes, batch_size, last))
    return (steps > 0) & ((full == 1) | (rest if last == "keep" else torch.zeros_like(rest)))


def require_no_single_batch(
    clients: Tensor, steps: Tensor, sizes: Tensor, batch_size: BatchSize, last: LastBatch
) -> None:
    """Raises InputError for the first client with a mini-batch of one example.

    Args:
        clients: Ids, int64 `[n]`.
        steps, sizes, batch_size, last: See `find_single_batches`.
    """
    alone = find_single_batches(sizes, steps, batch_size, last)
    if not alone.any():
        return
    first = int(alone.nonzero()[0])
    which = f"one of its {int(sizes[first])} examples" if sizes[first] > 1 else "its only example"
    raise InputError(
        f"client {int(clients[first])} cannot be trained: with batch size {batch_size}, {which} "
        f"is alone in a mini-batch, where BatchNorm has no variance; {_remedies(sizes, batch_size, last)}"
    )


def _remedies(sizes: Tensor, batch_size: BatchSize, last: LastBatch) -> str:
    lone, several = int((sizes == 1).sum()), sizes[sizes > 1].unique()
    ways = []
    if not find_single_batches(several, several, batch_size, "join").any():
        ways.append("set local.last_batch to join")
    good = [size for size in _SIZES if not find_single_batches(several, several, size, last).any()]
    if good:
        near = sorted(good, key=lambda size: abs(size - batch_size) if isinstance(batch_size, int) else size)
        ways.append(f"set local.batch_size to {', '.join(map(str, sorted(near[:_NAMED])))}")
    setting = ", or ".join(ways) or "set local.batch_size to 2 or more and local.last_batch to join"
    if lone:  # no setting helps these clients
        # a partition has its own share of test examples, whose default is not that of the data module
        natural = "such as by --data.partition Natural --data.partition.min_examples 10 --data.partition.test 0.2"
        left_out = f"leave out the {count_noun(lone, 'client')} with a single example ({natural})"
        others = find_single_batches(several, several, batch_size, last).any()
        setting = f"{left_out}, and for the other clients {setting}" if others else left_out
    return f"{setting}{';' if lone else ','} or take GroupNorm"
