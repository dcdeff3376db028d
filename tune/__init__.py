"""Hyper-parameter search with Ray Tune: `lit-cfl tune`, in Python `lit_cfl.tune(...)`, and `lit-cfl launch`."""

import sys
from types import ModuleType
from typing import Any


class _Tune(ModuleType):
    """Module type that makes this package callable as `lit_cfl.tune(...)`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from lit_cfl.tune.from_python import tune  # imports Ray

        return tune(*arguments, **options)


sys.modules[__name__].__class__ = _Tune
