"""A disk cache for arrays that are expensive to compute."""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from time import time

import numpy as np

from lit_cfl.errors import InputError, Notice
from lit_cfl.storage.cache_folder import cache_folder

Arrays = dict[str, np.ndarray]
_NOTICES = "notices"  # name of the array of notices that were given when the entry was made
_MAKING = ".making-"  # prefix of a folder in which an entry is made
_ABANDONED_SECONDS = 86_400.0  # no process takes a day to make an entry


def read_or_make(key: Sequence[str], make: Callable[[], Arrays]) -> Arrays:
    """Reads arrays from the cache, or computes and stores them.

    The cache is the folder LITCFL_CACHE (by default `~/.cache/lit-cfl`; `off`: no cache). Its entries are folders of
    .npy files that appear whole or not at all, so processes may share it. A damaged entry is made again.

    Args:
        key: Everything on which the arrays depend.
        make: Computes the arrays; their names are identifiers.

    Raises:
        InputError: the folder cannot be written.
    """
    folder = cache_folder()
    if folder is None:
        return make()
    entry = folder / hashlib.blake2b(json.dumps(list(key)).encode(), digest_size=16).hexdigest()
    arrays = _read(entry)
    if arrays is not None:
        for text in arrays.pop(_NOTICES, np.array([], np.str_)).tolist():
            warnings.warn(text, Notice, stacklevel=2)
        return arrays
    with _named_errors(folder):  # raises before the work is done if the arrays could not be stored
        folder.mkdir(parents=True, exist_ok=True)
    with _temporary_folder(folder) as temporary:
        with _named_errors(folder), suppress(FileNotFoundError):
            entry.rename(temporary / "damaged")
        arrays, notices = _collect_notices(make)
        with _named_errors(folder):
            _write(temporary / "new", entry, arrays | ({_NOTICES: np.array(notices)} if notices else {}))
    return arrays


def _collect_notices(make: Callable[[], Arrays]) -> tuple[Arrays, list[str]]:
    """Computes arrays, and collects the notices that this computation issues."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", Notice)
        arrays = make()
    for one in given:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return arrays, [str(one.message) for one in given if one.category is Notice]


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """Creates a folder for a new entry, and removes the folders left by killed processes."""
    with _named_errors(folder):
        temporary = Path(mkdtemp(prefix=_MAKING, dir=folder))
    for other in folder.glob(f"{_MAKING}*"):
        with suppress(OSError):  # another process has made the entry meanwhile
            if time() - other.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(other, ignore_errors=True)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _read(entry: Path) -> Arrays | None:
    """Reads the arrays of an entry; None if the entry is missing, damaged, or being replaced."""
    try:
        if (entry / "digest").read_bytes() != _digest(entry).encode():  # a damaged header may declare any size
            return None
        return {path.stem: np.load(path, allow_pickle=False) for path in entry.glob("*.npy")}
    except (OSError, ValueError, EOFError):
        return None


def _write(new: Path, entry: Path, arrays: Arrays) -> None:
    new.mkdir()
    for name, array in arrays.items():
        np.save(new / f"{name}.npy", array, allow_pickle=False)
    (new / "digest").write_text(_digest(new), "utf-8")
    try:
        new.rename(entry)
    except OSError:
        if not entry.exists():  # another process may have made the entry, with the same arrays
            raise


def _digest(entry: Path) -> str:
    """Computes the SHA-256 digest of each array file of an entry, one line per file."""
    lines = []
    for path in sorted(entry.glob("*.npy")):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return "".join(lines)


@contextmanager
def _named_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the cache folder {folder} cannot be written ({error.strerror or error}): is it full, or read-only? Free "
            "some disk space, or set LITCFL_CACHE to another folder, or to off"
        ) from error
