"""Prints the versions and hardware of this machine, for a bug report: `lit-cfl doctor`."""

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lit_cfl.devices import count_cores
from lit_cfl.errors import LineParser
from lit_cfl.storage.cache_folder import cache_folder

_GIB = 2**30


def doctor(arguments: Sequence[str]) -> int:
    """Prints a line about each component, or the reason why it fails."""
    LineParser(prog="lit-cfl doctor", description="Prints versions and hardware.").parse_args(arguments)
    parts: dict[str, Callable[[], str]] = {
        "lit-cfl": lambda: f"{version('lit-cfl')} in {Path(__file__).parents[1]}",
        "python": lambda: f"{platform.python_version()} on {platform.platform()}",
        "cores": lambda: f"{count_cores()} of {os.cpu_count()}, load {os.getloadavg()[0]:.1f}",
        "torch": _torch,
        "device": _device,
        "chains": _chains,
        "lightning": lambda: version("lightning"),
        "ray": lambda: f"{version('ray')}, {_variable('RAY_ADDRESS')}",
        "wandb": lambda: f"{version('wandb')}, {_variable('WANDB_MODE')}",
        "data": lambda: f"datasets {version('datasets')}, {_variable('LITCFL_DATA')}",
        "cache": _cache,
        "disk": lambda: f"{shutil.disk_usage(Path()).free / _GIB:.1f} GiB free here, in {Path().resolve()}",
    }
    for name, part in parts.items():
        try:
            found = part()
        except PackageNotFoundError as error:
            found = f"{error.name} is not installed"
        except Exception as error:  # any error of a package or of the system belongs in the output
            found = f"fails: {type(error).__name__}: {error}"
        print(f"{name:<12}{found}")
    return 0


def _variable(name: str) -> str:
    return f"{name} {os.environ.get(name, 'not set')}"


def _torch() -> str:
    import torch

    return f"{torch.__version__}, {_variable('OMP_NUM_THREADS')}"


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu (torch finds no CUDA device)"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{', '.join(names)} (CUDA {torch.version.cuda})"


def _chains() -> str:
    from lit_cfl.engines.steps import REMEDY, load_library

    library, words = load_library()
    return words if library is not None else f"NOT compiled ({words}): small nets train slowly on a CPU; {REMEDY}"


def _cache() -> str:
    folder = cache_folder()
    if folder is None:
        return "off (LITCFL_CACHE)" if os.environ.get("LITCFL_CACHE") == "off" else "off (no home folder)"
    above = next(part for part in (folder, *folder.parents) if part.exists())
    state = "writable" if os.access(above, os.W_OK) and above.is_dir() else "NOT writable"
    return f"{folder}, {state}, {shutil.disk_usage(above).free / _GIB:.1f} GiB free"
