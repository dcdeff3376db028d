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
        "kernels": _kernels,
        "chains": _chains,
        "lightning": lambda: version("lightning"),
        "ray": lambda: f"{version('ray')}, RAY_ADDRESS {os.environ.get('RAY_ADDRESS', 'not set')}",
        "wandb": lambda: f"{version('wandb')}, WANDB_MODE {os.environ.get('WANDB_MODE', 'not set')}",
        "data": lambda: f"datasets {version('datasets')}, LITCFL_DATA {os.environ.get('LITCFL_DATA', 'not set')}",
        "cache": _cache,
        "disk": lambda: f"{shutil.disk_usage(Path()).free / _GIB:.1f} GiB free here, in {Path().resolve()}",
    }
    for name, part in parts.items():
        print(f"{name:<12}{_result_of(part)}")
    return 0


def _result_of(part: Callable[[], str]) -> str:
    try:
        return part()
    except PackageNotFoundError as error:
        return f"{error.name} is not installed"
    except Exception as error:  # any error of a package or of the system belongs in the output
        return f"fails: {type(error).__name__}: {error}"


def _torch() -> str:
    import torch

    threads = f"{torch.get_num_threads()} threads, OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}"
    return f"{torch.__version__}, {threads}"


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu (torch finds no CUDA device)"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{', '.join(names)} (CUDA {torch.version.cuda})"


def _kernels() -> str:
    import torch

    libraries = {"MKL": torch.backends.mkl.is_available(), "oneDNN": torch.backends.mkldnn.is_available()}
    found = ", ".join(name for name, there in libraries.items() if there) or "neither MKL nor oneDNN"
    return f"{torch.backends.cpu.get_cpu_capability()}, {found}"


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
