"""Tests that the source imports downwards only, in the layers that docs/architecture.md lists."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = re.findall(r"\n\| .*?\n\|[-|]+\n(.*?)\n\n", (ROOT / "docs" / "architecture.md").read_text("utf-8"), re.DOTALL)
LAYERS, IMPORTERS = ([re.findall(r"^\|(.*?)\|(.*?)\|", row)[0] for row in table.splitlines()] for table in TABLES[:2])
HEIGHT = {part: -number for number, (_, parts) in enumerate(LAYERS) for part in re.findall(r"`(.*?)`", parts)}
FILES = {
    ".".join([package, *file.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(".__init__"): file
    for folder, package in {"lit_cfl": "lit_cfl", "tune": "lit_cfl.tune", "datamodules": "lit_cfl.datamodules"}.items()
    for file in (ROOT / folder).rglob("*.py")
}


def part_of(module: str) -> str:
    """Returns the part of the page's table to which a module belongs; empty for the package itself."""
    inside = module.removeprefix("lit_cfl").lstrip(".")
    return max((part for part in HEIGHT if f"{inside}.".startswith(f"{part}.")), key=len, default=inside)


def imports(file: Path) -> set[str]:
    """Returns the modules that a file imports, also inside functions; imports for type checkers alone do not count."""
    tree = ast.parse(file.read_text("utf-8"))
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    skipped = {node for check in checks for statement in check.body for node in ast.walk(statement)}
    nodes = [node for node in ast.walk(tree) if node not in skipped]
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    whole = {(node.module, f"{node.module}.{alias.name}") for node in froms for alias in node.names}
    return found | {longer if longer in FILES else str(module) for module, longer in whole}


IMPORTS = {module: imports(file) for module, file in FILES.items() if module not in ("lit_cfl", "lit_cfl.__main__")}


def test_no_part_imports_a_layer_above_or_in_a_circle():
    between = {part: set[str]() for part in HEIGHT}
    for module, used in IMPORTS.items():
        between[part_of(module)] |= {part_of(one) for one in used if one.startswith("lit_cfl.")} - {part_of(module)}
    assert [(part, other) for part, used in between.items() for other in used if HEIGHT[other] > HEIGHT[part]] == []
    TopologicalSorter(between).prepare()  # raises CycleError
    TopologicalSorter({module: used & set(FILES) for module, used in IMPORTS.items()}).prepare()


def test_large_packages_are_imported_by_the_parts_of_the_page_only():
    assert len(IMPORTERS) > 5
    for packages, allowed in IMPORTERS:
        for package in re.findall(r"`(.*?)`", packages):
            users = {part_of(m) for m, used in IMPORTS.items() if any(f"{u}.".startswith(f"{package}.") for u in used)}
            assert users <= set(re.findall(r"`(.*?)`", allowed)), package
