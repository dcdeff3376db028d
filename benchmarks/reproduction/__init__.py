"""The papers' tables beside ours: cells as data, the runs that they need, their scores, and a verdict each."""
