"""A disk cache for arrays that are expensive to compute."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from time import time

import numpy as np

from lit_cfl.data.npz import read_npz
from lit_cfl.errors import InputError, Notice
from lit_cfl.storage.cache_folder import cache_folder

Arrays = dict[str, np.ndarray]
_NOTICES, _KEY = "notices", "key"  # arrays of an entry: notices that were given when it was made, and its own name
_MAKING = ".making-"  # prefix of an entry that is being made
_ABANDONED_SECONDS = 86_400.0  # no process takes a day to make an entry


def read_or_make(key: Sequence[str], make: Callable[[], Arrays]) -> Arrays:
    """Reads arrays from the cache, or computes and stores them.

    The cache is the folder LITCFL_CACHE (by default `~/.cache/lit-cfl`; `off`: no cache). Its entries are .npz files
    with checksums that appear whole or not at all. A damaged entry is made again; notices are given each time. Raises
    InputError if the folder cannot be written.

    Args:
        key: Everything on which the arrays depend.
        make: Computes the arrays; their names are identifiers.
    """
    if (folder := cache_folder()) is None:
        return make()
    entry = folder / f"{hashlib.blake2b(json.dumps(list(key)).encode(), digest_size=16).hexdigest()}.npz"
    with suppress(OSError, InputError):  # the entry is missing or damaged
        arrays = read_npz(entry)
        if str(arrays.pop(_KEY, "")) == entry.stem:
            for text in arrays.pop(_NOTICES).tolist():
                warnings.warn(text, Notice, stacklevel=2)
            return arrays
    return _make(entry, make)


def _make(entry: Path, make: Callable[[], Arrays]) -> Arrays:
    """Computes and stores the arrays of an entry."""
    with _named_errors(entry.parent):  # raises before the work is done if the arrays could not be stored
        entry.parent.mkdir(parents=True, exist_ok=True)
        for other in entry.parent.glob(f"{_MAKING}*"):  # other processes, some of which were killed
            with suppress(FileNotFoundError):
                if time() - other.stat().st_mtime > _ABANDONED_SECONDS:
                    other.unlink()
        new = entry.with_name(f"{_MAKING}{token_hex(8)}.npz")
        new.touch()
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always", Notice)
            arrays = make()
        for one in given:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        notices = np.array([str(one.message) for one in given if one.category is Notice], np.str_)
        with _named_errors(entry.parent):
            np.savez(new, allow_pickle=False, **arrays | {_NOTICES: notices, _KEY: np.array(entry.stem)})
            new.replace(entry)
    finally:
        new.unlink(missing_ok=True)
    return arrays


@contextmanager
def _named_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the cache folder {folder} cannot be written ({error.strerror or error}): free some disk space, or set "
            "LITCFL_CACHE to another folder, or to off"
        ) from error
