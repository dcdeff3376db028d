"""The papers' tables next to ours: cells as data, the runs that they need, their scores, and a verdict each."""
