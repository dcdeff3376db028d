"""Tests that `docs/api.md` lists all public names, and that README and pages use no others."""

import ast
import importlib
import importlib.metadata
import re
from pathlib import Path

import pytest
import yaml

import lit_cfl

ROOT = Path(__file__).parents[2]
INTERNAL = {"architecture.md", "testing.md", "disputed_points.md"}  # pages on the source itself
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in INTERNAL)]
TABLE = (ROOT / "docs" / "api.md").read_text().partition("\n\n## ")[0]
PUBLIC = {
    module: re.findall(r"`([^`]+)`", names)
    for module, names in re.findall(r"^\| `([\w.]+)` \|[^|]*\|([^|]*)\|$", TABLE, flags=re.MULTILINE)
}


def imported(code: str) -> set[str]:
    """Returns the dotted names of Lit-CFL that Python code imports."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lit_cfl"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("lit_cfl")}
    return found


def class_paths(value: object) -> set[str]:
    """Returns the class paths of Lit-CFL in the content of a YAML file."""
    if isinstance(value, dict):
        own = {value["class_path"]} if str(value.get("class_path", "")).startswith("lit_cfl") else set()
        return own.union(*map(class_paths, value.values()))
    return set().union(*map(class_paths, value)) if isinstance(value, list) else set()


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_public_names_only(page: Path):
    text = page.read_text()
    python = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    yamls = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    used = set().union(*map(imported, python), *(class_paths(yaml.safe_load(block)) for block in yamls))
    used |= set(re.findall(r"`(lit_cfl(?:\.\w+)+)", text))
    assert [name for name in sorted(used) if not is_public(name)] == []


def test_configurations_name_public_classes_only():
    found = {
        name for file in (ROOT / "configs").rglob("*.yaml") for name in class_paths(yaml.safe_load(file.read_text()))
    }
    assert [name for name in sorted(found) if not is_public(name)] == []


def test_an_internal_name_is_not_public():
    assert imported("def f():\n    from lit_cfl.engines.engine import Engine") == {"lit_cfl.engines.engine.Engine"}
    assert not is_public("lit_cfl.engines.engine.Engine")
    assert not is_public("lit_cfl.local_work.per_client")
    assert is_public("lit_cfl.local_work.Fitted.chunks")


def test_the_version_is_that_of_the_installed_package():
    assert lit_cfl.__version__ == importlib.metadata.version("lit-cfl")
