"""Rows that are too many for memory."""

import os
import tempfile
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from lit_cfl.errors import InputError


def stored(parts: Iterator[Tensor], at_most: int) -> Tensor:
    """Stores rows `[n, d]` in a temporary file, from which they are read as they are needed.

    The file lies in `TMPDIR` and has no name: it goes away with the tensor, however the process ends.

    Args:
        parts: `[some, d]` each, one after another; at least one.
        at_most: how many rows there may be in all.

    Raises:
        InputError: there is no room for so many.
    """
    first = next(parts)
    size = max(at_most, 1) * first.shape[1]
    with tempfile.NamedTemporaryFile(prefix="lit-cfl-rows-") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size * first.itemsize)  # a write into a full disk would kill us
        except OSError as error:
            raise InputError(
                f"{size * first.itemsize / 2**30:.1f} GiB for the models of {at_most} clients do not fit into "
                f"{tempfile.gettempdir()} ({error.strerror}); set TMPDIR to a larger disk"
            ) from error
        rows = torch.from_file(file.name, shared=True, size=size, dtype=first.dtype).view(-1, first.shape[1])
    end = 0
    for part in chain([first], parts):
        rows[end : end + len(part)] = part
        end += len(part)
    return rows[:end]
