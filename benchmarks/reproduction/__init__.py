"""Compares the papers' tables with our runs: cells as data, the runs they need, their scores, and verdicts."""
