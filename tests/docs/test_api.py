"""Tests that `docs/api.md` lists all public names, and that README, pages and configurations use no others."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTERNAL = {"architecture.md", "algorithm_interface.md", "disputed_points.md"}  # pages on the source itself
PAGES = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in INTERNAL]
FILES = [ROOT / "README.md", *PAGES, *(ROOT / "configs").rglob("*.yaml")]
ROW = re.compile(r"^\| `([\w.]+)` \|[^|]*\|([^|]*)\|$", re.MULTILINE)
TABLE = ROW.findall((ROOT / "docs" / "api.md").read_text())
PUBLIC = {module: re.findall(r"`([^`]+)`", names) for module, names in TABLE}


def names_used(text: str) -> set[str]:
    """Returns the dotted names of Lit-CFL that a text quotes, uses as class paths, or imports."""
    imports = re.findall(r"^ *from (lit_cfl[\w.]*) import ([\w, ]+)", text, flags=re.MULTILINE)
    found = {f"{module}.{name}" for module, names in imports for name in names.split(", ")}
    return found | set(re.findall(r"(?:`|class_path: )(lit_cfl(?:\.\w+)+)", text))


def is_public(name: str) -> bool:
    """Returns whether a dotted name is a public module, a public name, or an attribute of a public name."""
    modules = [module for module in PUBLIC if f"{name}.".startswith(f"{module}.")]
    rest = [name.removeprefix(module).lstrip(".").partition(".")[0] for module in modules]
    return any(not first or first in PUBLIC[module] for module, first in zip(modules, rest, strict=True))


@pytest.mark.parametrize("module", PUBLIC)
def test_the_page_lists_what_a_public_module_exports_and_each_name_exists(module: str):
    loaded = importlib.import_module(module)
    assert PUBLIC[module] == list(loaded.__all__)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


def test_pages_and_configurations_use_public_names_only():
    used = {(file.name, name) for file in FILES for name in names_used(file.read_text())}
    assert len(used) > 50
    assert [(file, name) for file, name in sorted(used) if not is_public(name)] == []
    assert not is_public("lit_cfl.local_work.per_client")
