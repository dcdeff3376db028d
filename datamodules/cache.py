"""Arrays that took long to make, kept on the disk."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from lit_cfl.errors import InputError

Arrays = dict[str, np.ndarray]


def cached(key: Sequence[str], make: Callable[[], Arrays]) -> Arrays:
    """Arrays from the cache, or else made now and kept there.

    The cache is the folder LITCFL_CACHE (`~/.cache/lit-cfl` where it is not set; `off`: there is none). Its entries
    are folders of .npy files that appear whole or not at all, so processes may share it. A damaged entry is made again.

    Args:
        key: all that the arrays depend on.
        make: makes the arrays; their names are identifiers.

    Raises:
        InputError: the folder cannot be written.
    """
    place = os.environ.get("LITCFL_CACHE") or "~/.cache/lit-cfl"
    if place == "off":
        return make()
    folder = Path(place).expanduser()
    entry = folder / blake2b(json.dumps(list(key)).encode(), digest_size=16).hexdigest()
    arrays = _read(entry)
    if arrays is not None:
        return arrays
    with _errors_named(folder):  # before the work is done: what cannot be kept is said at once
        folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(mkdtemp(prefix=".making-", dir=folder))
    try:
        with _errors_named(folder), suppress(FileNotFoundError):
            entry.rename(temporary / "damaged")
        arrays = make()
        with _errors_named(folder):
            _write(temporary / "new", entry, arrays)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return arrays


def _read(entry: Path) -> Arrays | None:
    """The arrays of an entry; None where it is missing, damaged, or just being replaced."""
    try:
        arrays: Arrays = {path.stem: np.load(path, allow_pickle=False) for path in entry.glob("*.npy")}
        return arrays if (entry / "digest").read_text() == _digest(arrays) else None
    except (OSError, ValueError, EOFError):
        return None


def _write(new: Path, entry: Path, arrays: Arrays) -> None:
    new.mkdir()
    for name, array in arrays.items():
        np.save(new / f"{name}.npy", array, allow_pickle=False)
    (new / "digest").write_text(_digest(arrays))
    try:
        new.rename(entry)
    except OSError:
        if not entry.exists():  # else another process was faster, with the same arrays
            raise


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


@contextmanager
def _errors_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the cache folder {folder} cannot be written ({error.strerror or error}): is it full, or read-only? "
            "Make room, or set LITCFL_CACHE to another folder, or to off"
        ) from error
