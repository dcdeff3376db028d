"""Lists the available classes and configurations without importing them, so that `lit-cfl list` is instant."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lit_cfl.config.option_index import IndexedClass, list_classes

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
HELP = {
    "algorithms": "--algorithm.help",
    "data": "--data.help",
    "partitions": "--data Digits --data.partition.help",
    "skews": "--data Digits --data.skew.help",
    "shifts": "--data Digits --data.shift.help",
    "nets": "--task Classification --task.net.help",
    "tasks": "--task.help",
    "configs": "--config",
}  # after `lit-cfl run`, these words and the name of a class print its help
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
    if kind == "configs":
        return [CatalogueEntry(name, _first_comment(path)) for name, path in configs().items()]
    return sorted(_classes(*CLASSES[kind]), key=lambda entry: entry.name)


def names(kind: str) -> list[str]:
    """Returns the names of all entries of one of `KINDS`, sorted."""
    return [entry.name for entry in entries(kind)]


def configs() -> dict[str, Path]:
    """Finds the configurations included in the package, by name, such as `fedgroup/digits`."""
    folder = Path(__file__).parents[1] / "configs"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def _classes(module: str, base: str) -> Iterator[CatalogueEntry]:
    texts = {name: path.read_text(encoding="utf-8") for name, path in configs().items()}
    for found in list_classes(module):
        name = found.name
        if name.startswith("_") or name == base or not found.derives_from(base) or found.is_abstract:
            continue
        uses = [
            config
            for config, text in texts.items()
            if re.search(rf"class_path: (\S+\.)?{name}\b", text) and not _OWN_FILE.search(text)
        ]
        own = [config for config in uses if config.partition("/")[0] == name.lower()]
        yield CatalogueEntry(name, _first_line(found.docstring), _paper(found), (own or uses or [""])[0])


def _first_line(docstring: str) -> str:
    return docstring.strip().split("\n")[0]


def _paper(found: IndexedClass) -> str:
    """Returns the class variable `paper` of a class, or of its first base that sets it."""
    return found.text("paper") or next(filter(None, map(_paper, found.bases)), "")


def _first_comment(path: Path) -> str:
    return path.read_text(encoding="utf-8").split("\n")[0].removeprefix("#").strip()
