"""Finds the configurations that a command line names. Imports nothing heavy: a misspelt name is told of at once."""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from lit_cfl.config import catalogue
from lit_cfl.errors import InputError, nearest


def with_paths(arguments: Sequence[str]) -> list[str]:
    """Puts configurations before all options, and their paths in place of their names.

    The parser would otherwise replace options by what a later file says.
    """
    words = _configs_first(arguments)
    return [_with_path(before, word) for before, word in zip(["", *words], words, strict=False)]


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


def _with_path(before: str, word: str) -> str:
    if before == "--config":
        return config_path(word)
    if word.startswith("--config="):
        return f"--config={config_path(word.removeprefix('--config='))}"
    return word


def config_files(arguments: Sequence[str]) -> list[str]:
    """Lists the files of `--config FILE` and `--config=FILE`."""
    pairs = zip(["", *arguments], arguments, strict=False)
    found = [word if before == "--config" else word.partition("--config=")[2] for before, word in pairs]
    return [file for file in found if file]


def config_path(name: str) -> str:
    """Returns the path of a configuration.

    Args:
        name: of a file, or of a configuration that comes with the package, such as `quickstart`.

    Raises:
        InputError: there is neither.
    """
    if Path(name).is_file():
        return name
    packaged = catalogue.configs()
    plain = name.removeprefix("configs/").removesuffix(".yaml")
    if plain in packaged:
        return os.fspath(packaged[plain])
    beside = _neighbour(Path(name))
    if beside is not None:
        raise InputError(f"there is no file {name!r} (did you mean {beside}?)")
    raise InputError(f"there is no file {name!r}, and no packaged configuration of that name{nearest(plain, packaged)}")


def _neighbour(file: Path) -> Path | None:
    """Finds a YAML file of nearly the same name in the folder of one that is not there."""
    names = [part.name for part in file.parent.glob("*.y*ml")] if file.parent.is_dir() else []
    close = get_close_matches(file.name, names, n=1, cutoff=0.75)
    return file.with_name(close[0]) if close else None
