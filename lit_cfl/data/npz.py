"""Reads `.npz` files from untrusted sources: nothing is unpickled, and every fault gives a one-line error."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile, is_zipfile

import numpy as np

from lit_cfl.errors import InputError


def read_npz(
    path: Path, names: Sequence[str] | None = None, required: Sequence[str] = (), no_others: bool = False
) -> dict[str, np.ndarray]:
    """Reads the arrays of an `.npz` file.

    Args:
        path: Path of the file.
        names: Names of the arrays to read, if the file has them; None = all.
        required: Names of required arrays.
        no_others: Refuse arrays whose names are not in `names`.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: the file is not an .npz, is damaged, contains pickled objects, lacks an array, has an unexpected
            one, or declares one that does not fit into memory.
    """
    try:
        if path.is_file() and not is_zipfile(path):
            raise BadZipFile("not a zip archive")
        with np.load(path, allow_pickle=False) as file:
            if missing := [name for name in required if name not in file.files]:
                raise InputError(f"{path} has no array {missing[0]!r}; it holds {', '.join(file.files) or 'none'}")
            read = [name for name in file.files if names is None or name in names]
            if no_others and len(read) < len(file.files):
                raise InputError(f"{path} holds {', '.join(file.files)}; leave out all but {', '.join(names or ())}")
            return {name: file[name] for name in read}
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{path} is damaged, or too large for the memory of this machine ({error})") from error
    except (BadZipFile, zlib.error, EOFError, ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        reason = str(error).partition(" when allow_pickle")[0].partition("\n")[0] or type(error).__name__
        raise InputError(f"{path} is damaged, is not a .npz file, or holds objects ({reason})") from error
