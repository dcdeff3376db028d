"""Tests `docs/architecture.md` against the source: layers, both tables, the picture, and names."""

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmark_scripts import loaded
from PIL import Image

ROOT = Path(__file__).parents[2]
architecture = loaded("architecture")
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
LAYERS: dict[str, list[str]] = architecture.layers_of_the_page()


@pytest.fixture(scope="module")
def found() -> dict[str, set[str]]:
    """Returns the imports of each module of the source."""
    return architecture.read_imports()


def importers() -> dict[str, set[str]]:
    """Returns the parts that may import each package, from the second table of the page."""
    table = PAGE.partition("| may be imported by |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    names = [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows]
    return {package: set(parts) for packages, parts in names for package in packages}


def importing(package: str, imports: dict[str, set[str]]) -> set[str]:
    """Returns the modules that import a package or something inside it."""
    return {name for name, used in imports.items() if any(f"{other}.".startswith(f"{package}.") for other in used)}


def faults(imports: dict[str, set[str]]) -> Iterator[str]:
    """Yields descriptions of imports that break a rule of the page."""
    between = architecture.group_by_part(imports)
    if circle := architecture.find_cycle(between):
        yield f"imported in a circle: {' -> '.join(circle)}"
    known = architecture.find_modules()
    ours = {name: {used for used in imports[name] if used in known} for name in imports}
    if circle := architecture.find_cycle(ours):
        yield f"imported in a circle: {' -> '.join(circle)}"
    height = {part: -number for number, parts in enumerate(LAYERS.values()) for part in parts}
    for part, used in between.items():
        yield from (f"{part} is in no layer" for _ in [part] if part not in height)
        yield from (f"{part} imports {other}, a layer above" for other in used if height[other] > height.get(part, 0))
    for package, allowed in importers().items():
        for name in importing(package, imports):
            if architecture.part_of(name) not in allowed:
                yield f"{name} imports {package}"


def test_no_import_breaks_a_rule_of_the_page(found: dict[str, set[str]]):
    assert list(faults(found)) == []


def test_a_class_name_has_one_meaning():
    places: dict[str, list[str]] = {}
    for folder in ("lit_cfl", "tune", "datamodules"):
        for file in (ROOT / folder).rglob("*.py"):
            if not any(part.is_symlink() for part in file.parents):
                for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                    if isinstance(node, ast.ClassDef):
                        places.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_each_part_of_the_page_exists_once(found: dict[str, set[str]]):
    listed = [part for parts in LAYERS.values() for part in parts]
    assert sorted(listed) == sorted(architecture.group_by_part(found))


def test_each_part_that_may_import_a_package_does(found: dict[str, set[str]]):
    assert len(importers()) > 5
    for package, allowed in importers().items():
        if not package.startswith("lit_cfl"):
            assert {architecture.part_of(name) for name in importing(package, found)} == allowed, package


@pytest.mark.parametrize(
    ("module", "imported", "fault"),
    [
        ("lit_cfl.algorithms.ifca", "lit_cfl.engines.engine", "algorithms imports engines, a layer above"),
        ("lit_cfl.algorithms.ifca", "lit_cfl.data", "algorithms imports data, a layer above"),
        ("lit_cfl.data.index", "lit_cfl.datamodules", "imported in a circle"),
        ("lit_cfl.nets.base", "lit_cfl.nets.cnn", "imported in a circle"),
        ("lit_cfl.new_file", "lit_cfl.errors", "new_file is in no layer"),
        ("lit_cfl.clustering.merging", "lightning.pytorch", "lit_cfl.clustering.merging imports lightning"),
        ("lit_cfl.engines.stacked.way", "ray", "lit_cfl.engines.stacked.way imports ray"),
        ("lit_cfl.runs.run", "wandb", "lit_cfl.runs.run imports wandb"),
        ("lit_cfl.data.npz", "datasets", "lit_cfl.data.npz imports datasets"),
        ("lit_cfl.experiment", "jsonargparse", "lit_cfl.experiment imports jsonargparse"),
        ("lit_cfl.runs.many", "optuna", "lit_cfl.runs.many imports optuna"),
        ("lit_cfl.evaluation", "matplotlib.figure", "lit_cfl.evaluation imports matplotlib"),
        ("lit_cfl.runs.run", "rich.table", "lit_cfl.runs.run imports rich"),
        ("lit_cfl.tracking.media", "pandas", "lit_cfl.tracking.media imports pandas"),
        ("lit_cfl.rounds", "lit_cfl.engines.trainer", "lit_cfl.rounds imports lit_cfl.engines.trainer"),
        ("lit_cfl.experiment", "lit_cfl.engines.ray.engine", "lit_cfl.experiment imports lit_cfl.engines.ray.engine"),
    ],
)
def test_a_planted_import_is_found(found: dict[str, set[str]], module: str, imported: str, fault: str):
    planted = found | {module: found.get(module, set()) | {imported}}
    assert any(broken.startswith(fault) for broken in faults(planted))


def test_imports_inside_functions_count():
    source = "def f():\n    from lit_cfl.rounds import rounds\n    import ray.tune\n"
    assert set(architecture.list_imported_names(source, architecture.find_modules())) == {"lit_cfl.rounds", "ray.tune"}


def test_the_picture_shows_the_layers_and_imports_of_the_source(found: dict[str, set[str]]):
    with Image.open(ROOT / "docs" / "architecture.png") as picture:
        shown = json.loads(picture.info["Description"])
    drawn = architecture.choose_arrows(architecture.group_by_part(found), LAYERS)
    assert shown == json.loads(architecture.describe_drawing(LAYERS, drawn)), "run python benchmarks/architecture.py"


def test_each_path_on_the_page_exists():
    paths = re.findall(r"`((?:lit_cfl|tune|datamodules|tests|benchmarks|docs)/[\w/.]*)`", PAGE)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_dotted_name_on_the_page_exists():
    names = re.findall(r"`(lit_cfl(?:\.\w+)+)`", PAGE)
    assert len(names) > 8
    for name in names:
        if name not in architecture.find_modules():
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), name


def test_tests_mirror_the_source_and_no_two_files_of_theirs_share_a_name():
    files = [file.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("*.py")]
    for folder in {file.parent for file in files if file.name.startswith("test_")}:
        assert any((ROOT / place / folder).is_dir() for place in ("", "lit_cfl")), folder
    assert {str(file.parent) for file in files if not file.name.startswith("test_")} == {
        ".",
        "cli/mistakes",
        "helpers",
        "typed",
    }
    assert len({file.name for file in files}) == len(files)
