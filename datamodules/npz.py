"""Arrays in files .npz: one file, or a folder with one for each client. Nothing is unpickled."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lit_cfl.data.npz import read_npz
from lit_cfl.errors import InputError

KEYS = ("x", "y", "client", "cluster")


def read_source(source: Path) -> Mapping[str, np.ndarray]:
    """The arrays of a file .npz, or those of a folder of them put together."""
    if not source.is_dir():
        return _read(source)
    files = sorted(source.glob("*.npz"))
    if not files:
        raise InputError(f"{source} holds no file .npz; give one for each client, with x and y")
    parts = [_read(file) for file in files]
    for file, part in zip(files, parts, strict=True):
        _require_of_one_client(file, part, parts[0])
    sizes = [len(part["y"]) for part in parts]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in ("x", "y")}
    joined["client"] = np.repeat([file.stem for file in files], sizes)
    if "cluster" in parts[0]:
        joined["cluster"] = np.repeat(np.concatenate([part["cluster"].reshape(1) for part in parts]), sizes)
    return joined


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        return read_npz(path, KEYS, required=("x", "y"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file or folder {path}; give a file .npz, or a folder of them") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error
    except InputError as error:
        raise InputError(f"{error}; save it with np.savez") from error


def _require_of_one_client(file: Path, part: Mapping[str, np.ndarray], first: Mapping[str, np.ndarray]) -> None:
    if "client" in part:
        raise InputError(f"{file} holds client, but in a folder each file is one; give the file itself as source")
    if ("cluster" in part) != ("cluster" in first) or ("cluster" in part and part["cluster"].size != 1):
        raise InputError(f"{file}: give one cluster in each file of the folder, or in none")
    shapes = [f"{array['x'].dtype} {array['x'].shape[1:]}" for array in (part, first)]
    if shapes[0] != shapes[1]:
        raise InputError(f"{file} holds x of {shapes[0]}, the first file of the folder {shapes[1]}; make them alike")
    if part["y"].shape != part["x"].shape[:1] or not part["y"].size:
        raise InputError(
            f"{file} has x of shape {part['x'].shape} and y of shape {part['y'].shape}; give [n, ...], [n]"
        )
