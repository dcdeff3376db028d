"""Draws `docs/architecture.png`: the folders of the package in layers, found by reading every import.

    python benchmarks/architecture.py

A folder lies one layer above the highest folder that it imports, lazily or not. An arrow that would point upwards, or a
circle, ends the script with its name. `tests/docs/test_architecture.py` uses the same functions.
"""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"lit_cfl": ROOT / "lit_cfl", "lit_cfl.tune": ROOT / "tune", "lit_cfl.datamodules": ROOT / "datamodules"}
APART = ("engines.stacked", "engines.ray", "engines.factory")  # parts of a folder that count for themselves
Imports = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Returns every module by its dotted name."""
    found = {}
    for package, folder in SOURCES.items():
        for file in sorted(folder.rglob("*.py")):
            parts = [part for part in file.relative_to(folder).with_suffix("").parts if part != "__init__"]
            found[".".join([package, *parts])] = file
    return found


def imports() -> Imports:
    """Returns what each module imports, by dotted names: ours as modules, others as top-level packages."""
    known = modules()
    return {name: set(_imported(ast.parse(file.read_text("utf-8")), known)) for name, file in known.items()}


def _imported(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from _name(whole if whole in known else node.module)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from _name(alias.name)


def _name(dotted: str) -> Iterator[str]:
    yield dotted if dotted.startswith("lit_cfl") else dotted.partition(".")[0]


def folder_of(module: str) -> str:
    """Returns the folder that a module belongs to; a module at the top of the package stands for itself."""
    inside = module.removeprefix("lit_cfl").lstrip(".")
    for apart in APART:
        if inside == apart or inside.startswith(f"{apart}."):
            return apart
    return inside.partition(".")[0] or "lit_cfl"


def folders(found: Imports | None = None) -> Imports:
    """Returns which folder imports which other one. The package's own `__init__` loads lazily and is left out."""
    between: Imports = {}
    for module, used in (found or imports()).items():
        here = folder_of(module)
        if here in ("lit_cfl", "__main__"):
            continue
        ours = {folder_of(name) for name in used if name.startswith("lit_cfl")} - {here, "lit_cfl"}
        between.setdefault(here, set()).update(ours)
    return between


def layers(between: Imports) -> list[list[str]]:
    """Returns the folders from the lowest layer to the highest.

    Raises:
        SystemExit: folders import each other in a circle.
    """
    try:
        order = list(TopologicalSorter(between).static_order())
    except CycleError as error:
        raise SystemExit(f"these import each other: {' -> '.join(error.args[1])}") from error
    level: dict[str, int] = {}
    for folder in order:
        level[folder] = 1 + max((level[used] for used in between.get(folder, ())), default=-1)
    return [sorted(name for name in level if level[name] == number) for number in range(max(level.values()) + 1)]


def draw(path: Path) -> None:
    """Draws the layers, the highest on top, with a thin line for each import between folders."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    between = folders()
    rows = layers(between)
    figure = Figure(figsize=(11, 0.85 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    place = {}
    for level, row in enumerate(rows):
        for number, name in enumerate(row):
            place[name] = ((number + 0.5) / len(row), level)
    for name, used in between.items():
        for other in used:
            (x, y), (to_x, to_y) = place[name], place[other]
            axes.plot([x, to_x], [y - 0.22, to_y + 0.22], color="0.8", linewidth=0.7, zorder=1)
    for name, (x, y) in place.items():
        width = 0.012 * len(name) + 0.02
        box = FancyBboxPatch((x - width / 2, y - 0.22), width, 0.44, boxstyle="round,pad=0,rounding_size=0.01",
                             facecolor="white", edgecolor="#4477aa", zorder=2)  # fmt: skip
        axes.add_patch(box)
        axes.text(x, y, name, ha="center", va="center", fontsize=9, zorder=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    axes.axis("off")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(ROOT / "docs" / "architecture.png")
