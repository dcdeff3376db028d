"""Trackers of a run: Weights & Biases, any Lightning logger, pictures."""
