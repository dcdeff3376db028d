"""Inner products of rows in float64, computed in blocks, without a second copy of the rows."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lit_cfl.errors import InputError
from lit_cfl.memmap_rows import machine_memory

Rows = Tensor | Sequence[Tensor]
"""Rows `[n, d]`, or their chunks `[c, d]` in order."""

BLOCK_BYTES = 2**28  # size of one float64 block of columns
ROWS_AT_ONCE = 64  # number of rows that are compared with a few others at a time
TILE = 1024  # number of rows of the Gram matrix computed at a time; only its upper half is multiplied


def chunks_of(rows: Rows) -> list[Tensor]:
    """Returns the rows as a list of tensors `[c, d]`; a single tensor becomes a list of one."""
    return [rows] if isinstance(rows, Tensor) else list(rows)


def row_tiles(rows: Rows) -> Iterator[Tensor]:
    """Yields blocks of complete rows `[t, d]`, so that a file is read from beginning to end."""
    for part in chunks_of(rows):
        yield from part.split(ROWS_AT_ONCE)


def column_blocks(rows: Rows) -> Iterator[Tensor]:
    """Yields blocks of columns of all rows: float64 `[n, b]` of at most `BLOCK_BYTES` (at least one column)."""
    parts = chunks_of(rows)
    width = max(1, BLOCK_BYTES // (8 * max(1, sum(map(len, parts)))))
    for start in range(0, parts[0].shape[1], width):
        block = [part[:, start : start + width].double() for part in parts]
        yield block[0] if len(block) == 1 else torch.cat(block)


def require_finite(values: Tensor, what: str = "update") -> None:
    """Raises InputError if one of the values `[n]` is not finite."""
    finite = values.isfinite()
    if not finite.all():
        raise InputError(f"{what} {int((~finite).nonzero()[0])} is not finite; lower the learning rate")


def gram(rows: Rows) -> Tensor:
    """Computes the inner products of all pairs of rows: float64 `[n, n]`, exactly symmetric.

    Rows on a memory map larger than the free memory are slow if the disk reads far ahead: sketch them first.
    """
    products = zeros_of_pairs(sum(map(len, chunks_of(rows))))
    for block in column_blocks(rows):
        add_gram(products, block)
    return mirror(products)


def zeros_of_pairs(n: int) -> Tensor:
    """Makes a zero matrix for all pairs of rows: float64 `[n, n]`.

    Raises:
        InputError: the matrix would not fit into the machine's memory.
    """
    needed, there = 8 * n * n, machine_memory()
    if needed > there:
        raise InputError(
            f"comparing {n:,} clients with each other takes {needed / 2**30:,.0f} GiB or more, but this machine has "
            f"{there / 2**30:,.0f} GiB; use fewer clients, or an algorithm that compares only the clients of a "
            "cohort, or clients with cluster models (FedGroup, IFCA, FeSEM, StoCFL)"
        )
    return torch.zeros(n, n, dtype=torch.float64)


def add_gram(products: Tensor, block: Tensor) -> None:
    """Adds the inner products of a block's rows to the upper half of `products` `[n, n]`, in place."""
    for start in range(0, len(block), TILE):
        products[start : start + TILE, start:].addmm_(block[start : start + TILE], block[start:].T)


def mirror(upper: Tensor) -> Tensor:
    """Returns the symmetric matrix with this upper half `[n, n]`."""
    return upper.triu() + upper.triu(1).T
