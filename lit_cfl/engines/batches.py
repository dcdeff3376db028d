"""Draws the mini-batches of a cohort: the same in every way of training, and in any company."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lit_cfl.local_work import Budget

BatchSize = int | Literal["full"]
LastBatch = Literal["keep", "drop", "join"]


def steps_of_epoch(sizes: Tensor, batch_size: BatchSize, last: LastBatch = "keep") -> Tensor:
    """Counts the mini-batches of one epoch of each client, int64 `[n]`; 0 where a client has no example.

    Args:
        sizes: examples of each client, int64 `[n]`, 0 or more.
        batch_size: B, or `full`.
        last: what becomes of the examples that do not fill a last mini-batch: `keep` makes a short one of them, `drop`
            leaves them out until the next epoch, `join` puts them into the mini-batch before. A client of fewer than B
            examples has one mini-batch all the same.
    """
    if batch_size == "full":
        return sizes.clamp(max=1)
    whole = sizes // batch_size if last != "keep" else -(-sizes // batch_size)
    return whole.maximum(sizes.clamp(max=1))


def count_steps(
    budget: Budget, lengths: Tensor, sizes: Tensor, batch_size: BatchSize, last: LastBatch = "keep"
) -> Tensor:
    """Counts the mini-batches that each client trains on, int64 `[n]`.

    Args:
        budget: its unit counts.
        lengths: of the budget, for each client, int64 `[n]`.
        sizes, batch_size, last: see `steps_of_epoch`.
    """
    in_epoch = steps_of_epoch(sizes, batch_size, last)
    return lengths * (in_epoch if budget.unit == "epochs" else in_epoch.clamp(max=1))


def draw_batches(
    seeds: Sequence[int], sizes: Tensor, steps: Tensor, batch_size: BatchSize, last: LastBatch = "keep"
) -> Tensor:
    """Draws the mini-batches of all clients as one table, each epoch of a client in a new order.

    Args:
        seeds: of each client's own stream `[n]`.
        sizes: examples of each client, int64 `[n]`, 1 or more.
        steps: mini-batches of each client, int64 `[n]`.
        batch_size, last: see `steps_of_epoch`.

    Returns:
        positions within the client's own examples, int64 `[sum of steps, widest mini-batch]`, client by client; -1 = no
        example, these come last.
    """
    in_epoch = steps_of_epoch(sizes, batch_size, last)
    epochs = -(-steps // in_epoch)
    drawn = _draw_orders(seeds, sizes, epochs)
    owners = torch.arange(len(steps)).repeat_interleave(steps)
    numbers = torch.arange(len(owners)) - (steps.cumsum(0) - steps)[owners]  # of the step, within its client
    size, of_epoch = sizes[owners], in_epoch[owners]
    full = size if batch_size == "full" else size.clamp(max=batch_size)
    first = numbers % of_epoch * full
    ends_epoch = (numbers % of_epoch == of_epoch - 1) & (last != "drop")
    length = torch.where(ends_epoch, size - first, full)
    begin = ((epochs * sizes).cumsum(0) - epochs * sizes)[owners] + numbers // of_epoch * size + first
    columns = torch.arange(int(length.max()) if len(length) else 0)
    table = drawn[(begin[:, None] + columns).clamp_(max=max(0, len(drawn) - 1))]
    return table.masked_fill_(columns >= length[:, None], -1)


def _draw_orders(seeds: Sequence[int], sizes: Tensor, epochs: Tensor) -> Tensor:
    """Draws the order of the examples in each epoch of each client, one after the other, int64 `[sum]`."""
    drawn = torch.empty(int((epochs * sizes).sum()), dtype=torch.int64)
    rng, start = torch.Generator(), 0
    for seed, size, count in zip(seeds, sizes.tolist(), epochs.tolist(), strict=True):
        rng.manual_seed(seed)
        for _ in range(count):
            torch.randperm(size, generator=rng, out=drawn[start : start + size])
            start += size
    return drawn
