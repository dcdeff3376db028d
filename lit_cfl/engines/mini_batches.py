"""The options of local training, and the mini-batches that follow from them.

Mini-batches depend neither on the way of training nor on the rest of the cohort.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_cfl.devices import send
from lit_cfl.engines.steps import draw_permutations
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget

BatchSize = int | Literal["full"]
LastBatch = Literal["keep", "drop", "join"]
Rates = tuple[float, ...]  # learning rates of the optimizer's parameter groups, in their order


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains in a round.

    Args:
        epochs: E, full passes over the client's training examples, 1 or more.
        batch_size: B, examples per mini-batch, or `full`.
        last_batch: Treatment of the examples that do not fill the last mini-batch of an epoch: `keep` makes a short one
            of them, `drop` leaves them out until the next epoch, `join` puts them into the previous mini-batch. A
            client with fewer than B examples always has one mini-batch.
        gradient_clip: Maximum norm of each client's gradient; None = no clipping.
        on_divergence: Reaction to a NaN or infinite loss: `stop` the run, or `skip` the client and count it.
        lr_schedule: Learning rates over rounds: any scheduler of `torch.optim.lr_scheduler` that needs no metric, with
            its options except the optimizer. It counts rounds and starts from the optimizer's rates. None = every
            round has the optimizer's rates.
    """

    epochs: int = 1
    batch_size: BatchSize = 10
    last_batch: LastBatch = "keep"
    gradient_clip: float | None = None
    on_divergence: Literal["stop", "skip"] = "stop"
    lr_schedule: Callable[[Optimizer], LRScheduler] | None = None

    def __post_init__(self) -> None:
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise InputError(f"gradient_clip is {self.gradient_clip}; give a number above 0, or null for none")
        if self.epochs < 1 or self.epochs % 1:
            raise InputError(f"epochs is {self.epochs}; give 1 or more, a whole number")
        Budget(self.epochs, "epochs", self.batch_size)  # checks the batch size

    @property
    def budget(self) -> Budget:
        return Budget(self.epochs, "epochs", self.batch_size)

    def batch_size_of(self, budget: Budget) -> BatchSize:
        """Returns the batch size of a fit with this budget."""
        return budget.batch_size or self.batch_size

    def count_steps(self, budget: Budget, lengths: Tensor, sizes: Tensor) -> Tensor:
        """Counts the mini-batches that each client trains on, int64 `[n]`; 0 for a client without examples.

        Args:
            budget: Budget of the fit, except its length.
            lengths: The budget's length for each client, int64 `[n]`.
            sizes: Number of examples of each client, int64 `[n]`.
        """
        in_epoch = steps_of_epoch(sizes, self.batch_size_of(budget), self.last_batch)
        return lengths * (in_epoch if budget.unit == "epochs" else in_epoch.clamp(max=1))

    def count_examples(self, budget: Budget, lengths: Tensor, sizes: Tensor) -> Tensor:
        """Counts the examples in all mini-batches of each client, repeats included, int64 `[n]`; see `count_steps`."""
        steps, batch_size = self.count_steps(budget, lengths, sizes), self.batch_size_of(budget)
        in_epoch = steps_of_epoch(sizes, batch_size, self.last_batch)
        full = sizes if batch_size == "full" else sizes.clamp(max=batch_size)
        of_epoch = in_epoch * full if self.last_batch == "drop" else sizes
        epochs = steps // in_epoch.clamp(min=1)
        return epochs * of_epoch + (steps - epochs * in_epoch) * full


def steps_of_epoch(sizes: Tensor, batch_size: BatchSize, last: LastBatch = "keep") -> Tensor:
    """Counts the mini-batches in an epoch of each client, int64 `[n]`; 0 for a client without examples.

    Args:
        sizes: Number of examples of each client, int64 `[n]`, 0 or more.
        batch_size: B, or `full`.
        last: Treatment of the examples that do not fill the last mini-batch, see `LocalTraining`.
    """
    if batch_size == "full":
        return sizes.clamp(max=1)
    whole = sizes // batch_size if last != "keep" else -(-sizes // batch_size)
    return whole.maximum(sizes.clamp(max=1))


@dataclass(frozen=True, eq=False)
class MiniBatches:
    """The mini-batches of a cohort, client by client, as slices of one list of examples.

    Args:
        drawn: The list: positions within a client's own examples, int64 `[M]`.
        begins: Position in the list at which each mini-batch begins, int64 `[S]`, on the CPU.
        counts: Number of examples in each mini-batch, 1 or more, int64 `[S]`, on the CPU.
    """

    drawn: Tensor
    begins: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.begins)

    def on(self, device: torch.device | str) -> "MiniBatches":
        """Returns the same mini-batches with `drawn` on a device."""
        return replace(self, drawn=send(self.drawn, device))

    def lists(self, which: slice = slice(None)) -> list[Tensor]:
        """Returns the positions of each mini-batch's examples, int64."""
        begins, counts = self.begins[which].tolist(), self.counts[which].tolist()
        return [self.drawn[begin : begin + count] for begin, count in zip(begins, counts, strict=True)]

    def table(self, which: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Arranges the positions of mini-batches' examples in a padded table.

        Args:
            which: Numbers of the mini-batches, int64 `[...]`, on the CPU.
            width: Number of places for each mini-batch, at least the number of its examples.

        Returns:
            the positions `[..., width]`, and which places hold an example, bool; the others repeat the first example.
        """
        device = self.drawn.device
        begins, counts = send(torch.stack([self.begins[which], self.counts[which]]), device)[..., None]
        places = torch.arange(width, device=device)
        present = places < counts
        return self.drawn[begins + places * present], present


def draw_batches(
    seeds: Sequence[int],
    sizes: Tensor,
    steps: Tensor,
    batch_size: BatchSize,
    last: LastBatch = "keep",
) -> MiniBatches:
    """Draws the mini-batches of all clients; each epoch of a client has a new order.

    Args:
        seeds: Seed of each client's own stream `[n]`.
        sizes: Number of examples of each client, int64 `[n]`, 1 or more.
        steps: Number of mini-batches of each client, int64 `[n]`.
        batch_size, last: See `steps_of_epoch`.
    """
    in_epoch = steps_of_epoch(sizes, batch_size, last)
    epochs = -(-steps // in_epoch)
    owners = torch.arange(len(steps)).repeat_interleave(steps)
    numbers = torch.arange(len(owners)) - (steps.cumsum(0) - steps)[owners]  # number of each step within its client
    size, of_epoch = sizes[owners], in_epoch[owners]
    full = size if batch_size == "full" else size.clamp(max=batch_size)
    first = numbers % of_epoch * full
    ends_epoch = (numbers % of_epoch == of_epoch - 1) & (last != "drop")
    begins = ((epochs * sizes).cumsum(0) - epochs * sizes)[owners] + numbers // of_epoch * size + first
    counts = torch.where(ends_epoch, size - first, full)
    return MiniBatches(draw_permutations(seeds, sizes, epochs), begins, counts)
