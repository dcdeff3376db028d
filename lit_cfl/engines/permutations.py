"""Draws the permutations of `torch.randperm` for many clients: one by one on a CPU, all at once on a GPU.

`torch.randperm` shuffles as Fisher and Yates did: for i from 0 it exchanges the numbers at i and i + r % (n - i), where
r is the generator's next 32 bits. The steps depend on each other, the clients do not. So each client's generator draws
its bits in one call, and a GPU shuffles all permutations of similar lengths together, one step of all of them at a
time: for 1,024 clients of 60 examples and 10 epochs this leaves the CPU a tenth of the work. A few permutations of one
length are drawn one by one, and so are all if this PyTorch shuffles in another way. A CPU takes as long either way.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from lit_cfl.devices import send

_TOGETHER = 64  # permutations: a step's calls for fewer take longer than drawing these one by one
_ANY_64_BITS = -(2**63)


class Permutations:
    """Permutations of clients' examples, several per client.

    Args:
        seeds: Seed of each client's generator `[n]`.
        sizes: Length of each client's permutations, int64 `[n]`, 1 or more.
        counts: Number of each client's permutations, int64 `[n]`.
        together: True to shuffle many permutations of similar lengths together.
    """

    def __init__(self, seeds: Sequence[int], sizes: Tensor, counts: Tensor, together: bool = False) -> None:
        self._sizes, self._counts = sizes, counts
        ends = (sizes * counts).cumsum(0)
        self._starts, total = ends - sizes * counts, int(ends[-1]) if len(ends) else 0
        self._drawn = torch.empty(total + 1, dtype=torch.int64)  # one more place, for discarded values
        self._shuffles: list[tuple[Tensor, Tensor]] = []  # clients, and their random bits
        rng = torch.Generator()
        if not (together and _shuffles_as_expected()):
            self._draw_each(seeds, torch.arange(len(sizes)), rng)
            return
        for clients in _group_by_size(sizes, counts):
            if int(counts[clients].sum()) >= _TOGETHER:
                self._shuffles.append((clients, self._bits(seeds, clients, rng)))
            else:
                self._draw_each(seeds, clients, rng)

    def _draw_each(self, seeds: Sequence[int], clients: Tensor, rng: torch.Generator) -> None:
        each = (part[clients].tolist() for part in (self._sizes, self._counts, self._starts))
        for client, size, count, start in zip(clients.tolist(), *each, strict=True):
            rng.manual_seed(seeds[client])
            for place in range(start, start + count * size, size):
                torch.randperm(size, generator=rng, out=self._drawn[place : place + size])

    def _bits(self, seeds: Sequence[int], clients: Tensor, rng: torch.Generator) -> Tensor:
        """Draws random bits, client by client: two 32-bit numbers in each int64, the first in the upper half.

        Each client begins a new int64.
        """
        numbers = self._pairs(clients)
        bits = torch.empty(int(numbers.sum()), dtype=torch.int64)
        for client, own in zip(clients.tolist(), bits.split(numbers.tolist()), strict=True):
            rng.manual_seed(seeds[client])
            own.random_(_ANY_64_BITS, None, generator=rng)
        return bits

    def _pairs(self, clients: Tensor) -> Tensor:
        return (self._counts[clients] * (self._sizes[clients] - 1) + 1) // 2

    def draw_all(self, device: torch.device | str) -> Tensor:
        """Returns the permutations of the clients, concatenated, int64 `[sum]`."""
        drawn = send(self._drawn, device)
        for clients, bits in self._shuffles:
            sizes, counts = self._sizes[clients], self._counts[clients]
            rows = torch.arange(len(clients)).repeat_interleave(counts)  # client of each permutation
            numbers = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
            pairs = self._pairs(clients)
            firsts = 2 * (pairs.cumsum(0) - pairs)[rows] + numbers * (sizes[rows] - 1)
            places = self._starts[clients][rows] + numbers * sizes[rows]
            each, firsts, places = send(torch.stack([sizes[rows], firsts, places]), device)
            _shuffle(send(bits, device), int(sizes.max()), each, firsts, places, drawn)
        return drawn[:-1]


def _group_by_size(sizes: Tensor, counts: Tensor) -> Iterator[Tensor]:
    """Yields clients whose sizes have the same power of two, int64 `[k]`; clients with one example separately."""
    exponents = torch.frexp((sizes - 1).double()).exponent
    for exponent in exponents.unique().tolist():
        yield ((exponents == exponent) & (counts > 0)).nonzero().flatten()


def _shuffle(bits: Tensor, longest: int, sizes: Tensor, firsts: Tensor, places: Tensor, drawn: Tensor) -> None:
    """Shuffles permutations and writes them to the result.

    Args:
        bits: see `Permutations._bits`.
        longest: Maximum of the sizes.
        sizes: Length of each permutation, int64 `[p]`.
        firsts: Position of each permutation's first 32-bit number.
        places: Position in the result at which each permutation begins.
        drawn: Result: all permutations, and one more number.
    """
    device = bits.device
    steps = torch.arange(longest - 1, device=device)[:, None]
    at = (firsts + steps).clamp_(max=2 * len(bits) - 1)
    found = (bits[at >> 1] >> (32 * (1 - (at & 1)))) & 0xFFFFFFFF
    columns = torch.arange(len(sizes), device=device)
    others = (steps + found % (sizes - steps).clamp_(min=1)).mul_(len(sizes)).add_(columns)  # after the end: itself
    left = torch.arange(longest, device=device)[:, None].repeat(1, len(sizes))
    order, flat = left.clone(), left.view(-1)
    for mine, other, into in zip(left, others, order, strict=False):
        torch.index_select(flat, 0, other, out=into)
        flat.scatter_(0, other, mine.clone())
    order[-1] = left[-1]
    numbers = torch.arange(longest, device=device)[:, None]
    written = torch.where(numbers < sizes, places + numbers, len(drawn) - 1)
    drawn.scatter_(0, written.flatten(), order.flatten())


@cache
def _shuffles_as_expected() -> bool:
    """Returns whether this PyTorch shuffles as described above."""
    size, count = 5, 3
    rng = torch.Generator().manual_seed(0)
    expected = torch.cat([torch.randperm(size, generator=rng) for _ in range(count)])
    bits = torch.empty(count * (size - 1) // 2, dtype=torch.int64)
    bits.random_(_ANY_64_BITS, None, generator=rng.manual_seed(0))
    drawn, numbers = torch.empty(count * size + 1, dtype=torch.int64), torch.arange(count)
    _shuffle(bits, size, torch.full((count,), size), numbers * (size - 1), numbers * size, drawn)
    return torch.equal(drawn[:-1], expected)
