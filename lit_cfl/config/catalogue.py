"""Finds the configurations and classes that come with the package, and the files of a command line."""

import os
import re
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import isabstract, isclass
from pathlib import Path
from typing import Any

from lit_cfl.config.words import arrange
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
    texts = {name: path.read_text(encoding="utf-8") for name, path in configs().items()}
    if kind == "configs":
        return [CatalogueEntry(name, text.split("\n")[0].removeprefix("#").strip()) for name, text in texts.items()]
    found = []
    for name, one in classes(kind).items():
        named = re.compile(rf"class_path: (\S+\.)?{name}\b")
        uses = [config for config, text in texts.items() if named.search(text) and not _OWN_FILE.search(text)]
        own = [config for config in uses if config.partition("/")[0] == name.lower()]
        line = (one.__doc__ or "").strip().split("\n")[0]
        found.append(CatalogueEntry(name, line, getattr(one, "paper", ""), (own or uses or [""])[0]))
    return found


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


def config_files(arguments: Sequence[str]) -> list[str]:
    """Lists the files of `--config FILE` and `--config=FILE`."""
    options = [word.partition("=") for word in arrange(arguments)]
    return [file for option, _, file in options if option == "--config"]


def arrange_with_paths(arguments: Sequence[str]) -> list[str]:
    """Returns `arrange(arguments)` with the path of each configuration in place of its name."""
    words = [word for word in arrange(arguments) if word.partition("=")[0] != "--config"]
    return [*(f"--config={config_path(file)}" for file in config_files(arguments)), *words]


def config_path(name: str) -> str:
    """Returns the path of a configuration, given by path or by name.

    Args:
        name: Name of a file, or of a configuration that comes with the package, such as `quickstart`.

    Raises:
        InputError: neither exists.
    """
    if Path(name).exists() and not Path(name).is_dir():
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
