"""Stores the traceback of a failed run in the run's directory."""

import traceback
from contextlib import suppress
from pathlib import Path

from lit_cfl.errors import InputError
from lit_cfl.storage.atomic_writes import write_text

ERROR_FILE = "error.txt"


def write_error(folder: Path, error: Exception) -> str:
    """Writes the traceback of an error, if the disk has room, and returns the error in one line."""
    with suppress(OSError, InputError):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / ERROR_FILE, "".join(traceback.format_exception(error)))
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
