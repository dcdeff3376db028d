"""Finds the configurations on a command line. Imports no large package, so that misspelt names are reported at once."""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from lit_cfl.config import catalogue
from lit_cfl.errors import InputError, suggest

_PIPED = "lit-cfl-piped-"  # prefix of a folder's name


def with_paths(arguments: Sequence[str]) -> list[str]:
    """Moves configurations before all options, and replaces their names by paths.

    The parser would otherwise replace options by the values of a later file.
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
        name: Name of a file, or of a configuration that comes with the package, such as `quickstart`.

    Raises:
        InputError: neither exists.
    """
    if Path(name).is_file():
        return name
    if not name.strip():
        raise InputError("--config is empty; give a file, or the name of a configuration, such as quickstart")
    if Path(name).is_dir():
        raise InputError(f"{name!r} is a folder; name a file in it, such as {Path(name) / 'experiment.yaml'}")
    packaged = catalogue.configs()
    plain = name.removeprefix("configs/").removesuffix(".yaml")
    if plain in packaged:
        return os.fspath(packaged[plain])
    similar = _similar_file(Path(name))
    if similar is not None:
        raise InputError(f"there is no file {name!r} (did you mean {similar}?)")
    raise InputError(f"there is no file {name!r}, and no packaged configuration of that name{suggest(plain, packaged)}")


def copy_piped_configs(words: Sequence[str]) -> list[str]:
    """Copies configurations that can be read only once into files: pipes, as in `--config <(...)`, and devices.

    The files are in a temporary folder that exists as long as this process.
    """
    pairs = zip(["", *words], words, strict=False)
    return [_from_pipe(before, word) for before, word in pairs]


def is_piped(file: str | Path) -> bool:
    """Returns whether a configuration came from a pipe, so that it has no folder."""
    return _PIPED in Path(file).parent.name


def _from_pipe(before: str, word: str) -> str:
    head = "--config=" if word.startswith("--config=") else ""
    name = word.removeprefix(head) if head else word
    path = Path(name)
    if not (head or before == "--config") or not path.exists() or path.is_file() or path.is_dir():
        return word
    copy = Path(_folder_of_pipes().name) / f"{path.name}.yaml"
    copy.write_bytes(path.read_bytes())
    return f"{head}{copy}"


@cache
def _folder_of_pipes() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix=_PIPED)


def _similar_file(file: Path) -> Path | None:
    """Finds a YAML file with a similar name in the folder of a missing one."""
    names = [part.name for part in file.parent.glob("*.y*ml")] if file.parent.is_dir() else []
    close = get_close_matches(file.name, names, n=1, cutoff=0.75)
    return file.with_name(close[0]) if close else None
