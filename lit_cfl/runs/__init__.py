"""Runs of one seed each: their directories, records, checkpoints and results."""
