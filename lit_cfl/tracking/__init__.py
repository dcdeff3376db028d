"""Trackers of a run: Weights & Biases, any Lightning logger, pictures."""

from lit_cfl.tracking.options import Tracking
from lit_cfl.tracking.trackers import Trackers

__all__ = ["Trackers", "Tracking"]
