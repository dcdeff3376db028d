"""Finds the user's own classes, and prevents imports from a directory while it is opened."""

import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from lit_cfl.errors import InputError, Notice, is_installed
from lit_cfl.storage.yaml_files import leaves

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")  # matches paths of classes and functions, among others
_OURS = ("lit_cfl", "torch", "lightning")


class _NoCodeFrom:
    """A module finder, put before Python's own, that hides modules in or below a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path)
        if spec is None or not any(inside(place, self.directory) for place in _places(spec)):
            return None  # Python's own finder does the rest
        elsewhere = [place for place in path or sys.path if not inside(place, self.directory)]
        spec = PathFinder.find_spec(name, elsewhere)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r} outside {self.directory}", name=name)
        return spec


@contextmanager
def no_code_from(directory: Path | None) -> Iterator[None]:
    """Within the block, prevents imports from a directory and its subfolders, even if it is the current folder."""
    if directory is None:
        yield
        return
    guard = _NoCodeFrom(directory)
    at = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
    sys.meta_path.insert(at, guard)
    try:
        yield
    finally:
        sys.meta_path.remove(guard)


def announce_own_code(directory: Path, configs: Iterable[Any], folders: Sequence[str]) -> None:
    """Warns of the user's own classes that are loaded by opening a directory, and names their folders.

    Args:
        directory: Directory to open.
        configs: Configurations in it, as plain values.
        folders: Folders of the user's own files, which Python searches after installed packages.

    Raises:
        InputError: one of the classes lies in the directory itself.
    """
    found: dict[str, str] = {}
    for config in configs:
        for _, name in leaves(config):
            is_path = isinstance(name, str) and _DOTTED.fullmatch(name)
            place = _place_of(name, directory, folders) if is_path else None
            if place is not None:
                found[name] = place
    if found:
        listed = ", ".join(f"{name} from {place}" for name, place in sorted(found.items()))
        warnings.warn(Notice(f"opening {directory} loads code that is not part of Lit-CFL: {listed}"), stacklevel=3)


def inside(place: str | Path, directory: Path) -> bool:
    """Returns whether a path is a directory, or lies below it."""
    return Path(place).resolve().is_relative_to(directory.resolve())


def _place_of(name: str, directory: Path, folders: Sequence[str]) -> str | None:
    """Finds the folder with the module of a user's own class; None for a class of an installed package."""
    module = name.partition(".")[0]
    if module in _OURS:
        return None
    outside = [place for place in (*sys.path, *folders) if not inside(place, directory)]
    spec = PathFinder.find_spec(module, outside)
    if spec is None:
        if PathFinder.find_spec(module, [str(directory)]) is not None:
            raise InputError(
                f"{name} lies in {directory}, and code is never loaded from the directory of a run that is opened; "
                f"put {module} into another folder, and run the command there"
            )
        return None
    (place, *_) = _places(spec) or [""]
    return None if not place or is_installed(place) else str(Path(place).parent)


def _places(spec: ModuleSpec) -> list[str]:
    return [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or [])
