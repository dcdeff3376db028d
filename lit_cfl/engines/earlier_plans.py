"""Detects plans of versions before 0.3, which trained clients in ways that no longer exist."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lit_cfl.errors import InputError

_PARTS = ("narrow", "steps_per_call", "compile", "products", "fused", "dual")
_ENGINES = {"stacked": "stack (on a GPU), chain or loop (on a CPU)"}  # removed engines, and what replaced them


def refuse_earlier(where: str, config: Mapping[str, Any]) -> None:
    """Raises InputError if a configuration sets an engine or a part of a plan that version 0.3 removed.

    Args:
        where: Start of the message, before the option's name, such as `run.yaml: `.
    """
    for name, asked in (("engine", config.get("engine")), ("plan.engine", _plan(config).get("engine"))):
        if asked in _ENGINES:
            raise InputError(
                f"{where}{name} {asked} was removed in version 0.3; its replacement is {_ENGINES[asked]}: leave it "
                "out, or write auto"
            )
    for part in _PARTS:
        if _plan(config).get(part) is not None:
            raise InputError(
                f"{where}plan.{part} was removed in version 0.3: the engine decides how clients train; leave it out"
            )


def is_earlier(config: Mapping[str, Any]) -> bool:
    """Returns whether a configuration has a plan that was recorded by a version before 0.3."""
    return any(part in _plan(config) for part in _PARTS) or _plan(config).get("engine") in _ENGINES


def without_earlier_plan(config: Mapping[str, Any]) -> dict[str, Any]:
    """Removes the plan from an earlier run's configuration, so that a new one is chosen."""
    engine = config.get("engine", "auto")
    return {**config, "engine": "auto" if engine in _ENGINES else engine, "plan": None}


def refuse_earlier_run(path: Path, config: Mapping[str, Any]) -> None:
    """Raises InputError for a run trained by a version before 0.3: its results cannot be continued bit for bit.

    Args:
        path: Folder of the run.
        config: Recorded configuration of the run.
    """
    if is_earlier(config):
        file = path / "environment.json"
        packages = json.loads(file.read_text("utf-8")).get("packages", {}) if file.exists() else {}
        version = packages.get("lit-cfl") or "of a version before 0.3"
        raise InputError(
            f"{path} was trained by Lit-CFL {version}, under a plan that this version no longer has "
            f"({_in_words(_plan(config))}): resume it with that version, or add --new_plan to continue under a plan of "
            "this one (results may differ by rounding)"
        )


def _plan(config: Mapping[str, Any]) -> Mapping[str, Any]:
    plan = config.get("plan")
    return plan if isinstance(plan, Mapping) else {}


def _in_words(plan: Mapping[str, Any]) -> str:
    ways = [part for part in ("fused", "dual", "compile") if plan.get(part)]
    return f"engine {plan.get('engine')}{''.join(f', {way}' for way in ways)}"
