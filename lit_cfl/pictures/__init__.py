"""Figures as data, built once, and drawn into files and pages without a display or global state."""
