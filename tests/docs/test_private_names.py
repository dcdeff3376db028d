"""Tests that no private name of another package is used, since it may change without notice."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("lit_cfl", "tune", "datamodules")
LIBRARIES = ("torch", "torchvision", "ray", "optuna", "lightning")
ALLOWED = {  # private names without a public replacement, by file; the reason is given in that file
    "lit_cfl/engines/stacked/torch_internals.py": {
        "torch._subclasses.fake_tensor",
        "torch.utils._python_dispatch",
        "torch.utils._pytree",
    },
    "lit_cfl/cli/main.py": {"_exit"},  # documented by Python's os
    "datamodules/source.py": {"_fingerprint"},  # Hugging Face's datasets identifies a data set by it
}


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name.isidentifier()


def names_of(tree: ast.AST) -> Iterator[str]:
    """Yields the names that a file defines or assigns."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield name


def private_names(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Yields the private names of other packages that a file uses, imported or as attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in LIBRARIES:
                yield from [module] if any(map(is_private, module.split("."))) else []
                yield from (one.name for one in names if is_private(one.name))
            case ast.Import(names=names):
                yield from (one.name for one in names if any(map(is_private, one.name.split("."))))
            case ast.Attribute(attr=name) if is_private(name) and name not in own:
                yield name
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=name), *_]
            ) if is_private(name) and name not in own:
                yield name


def test_no_private_name_of_another_package_is_used_but_where_it_is_explained():
    files = [file for place in PLACES for file in (ROOT / place).rglob("*.py")]
    trees = {str(file.relative_to(ROOT)): ast.parse(file.read_text("utf-8")) for file in files}
    own = {name for tree in trees.values() for name in names_of(tree)}
    for file, tree in trees.items():
        assert set(private_names(tree, own)) == ALLOWED.get(file, set()), file


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from torch.nn.modules.batchnorm import _BatchNorm", ["_BatchNorm"]),
        ("from ray.tune._internal import x", ["ray.tune._internal"]),
        ("import optuna._hypervolume", ["optuna._hypervolume"]),
        ("layer._forward_hooks", ["_forward_hooks"]),
        ("getattr(layer, '_forward_hooks')", ["_forward_hooks"]),
        ("self._mine; self.__dict__; from_us._mine", []),
    ],
)
def test_private_names_are_found_however_they_are_written(code: str, found: list[str]):
    assert list(private_names(ast.parse(code), {"_mine"})) == found
