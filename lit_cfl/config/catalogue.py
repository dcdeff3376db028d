"""Finds the configurations and classes that come with the package, and the files of a command line."""

import os
import re
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import isabstract, isclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lit_cfl.errors import InputError, suggest

CLASSES = {
    "algorithms": ("lit_cfl.algorithms", "Algorithm"),
    "data": ("lit_cfl.datamodules", "FederatedDataModule"),
    "partitions": ("lit_cfl.datamodules.partition", "Partition"),
    "skews": ("lit_cfl.datamodules.skew", "Skew"),
    "shifts": ("lit_cfl.datamodules.shift", "Shift"),
    "nets": ("lit_cfl.nets", "Net"),
    "tasks": ("lit_cfl.tasks", "LightningModule"),
}  # for each kind: the module in which its classes are found by short names, and their base class
KINDS = (*CLASSES, "configs")
# matches a configuration that reads a file of the user's
_OWN_FILE = re.compile(r"^\s+source: \S+\.(csv|npz)\b", re.MULTILINE)
_PIPED = "lit-cfl-piped-"  # prefix of the temporary folder for configurations that come from a pipe


@dataclass(frozen=True)
class CatalogueEntry:
    """A class or a configuration, as shown by `lit-cfl list`.

    Args:
        name: Short class name, or the configuration's name for `--config`.
        line: Description in one line.
        paper: Citation in its class variable `paper`, or an empty string.
        config: Name of a configuration that uses it, or an empty string.
    """

    name: str
    line: str
    paper: str = ""
    config: str = ""


def entries(kind: str) -> list[CatalogueEntry]:
    """Returns all entries of one of `KINDS`, ordered by name."""
    if kind == "configs":
        texts = {name: path.read_text(encoding="utf-8") for name, path in configs().items()}
        return [CatalogueEntry(name, text.split("\n")[0].removeprefix("#").strip()) for name, text in texts.items()]
    return list(_classes(kind))


def names(kind: str) -> list[str]:
    """Returns the names of all entries of one of `KINDS`, sorted."""
    return list(configs() if kind == "configs" else classes(kind))


def configs() -> dict[str, Path]:
    """Finds the configurations included in the package, by name, such as `fedgroup/digits`."""
    folder = Path(__file__).parents[1] / "configs"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def classes(kind: str) -> dict[str, Any]:
    """Returns the classes of one of `KINDS`, except `configs`, by their short names."""
    place, base = CLASSES[kind]
    found = {name: one for name, one in sorted(vars(import_module(place)).items()) if isclass(one) and name != base}
    below = {name: one for name, one in found.items() if base in (part.__name__ for part in one.__mro__)}
    return {name: one for name, one in below.items() if not isabstract(one) and ABC not in one.__bases__}


def _classes(kind: str) -> Iterator[CatalogueEntry]:
    texts = {name: path.read_text(encoding="utf-8") for name, path in configs().items()}
    for name, one in classes(kind).items():
        named = re.compile(rf"class_path: (\S+\.)?{name}\b")
        uses = [config for config, text in texts.items() if named.search(text) and not _OWN_FILE.search(text)]
        own = [config for config in uses if config.partition("/")[0] == name.lower()]
        line = (one.__doc__ or "").strip().split("\n")[0]
        yield CatalogueEntry(name, line, getattr(one, "paper", ""), (own or uses or [""])[0])


def config_files(arguments: Sequence[str]) -> list[str]:
    """Lists the files of `--config FILE` and `--config=FILE`."""
    pairs = zip(["", *arguments], arguments, strict=False)
    found = [word for before, word in pairs if before == "--config" or word.startswith("--config=")]
    return [file for word in found if (file := word.removeprefix("--config="))]


def rename_configs(words: Sequence[str], rename: Callable[[str], str]) -> list[str]:
    """Applies `rename`, such as `config_path`, to the configurations in `--config NAME` and `--config=NAME`."""
    found = []
    for before, word in zip(["", *words], words, strict=False):
        head = "--config=" if word.startswith("--config=") else ""
        found.append(head + rename(word.removeprefix(head)) if head or before == "--config" else word)
    return found


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
    packaged = configs()
    plain = name.removeprefix("configs/").removesuffix(".yaml")
    if plain in packaged:
        return os.fspath(packaged[plain])
    near = suggest(name, map(str, Path(name).parent.glob("*.y*ml")), 0.75)
    if near:
        raise InputError(f"there is no file {name!r}{near}")
    raise InputError(f"there is no file {name!r}, and no packaged configuration of that name{suggest(plain, packaged)}")


def copy_piped_configs(words: Sequence[str]) -> list[str]:
    """Copies each configuration that is a pipe, as in `--config <(...)`, or a device, into a temporary file.

    The files are in a temporary folder that exists as long as this process.
    """
    return rename_configs(words, _copy_of_pipe)


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
