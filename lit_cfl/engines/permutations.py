"""Draws the same permutations as `torch.randperm`, for many clients at once.

`torch.randperm` is a Fisher-Yates shuffle: for i from 0 it swaps the numbers at i and i + r % (n - i), where r is the
generator's next 32 bits. `steps.cpp` does the same for all clients in one call. If it is not compiled, or if this
PyTorch shuffles in another way, PyTorch draws the permutations one by one.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lit_cfl.engines.library import load_library


def draw_permutations(seeds: Sequence[int], sizes: Tensor, counts: Tensor) -> Tensor:
    """Draws permutations of each client's examples, concatenated: int64 `[sum of sizes * counts]`.

    Args:
        seeds: Seed of each client's generator `[n]`, below 2^63.
        sizes: Length of each client's permutations, int64 `[n]`, 1 or more.
        counts: Number of each client's permutations, int64 `[n]`.
    """
    given = torch.tensor(seeds, dtype=torch.int64), sizes.contiguous(), counts.contiguous()
    library, _ = load_library()
    return _draw_each(*given) if library is None or not _draws_as_pytorch(library) else _draw(library, *given)


@cache
def _draws_as_pytorch(library: Any) -> bool:
    """Returns whether the compiled code draws the same permutations as the installed PyTorch."""
    given = torch.tensor([0, 2**62 + 5]), torch.tensor([5, 700]), torch.tensor([3, 2])
    return torch.equal(_draw(library, *given), _draw_each(*given))


def _draw(library: Any, seeds: Tensor, sizes: Tensor, counts: Tensor) -> Tensor:
    drawn = torch.empty(int((sizes * counts).sum()), dtype=torch.int64)
    library.permute(len(seeds), *(part.data_ptr() for part in (seeds, sizes, counts, drawn)))
    return drawn


def _draw_each(seeds: Tensor, sizes: Tensor, counts: Tensor) -> Tensor:
    drawn, rng, place = torch.empty(int((sizes * counts).sum()), dtype=torch.int64), torch.Generator(), 0
    for seed, size, count in zip(seeds.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        rng.manual_seed(seed)
        for _ in range(count):
            torch.randperm(size, generator=rng, out=drawn[place : place + size])
            place += size
    return drawn
