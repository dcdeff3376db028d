"""Finds the folder in which a user's machine keeps what took long to make."""

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """Returns the folder LITCFL_CACHE, or `~/.cache/lit-cfl` where it is not set; None where it is `off`."""
    place = os.environ.get("LITCFL_CACHE") or "~/.cache/lit-cfl"
    return None if place == "off" else Path(place).expanduser()
