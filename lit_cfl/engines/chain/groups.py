"""Groups clients into stacks by shape, so that no client's result depends on the other clients.

A client's mini-batches are padded to the next rung of a fixed ladder, and so are its examples in dual form: the rungs
are powers of two and evenly spaced sizes between them. Clients on the same rungs train in one stack, the longest first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_cfl.engines.cohort_fit import CohortFit

_FEWEST = 4  # minimum number of clients in a full stack, to share the overhead of each step's calls
# minimum number of rows of a matrix: a product with one row is computed differently if it is alone in its stack
LEAST = 2


@dataclass(frozen=True, eq=False)
class Shapes:
    """Sizes that determine which clients train in one stack, int64 `[n]` each.

    Args:
        width: Examples per mini-batch, padded.
        size: Number of examples, padded; 0 = not in dual form.
    """

    width: Tensor
    size: Tensor


@dataclass(frozen=True)
class Span:
    """A range of steps in which the same clients of a group train.

    Args:
        steps: Numbers of the steps.
        busy: Number of clients that train in them, the first ones of the group.
        following: Number of these clients that continue after the span.
    """

    steps: range
    busy: int
    following: int


@dataclass(frozen=True, eq=False)
class ClientGroup:
    """Clients that train in one stack.

    Args:
        clients: Positions in the cohort, int64 `[c]`, those with the most steps first.
        steps: Steps of each client `[c]`.
        width, size: See `Shapes`; size 0 = the first layer is not in dual form.
    """

    clients: Tensor
    steps: list[int]
    width: int
    size: int

    def __len__(self) -> int:
        return len(self.clients)

    def spans(self) -> Iterator[Span]:
        """Yields the spans of steps between two changes of the active clients."""
        start, busy = 0, len(self.steps)
        while busy:
            stop, following = self.steps[busy - 1], busy - 1
            while following and self.steps[following - 1] == stop:
                following -= 1
            yield Span(range(start, stop), busy, following)
            start, busy = stop, following

    def stretches(self, long: bool) -> Iterator[list[Span]]:
        """Yields lists of spans that train with the same number of lanes.

        A list has one span or, if `long`, all spans until half of its clients are done.
        """
        found: list[Span] = []
        for span in self.spans():
            if found and not (long and 2 * span.busy > found[0].busy):
                yield found
                found = []
            found.append(span)
        if found:
            yield found


def pad(sizes: Tensor, rungs: int) -> Tensor:
    """Rounds sizes `[n]` up to the next padded size, at least 2.

    Args:
        rungs: Number of padded sizes from one power of two to the next, itself a power of two.
    """
    exponents = torch.frexp(sizes.double()).exponent - 1  # exact, also at powers of two
    distance = 2 ** (exponents - (rungs.bit_length() - 1)).clamp(min=0)
    return (-(-sizes // distance) * distance).clamp(min=LEAST)


def widest_batches(work: CohortFit) -> Tensor:
    """Returns the number of examples in each client's largest mini-batch, int64 `[n]`."""
    owners = torch.arange(len(work)).repeat_interleave(work.steps)
    return torch.zeros(len(work), dtype=torch.int64).scatter_reduce_(0, owners, work.batches.counts, "amax")


def pad_widths(work: CohortFit, batch_size: int | str) -> Tensor:
    """Returns the padded size of each client's largest mini-batch, int64 `[n]`."""
    widths = widest_batches(work)
    fine = pad(widths, 8)
    if not isinstance(batch_size, int):
        return fine
    return torch.where(widths <= batch_size, pad(widths, 2).clamp(max=max(LEAST, batch_size)), fine)


def make_groups(work: CohortFit, shapes: Shapes, limit: "StackLimit") -> Iterator[ClientGroup]:
    """Groups clients of the same shape; each group trains in one stack.

    Args:
        limit: Maximum number of clients in a stack, by their shape.
    """
    keys = torch.stack([shapes.size, shapes.width, -work.steps], 1)
    order = torch.arange(len(work))
    for column in (2, 1, 0):
        order = order[keys[order, column].argsort(stable=True)]
    found, counts = keys[order, :2].unique_consecutive(dim=0, return_counts=True)
    start = 0
    for (size, width), count in zip(found.tolist(), counts.tolist(), strict=True):
        for part in order[start : start + count].split(limit(width, size)):
            yield ClientGroup(part, work.steps[part].tolist(), width, size)
        start += count


class StackLimit:
    """Limits the number of clients in a stack by the amount of data that their steps read and write.

    Args:
        upper: Size of a client's parameters and optimizer state without the first layer's weight.
        first: Size of the first layer's weight and its state.
        inputs: Number of inputs of an example.
        hidden: Number of outputs of the first layer.
        numbers: Maximum count of numbers in a stack.
        lanes: Maximum number of clients in a stack; None = no limit.
    """

    def __init__(
        self, upper: int, first: int, inputs: int, hidden: int, numbers: int, lanes: int | None = None
    ) -> None:
        self._upper, self._first, self._inputs, self._hidden = upper, first, inputs, hidden
        self._numbers, self._lanes = numbers, lanes

    def __call__(self, width: int, size: int) -> int:
        own = size * (size + 2 * self._hidden) if size else self._first + width * self._inputs
        fitting = max(_FEWEST, self._numbers // (self._upper + own))
        return fitting if self._lanes is None else min(fitting, self._lanes)
