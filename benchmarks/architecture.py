"""Draws `docs/architecture.png`: the parts of the package in the layers listed in `docs/architecture.md`.

    python benchmarks/architecture.py

The arrows are the imports in the source, including those inside functions. Arrows that follow from others are left out,
as are those to the lowest layer, which everything uses. `tests/docs/test_architecture.py` uses the same functions and
compares the description stored in the PNG with the source.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "architecture.png"
SOURCES = {"lit_cfl": ROOT / "lit_cfl", "lit_cfl.tune": ROOT / "tune", "lit_cfl.datamodules": ROOT / "datamodules"}
APART = ("engines.ray", "engines.choose_plan", "runs.many")  # modules and subfolders that are shown as separate parts
ENTRIES = ("", "__main__")  # left out: `lit_cfl/__init__.py` and `python -m lit_cfl` import everything lazily, by name
Imports = dict[str, set[str]]


def find_modules() -> dict[str, Path]:
    """Maps the dotted name of each module to its file."""
    found = {}
    for package, folder in SOURCES.items():
        for file in sorted(folder.rglob("*.py")):
            parts = [part for part in file.relative_to(folder).with_suffix("").parts if part != "__init__"]
            found[".".join([package, *parts])] = file
    return found


def read_imports() -> Imports:
    """Returns the modules that each of our modules imports, including those of other packages."""
    known = find_modules()
    return {name: set(list_imported_names(file.read_text("utf-8"), known)) for name, file in known.items()}


def list_imported_names(source: str, known: Mapping[str, Path]) -> Iterator[str]:
    """Yields the dotted names of the modules that a module's source imports, also inside functions.

    Imports for type checkers alone, under `if TYPE_CHECKING`, are left out.
    """
    tree = ast.parse(source)
    for_types = [
        part for part in ast.walk(tree) if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING"
    ]
    left_out = {id(node) for part in for_types for statement in part.body for node in ast.walk(statement)}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def part_of(module: str) -> str:
    """Returns the part of the package to which a module belongs: its folder, or the module itself at the top level."""
    inside = module.removeprefix("lit_cfl").removeprefix(".")
    apart = [name for name in APART if f"{inside}.".startswith(f"{name}.")]
    return apart[0] if apart else inside.partition(".")[0]


def group_by_part(found: Imports) -> Imports:
    """Groups imports by part: the other parts of the package that each part imports."""
    between: Imports = {}
    for module, used in found.items():
        here = part_of(module)
        if here not in ENTRIES:
            ours = {part_of(name) for name in used if name.partition(".")[0] == "lit_cfl"}
            between.setdefault(here, set()).update(ours - {here, *ENTRIES})
    return between


def find_cycle(between: Imports) -> list[str]:
    """Returns the names along one import cycle, the first repeated at the end; empty if there is no cycle."""
    try:
        TopologicalSorter(between).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def layers_of_the_page() -> dict[str, list[str]]:
    """Reads the parts of each layer, highest layer first, from the table in `docs/architecture.md`."""
    table = PAGE.read_text("utf-8").partition("| layer |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")]
    return {layer.strip(): re.findall(r"`([^`]+)`", cell) for layer, cell in rows}


def choose_arrows(between: Imports, layers: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """Returns the imports to draw: all except imports of parts in the lowest layer and imports implied by others."""
    lowest = list(layers.values())[-1]
    below: Imports = {}
    for part in TopologicalSorter(between).static_order():
        below[part] = set().union(*(below[used] | {used} for used in between.get(part, ())))
    return sorted(
        (part, used)
        for part, all_used in between.items()
        for used in all_used - set(lowest)
        if not any(used in below[other] for other in all_used)
    )


def arrange_rows(layers: Mapping[str, list[str]], between: Imports) -> list[tuple[str, list[str]]]:
    """Returns the rows of the picture from lowest to highest, each with the name of its layer."""
    (lowest, basics), *above = reversed(layers.items())
    size = -(-len(basics) // 3)
    found = [(lowest, basics[start : start + size]) for start in (2 * size, size, 0)]
    for layer, names in above:
        level: dict[str, int] = {}
        for name in TopologicalSorter({name: between[name] & set(names) for name in names}).static_order():
            level[name] = 1 + max((level[used] for used in between[name] & set(names)), default=-1)
        found += [(layer, [name for name in names if level[name] == row]) for row in range(max(level.values()) + 1)]
    return found


def place_parts(rows: list[tuple[str, list[str]]], drawn: list[tuple[str, str]]) -> dict[str, float]:
    """Returns a horizontal position in [0, 1] for each part, evenly spaced within its row.

    Within a row, parts are ordered by the mean position of the parts that arrows connect them with.

    A part that is alone in its row is shifted slightly to the left or right, so that no arrow runs behind it.
    """
    spread = {name: (number + 0.5) / len(row) for _, row in rows for number, name in enumerate(row)}
    for _ in range(20):
        near = {name: [spread[b if a == name else a] for a, b in drawn if name in (a, b)] for name in spread}
        mean = {name: sum(places) / len(places) if places else spread[name] for name, places in near.items()}
        for height, (_, row) in enumerate(rows):
            aside = 0.06 if height % 2 else -0.06
            for number, name in enumerate(sorted(row, key=lambda name: mean[name])):
                spread[name] = (number + 0.5) / len(row) if len(row) > 1 else min(max(mean[name], 0.15), 0.85) + aside
    return spread


def draw(path: Path) -> None:
    """Draws the layers as bands, highest on top, and stores a description of the drawing in the PNG's metadata."""
    from matplotlib.figure import Figure

    between, layers = group_by_part(read_imports()), layers_of_the_page()
    drawn, rows = choose_arrows(between, layers), arrange_rows(layers, between)
    spread = place_parts(rows, drawn)
    place = {name: (spread[name], height) for height, (_, row) in enumerate(rows) for name in row}
    figure = Figure(figsize=(11, 0.5 * len(rows)), layout="constrained")
    axes = figure.add_subplot(xlim=(-0.17, 1), ylim=(-0.5, len(rows) - 0.5))
    axes.axis("off")
    for number, layer in enumerate(layers):
        heights = [height for height, (name, _) in enumerate(rows) if name == layer]
        low, high = min(heights) - 0.5, max(heights) + 0.5
        axes.axhspan(low, high, color="0.93" if number % 2 else "0.98", zorder=0)
        axes.text(-0.16, (low + high) / 2, layer, va="center", fontsize=11, color="0.25")
    for part, used in drawn:
        axes.annotate(
            "",
            xy=(place[used][0], place[used][1] + 0.28),
            xytext=(place[part][0], place[part][1] - 0.28),
            arrowprops={"arrowstyle": "-|>", "color": "#88a4c4", "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0},
        )
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "#4477aa"}
    for name, (x, y) in place.items():
        axes.text(x, y, name, ha="center", va="center", fontsize=10, bbox=box, zorder=3)
    figure.savefig(path, dpi=110, metadata={"Description": describe_drawing(layers, drawn), "Software": None})


def describe_drawing(layers: Mapping[str, list[str]], drawn: list[tuple[str, str]]) -> str:
    """Describes the contents of the picture as JSON."""
    return json.dumps({"layers": layers, "arrows": drawn})


if __name__ == "__main__":
    draw(PICTURE)
