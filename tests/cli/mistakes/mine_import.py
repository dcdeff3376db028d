"""A module that refuses to be imported."""

raise RuntimeError("no licence")
