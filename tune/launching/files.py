"""Which files of the user's go along with a job: what the configuration loaded, and what was asked for."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_cfl.errors import InputError

OURS = ("lit_cfl", "lit_cfl.datamodules", "lit_cfl.tune")  # packages that are sent whole
Files = dict[str, Path]  # by their place in the job's folder


def own_code(folders: Sequence[str]) -> Files:
    """Modules of the user's that are loaded from these folders: no other file of them."""
    found: Files = {}
    for name in sorted({name.partition(".")[0] for name in sys.modules} - {*OURS, "__main__"}):
        loaded = _places(name)
        for folder in map(Path, folders):
            if str(folder / f"{name}.py") in loaded:
                found[f"{name}.py"] = folder / f"{name}.py"
            elif str(folder / name) in loaded:
                found |= {file.relative_to(folder).as_posix(): file for file in (folder / name).rglob("*.py")}
    return found


def _places(name: str) -> set[str]:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return {str(Path(place).resolve()) for place in ([file] if file else []) + list(getattr(module, "__path__", []))}


def included(paths: Sequence[str]) -> Files:
    """Files that the user names: one by its name, those of a folder below the folder's name.

    Raises:
        InputError: there is none.
    """
    found: Files = {}
    for given in paths:
        path = Path(given).expanduser().resolve()
        if not path.exists():
            raise InputError(f"--include {given}: there is no such file or folder")
        found |= {file.relative_to(path.parent).as_posix(): file for file in _files(path)}
    return found


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        if file.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts):
            yield file


def as_in_the_job(value: Any, files: Files) -> Any:
    """A configuration with sent files, and their folders, as they are in the job's folder."""
    return _replaced(value, _moved(files))


def _moved(files: Files) -> dict[str, str]:
    moved: dict[str, str] = {}
    for place, file in files.items():
        inside = Path(place)
        while inside != Path():
            moved[str(file)] = inside.as_posix()
            inside, file = inside.parent, file.parent
    return moved


def _replaced(value: Any, moved: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(part, moved) for key, part in value.items()}
    if isinstance(value, list):
        return [_replaced(part, moved) for part in value]
    return moved.get(value, value) if isinstance(value, str) else value


def left_here(value: Any, name: str = "") -> Iterator[str]:
    """A line for each file of this machine that a configuration names."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from left_here(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from left_here(part, name)
    elif isinstance(value, str) and Path(value).is_absolute() and Path(value).exists():
        yield f"{name} is {value}: it must be there on the cluster, too; or send it with --include {value}"
