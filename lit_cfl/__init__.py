"""Lit-CFL: clustered federated learning on PyTorch Lightning.

`Experiment` describes an experiment and iterates over its rounds, `load_experiment` reads one from a configuration,
`run` writes a run directory, `load_run` opens one, `run_many` runs many experiments side by side. `compare` and `tune`
are the commands of these names and return pandas tables. `docs/api.md` lists all public names.
"""

from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lit_cfl.engines.reproducible_products import ask_for_reproducible_products

if TYPE_CHECKING:
    from lit_cfl.compare.from_python import compare as compare
    from lit_cfl.config.variants import load_experiment as load_experiment
    from lit_cfl.experiment import Experiment as Experiment
    from lit_cfl.runs.load_run import load_run as load_run
    from lit_cfl.runs.many import run_many as run_many
    from lit_cfl.runs.run import run as run
    from lit_cfl.tune.from_python import tune as tune

    __version__: str

ask_for_reproducible_products()  # must run before the first matrix product of each process
_HOMES = {
    "Experiment": "lit_cfl.experiment",
    "load_experiment": "lit_cfl.config.variants",
    "load_run": "lit_cfl.runs.load_run",
    "run": "lit_cfl.runs.run",
    "run_many": "lit_cfl.runs.many",
}
_CALLABLE = ("compare", "tune")  # packages that can be called like functions
__all__ = ["Experiment", "__version__", "compare", "load_experiment", "load_run", "run", "run_many", "tune"]


class CallablePackage(ModuleType):
    """Package that can be called like the function of its name, which is in its module `from_python`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        own = import_module(f"{self.__name__}.from_python")  # only now, since it imports PyTorch or Ray
        return getattr(own, self.__name__.rpartition(".")[2])(*arguments, **options)


def __getattr__(name: str) -> Any:  # the first name that needs PyTorch loads it, so `lit-cfl --help` is instant
    if name == "__version__":
        return version("lit-cfl")
    if name in _CALLABLE:
        return import_module(f"lit_cfl.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'lit_cfl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
