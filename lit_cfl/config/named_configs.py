"""Finds the configurations on a command line. Imports no large package, so that misspelt names are reported at once."""

import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from lit_cfl.config import catalogue
from lit_cfl.errors import InputError, suggest

_PIPED = "lit-cfl-piped-"  # prefix of the temporary folder for configurations that come from a pipe


def with_paths(arguments: Sequence[str]) -> list[str]:
    """Moves `--config` before all other options, and replaces names of configurations by their paths.

    The parser would otherwise replace options by the values of a later file.
    """
    return _rename_configs(_configs_first(arguments), config_path)


def _configs_first(arguments: Sequence[str]) -> list[str]:
    words = list(arguments)
    configs: list[str] = []
    others: list[str] = []
    while words:
        taken = 2 if words[0] == "--config" and len(words) > 1 else 1
        moved = configs if words[0].partition("=")[0] == "--config" else others
        moved += words[:taken]
        del words[:taken]
    return [*configs, *others]


def _rename_configs(words: Sequence[str], rename: Callable[[str], str]) -> list[str]:
    """Applies `rename` to the configurations in `--config NAME` and `--config=NAME`."""
    found = []
    for before, word in zip(["", *words], words, strict=False):
        head = "--config=" if word.startswith("--config=") else ""
        found.append(head + rename(word.removeprefix(head)) if head or before == "--config" else word)
    return found


def config_files(arguments: Sequence[str]) -> list[str]:
    """Lists the files of `--config FILE` and `--config=FILE`."""
    pairs = zip(["", *arguments], arguments, strict=False)
    found = [word for before, word in pairs if before == "--config" or word.startswith("--config=")]
    return [file for word in found if (file := word.removeprefix("--config="))]


def config_path(name: str) -> str:
    """Returns the path of a configuration, given by path or by name.

    Args:
        name: Name of a file, or of a configuration that comes with the package, such as `quickstart`.

    Raises:
        InputError: neither exists.
    """
    if Path(name).is_file():
        return name
    if not name.strip():
        raise InputError("--config is empty; give a file, or the name of a configuration, such as quickstart")
    if Path(name).is_dir():
        files = sorted(Path(name).glob("*.yaml"))
        example = f"such as {files[0]}" if files else "but it holds no .yaml file"
        raise InputError(f"{name!r} is a folder; name a file in it, {example}")
    packaged = catalogue.configs()
    plain = name.removeprefix("configs/").removesuffix(".yaml")
    if plain in packaged:
        return os.fspath(packaged[plain])
    similar = _similar_file(Path(name))
    if similar is not None:
        raise InputError(f"there is no file {name!r} (did you mean {similar}?)")
    raise InputError(f"there is no file {name!r}, and no packaged configuration of that name{suggest(plain, packaged)}")


def copy_piped_configs(words: Sequence[str]) -> list[str]:
    """Copies each configuration that is a pipe, as in `--config <(...)`, or a device, into a temporary file.

    The files are in a temporary folder that exists as long as this process.
    """
    return _rename_configs(words, _copy_of_pipe)


def is_piped(file: str | Path) -> bool:
    """Returns whether a configuration came from a pipe, so that it has no folder."""
    return _PIPED in Path(file).parent.name


def _copy_of_pipe(name: str) -> str:
    path = Path(name)
    if not path.exists() or path.is_file() or path.is_dir():
        return name
    copy = Path(_folder_of_pipes().name) / f"{path.name}.yaml"
    copy.write_bytes(path.read_bytes())
    return str(copy)


@cache
def _folder_of_pipes() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix=_PIPED)


def _similar_file(file: Path) -> Path | None:
    """Finds a YAML file with a similar name in the folder of a missing one."""
    names = [part.name for part in file.parent.glob("*.y*ml")] if file.parent.is_dir() else []
    close = get_close_matches(file.name, names, n=1, cutoff=0.75)
    return file.with_name(close[0]) if close else None
