"""Stores rows of models in files if they are too large for memory."""

import os
import tempfile
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from lit_cfl.errors import InputError

_IN_MEMORY = 2**30  # maximum size in bytes of rows that are copied in memory


def keep_row(row: Tensor, of: int) -> Tensor:
    """Copies a row `[d]`. The copy is in a file if all kept rows together would exceed half of the machine's memory.

    Args:
        row: Row to copy.
        of: Total number of rows that are kept.

    Raises:
        InputError: the disk has no room for the row.
    """
    size = of * row.numel() * row.element_size()
    if size <= _IN_MEMORY or size <= machine_memory() / 2:
        return row.clone()
    return store_rows(iter([row[None]]), 1)[0]


def machine_memory() -> int:
    """Returns the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def collect_rows(parts: Iterator[Tensor], at_most: int) -> Tensor:
    """Collects rows `[n, d]` into one tensor, stored in a file if it may exceed 1 GiB.

    Args:
        parts: `[some, d]` each, one after another; at least one.
        at_most: Maximum number of rows in total.

    Raises:
        InputError: the disk has no room for them.
    """
    first = next(parts)
    together = chain([first], parts)
    if at_most * first[0].nbytes <= _IN_MEMORY:
        return torch.cat(list(together))
    return store_rows(together, at_most)


def store_rows(parts: Iterator[Tensor], at_most: int) -> Tensor:
    """Stores rows `[n, d]` in a temporary file, from which they are read on demand.

    The file is in `TMPDIR` and has no name: it is deleted with the tensor, however the process ends.

    Args:
        parts: `[some, d]` each, one after another; at least one.
        at_most: Maximum number of rows in total.

    Raises:
        InputError: the disk has no room for them.
    """
    first = next(parts)
    size = max(at_most, 1) * first.shape[1]
    with tempfile.NamedTemporaryFile(prefix="lit-cfl-rows-") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size * first.itemsize)  # a write to a full disk would kill the process
        except OSError as error:
            raise InputError(
                f"{tempfile.gettempdir()} has no room for {size * first.itemsize / 2**30:.3g} GiB of clients' models "
                f"({error.strerror}); set TMPDIR to a larger disk"
            ) from error
        rows = torch.from_file(file.name, shared=True, size=size, dtype=first.dtype).view(-1, first.shape[1])
    end = 0
    for part in chain([first], parts):
        rows[end : end + len(part)] = part
        end += len(part)
    return rows[:end]
