"""`environment.json`: versions and hardware of a run, and their changes at each resume."""

import json
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lit_cfl.engines.plan import Plan
from lit_cfl.engines.reproducible_products import SETTING
from lit_cfl.engines.steps import describe_steps

ENVIRONMENT = "environment.json"
_PACKAGES = ("lit-cfl", "torch", "lightning", "numpy", "scikit-learn", "scipy")


def read_run_id(path: Path) -> str | None:
    """Reads the id of the run in a directory, which W&B and TensorBoard know it by; None if there is none."""
    try:
        return str(json.loads((path / ENVIRONMENT).read_text("utf-8"))["run_id"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def environment() -> dict[str, Any]:
    """Collects versions and hardware, without personal data."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": sys.version.split()[0],
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": processor_name(),
        "chains": describe_steps(),
        SETTING: os.environ.get(SETTING, ""),
        "gpus": gpus,
        "packages": {package: _version_of(package) for package in _PACKAGES},
    }


def resumed_environment(before: Mapping[str, Any], plan: Plan, rounds: int) -> tuple[dict[str, Any], str]:
    """Returns the environment to record when a run is resumed, and what has changed in it.

    Args:
        before: Recorded environment.
        plan: Plan of the remaining rounds.
        rounds: Number of completed rounds.

    Returns:
        The environment now, in which `earlier` lists what was different in the completed rounds, and these differences
        in words, as far as they change how sums round; "" = none.
    """
    from lit_cfl.engines.ways import get_way  # imports Lightning

    now = environment()
    parts = {"processor": "processor", SETTING: SETTING} if plan.device == "cpu" else {"GPUs": "gpus"}
    if get_way(plan.engine).uses_compiled_steps and plan.device == "cpu":
        parts["small nets"] = "chains"
    changed = [
        f"{name} {_in_words(now[key])}, not {_in_words(before[key])}"
        for name, key in parts.items()
        if before[key] != now[key]
    ]
    torch_before = before["packages"]["torch"]
    if torch_before != now["packages"]["torch"]:
        changed.append(f"torch {now['packages']['torch']}, not {torch_before}")
    if not changed:
        return dict(before), ""
    words = "; ".join(changed)
    return {**before, **now, "earlier": [*before.get("earlier", []), f"after round {rounds}: {words}"]}, words


def _in_words(value: Any) -> str:
    return ", ".join(value) or "none" if isinstance(value, list) else str(value) or "unset"


def processor_name() -> str:
    """Returns the name of the processor. Other processors may round sums differently."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


@cache  # searching for all packages takes 8 ms
def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
