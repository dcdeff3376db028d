"""Ends a run that takes too long, also one that hangs."""

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lit_cfl.errors import InputError

FILE = "too_long.txt"


@contextmanager
def limited(path: Path, minutes: float | None) -> Iterator[None]:
    """Ends this process where the block lasts too long, and writes into a file where in the code it then was.

    The clock is a thread of C's, which needs no lock of Python's: it ends code that hangs in C, too. Ray starts the
    block once more in another process, where it is refused.

    Args:
        path: a directory for the file.
        minutes: above 0; None = no limit.

    Raises:
        InputError: a process that ran this block before was ended.
    """
    if minutes is None:
        yield
        return
    path.mkdir(parents=True, exist_ok=True)
    file = path / FILE
    if file.exists() and file.stat().st_size > 0:
        raise InputError(f"it took longer than limits.trial_minutes allow ({minutes:g}); {file} says where it was")
    with file.open("w") as told:
        faulthandler.dump_traceback_later(60 * minutes, exit=True, file=told)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            file.unlink()
