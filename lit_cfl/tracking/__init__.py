"""Where a run goes beside its files: Weights & Biases, any Lightning logger, pictures."""

from lit_cfl.tracking.options import Tracking
from lit_cfl.tracking.trackers import Trackers

__all__ = ["Trackers", "Tracking"]
