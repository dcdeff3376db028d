"""Lists the available classes and configurations from source files, without imports: `lit-cfl list` is instant."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parents[1]
_KINDS = {
    "algorithms": (_HERE / "algorithms", "Algorithm"),
    "data": (_HERE / "datamodules", "FederatedDataModule"),
    "partitions": (_HERE / "datamodules" / "partition", "Partition"),
    "skews": (_HERE / "datamodules", "Skew"),
    "shifts": (_HERE / "datamodules" / "shift", "Shift"),
    "nets": (_HERE / "nets", "Net"),
    "tasks": (_HERE / "tasks", "LightningModule"),
}
KINDS = (*_KINDS, "configs")
_Classes = dict[str, ast.ClassDef]  # classes of a folder by name


@dataclass(frozen=True)
class CatalogueEntry:
    """A class or a configuration.

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
    folder, base = _KINDS[kind]
    return sorted(_classes(folder, base), key=lambda entry: entry.name)


def names(kind: str) -> list[str]:
    return [entry.name for entry in entries(kind)]


def configs() -> dict[str, Path]:
    """Finds the configurations included in the package, by name, such as `fedgroup/digits`."""
    folder = _HERE / "configs"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def _classes(folder: Path, base: str) -> Iterator[CatalogueEntry]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))]
    found = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    texts = {name: path.read_text(encoding="utf-8") for name, path in configs().items()}
    for name, node in found.items():
        if name.startswith("_") or name == base or not _derives(node, base, found) or _is_abstract(node):
            continue
        uses = [config for config, text in texts.items() if re.search(rf"class_path: (\S+\.)?{name}\b", text)]
        own = [config for config in uses if config.partition("/")[0] == name.lower()]
        yield CatalogueEntry(name, _first_line(ast.get_docstring(node)), _paper(node, found), (own or uses or [""])[0])


def _derives(node: ast.ClassDef, base: str, found: _Classes) -> bool:
    named = any(getattr(parent, "id", "") == base for parent in node.bases)
    return named or any(_derives(parent, base, found) for parent in _parents(node, found))


def _parents(node: ast.ClassDef, found: _Classes) -> list[ast.ClassDef]:
    """Lists the base classes of a class that are defined in the same folder."""
    return [found[parent.id] for parent in node.bases if isinstance(parent, ast.Name) and parent.id in found]


def _is_abstract(node: ast.ClassDef) -> bool:
    """Returns whether a class cannot be chosen: it names ABC among its bases, or has an abstract method."""
    functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    marks = [*node.bases, *(mark for part in functions for mark in part.decorator_list)]
    return any(getattr(mark, "id", "") in ("ABC", "abstractmethod") for mark in marks)


def _first_line(docstring: str | None) -> str:
    return (docstring or "").strip().split("\n")[0]


def _paper(node: ast.ClassDef, found: _Classes) -> str:
    """Reads the class variable `paper` of a class, or of its first parent in this folder that sets it."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and getattr(part.target, "id", "") == "paper" and part.value is not None:
            return str(ast.literal_eval(part.value))
    return next(filter(None, (_paper(parent, found) for parent in _parents(node, found))), "")


def _first_comment(path: Path) -> str:
    return path.read_text(encoding="utf-8").split("\n")[0].removeprefix("#").strip()
