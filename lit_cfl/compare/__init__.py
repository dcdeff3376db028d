"""Compares algorithms on the same clients over several seeds: `lit-cfl compare`, in Python `lit_cfl.compare(...)`."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Compare(ModuleType):
    """Module type that makes this package callable as `lit_cfl.compare(...)`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        # by its name, as the package's other modules are below the commands; imports PyTorch
        return import_module("lit_cfl.compare.from_python").compare(*arguments, **options)


sys.modules[__name__].__class__ = _Compare
