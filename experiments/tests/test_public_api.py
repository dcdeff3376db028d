"""Tests that the experiments use only public names of Lit-CFL, as listed in docs/api.md."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments").glob("*.py"))
TABLE = (ROOT / "docs" / "api.md").read_text().partition("\n\n## ")[0]
MODULES = set(re.findall(r"^\| `([\w.]+)` \|", TABLE, flags=re.MULTILINE))


def faults(source: str) -> Iterator[str]:
    """Yields the non-public names that a source uses: internal names of Lit-CFL and private attributes of objects."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "lit_cfl")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lit_cfl":
            public = importlib.import_module(node.module or "").__all__ if node.module in MODULES else ()
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public)
        elif isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and ast.unparse(node.value) != "self":
            yield f".{node.attr}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_uses_public_names_alone(file: Path):
    assert list(faults(file.read_text("utf-8"))) == []


def test_private_names_are_found():
    assert len(FILES) > 15
    source = (
        "from lit_cfl.engines.plan import Plan\nfrom lit_cfl import run_many, _HOMES\nimport lit_cfl.cli\nx._y = 1\n"
    )
    assert list(faults(source)) == ["lit_cfl.engines.plan.Plan", "lit_cfl._HOMES", "lit_cfl.cli", "._y"]


def test_nothing_outside_of_the_experiments_imports_them():
    for folder in ("lit_cfl", "tune", "datamodules", "tests", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            assert not re.search(r"^\s*(from|import) experiments\b", file.read_text("utf-8"), re.MULTILINE), file
