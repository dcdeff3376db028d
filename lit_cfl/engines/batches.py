"""Draws the mini-batches of a client: the same for every engine."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from lit_cfl.local_work import Budget


class ShuffledBatches:
    """Mini-batches of positions, in a new order each epoch; the last one of an epoch may be short.

    Args:
        num_examples: n, 1 or more.
        batch_size: B, or `full`.
        rng: of the client's own stream.
    """

    def __init__(self, num_examples: int, batch_size: int | Literal["full"], rng: torch.Generator) -> None:
        self.num_examples, self.rng = num_examples, rng
        self.batch_size = min(batch_size, num_examples) if isinstance(batch_size, int) else num_examples

    def __len__(self) -> int:
        return -(-self.num_examples // self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.randperm(self.num_examples, generator=self.rng).split(self.batch_size))

    def all(self, num_steps: int) -> Tensor:
        """Returns the first so many mini-batches as one table of positions, int64 `[num_steps, B]`; -1 = no example."""
        epochs = -(-num_steps // len(self))
        table = torch.full((epochs, len(self) * self.batch_size), -1)
        for epoch in range(epochs):
            table[epoch, : self.num_examples] = torch.randperm(self.num_examples, generator=self.rng)
        return table.view(-1, self.batch_size)[:num_steps]


def num_steps(budget: Budget, length: int, num_examples: int, batch_size: int | Literal["full"]) -> int:
    """Counts the mini-batches that a client of so many examples trains on under a budget of this length."""
    if not num_examples or budget.unit == "steps":
        return length if num_examples else 0
    return length * (1 if batch_size == "full" else -(-num_examples // batch_size))
