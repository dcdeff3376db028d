"""Lit-CFL: clustered federated learning on PyTorch Lightning.

`Experiment` describes and runs one, `load_run` opens the directory of one that was run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lit_cfl.experiment import Experiment as Experiment
    from lit_cfl.saved import load_run as load_run

_HOMES = {"Experiment": "lit_cfl.experiment", "load_run": "lit_cfl.saved"}
__all__ = ["Experiment", "load_run"]


def __getattr__(name: str) -> Any:  # PyTorch loads with the first name that needs it: `lit-cfl --help` is instant
    if name not in _HOMES:
        raise AttributeError(f"module 'lit_cfl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
