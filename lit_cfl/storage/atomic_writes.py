"""Writes files atomically, and turns a full disk into an error with the file's name."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import IO, Any

from lit_cfl.errors import SaveError

_UNFINISHED = ".lit-cfl.tmp"  # end of the name of an incomplete file


@contextmanager
def name_write_errors(path: Path) -> Iterator[None]:
    """Turns system errors within the block into a `SaveError` that names the file or folder."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        failure = error.__context__ if isinstance(error, RuntimeError) else error  # torch.save hides the system's error
        if isinstance(failure, OSError):
            raise SaveError(f"{path} could not be written ({failure.strerror})") from error
        raise


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a file so that readers see either the old or the complete new content.

    Raises:
        SaveError: the file could not be written; the old file is unchanged.
    """
    temporary = path.with_name(f".{path.name}{_UNFINISHED}")
    with name_write_errors(path):
        try:
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8; see `write_atomically`."""
    write_atomically(path, lambda file: file.write(text.encode()))


def remove_unfinished(folder: Path) -> None:
    """Removes the unfinished files of killed processes from a folder."""
    for file in folder.glob(f".*{_UNFINISHED}"):
        with name_write_errors(file):
            file.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file; non-finite numbers become null."""
    write_text(path, json.dumps(blank_not_finite(content), indent=2, allow_nan=False) + "\n")


def blank_not_finite(value: Any) -> Any:
    """Replaces numbers that are not finite by None, also in mappings."""
    if isinstance(value, Mapping):
        return {key: blank_not_finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value
