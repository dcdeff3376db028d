"""Trackers of a run: Weights & Biases, any Lightning logger, pictures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lit_cfl.tracking.options import Tracking as Tracking
    from lit_cfl.tracking.trackers import Trackers as Trackers

_HOMES = {"Trackers": "trackers", "Tracking": "options"}
__all__ = ["Trackers", "Tracking"]


def __getattr__(name: str) -> Any:  # `lit-cfl doctor` asks for W&B's mode, and needs no Lightning
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
