"""Trains many clients at once on stacked models: the engine `stack`."""
