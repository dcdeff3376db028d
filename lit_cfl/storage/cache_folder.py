"""Finds the user's cache folder, for results that take long to compute."""

import os
import warnings
from pathlib import Path

from lit_cfl.errors import Notice
from lit_cfl.storage.given_paths import expand_home

_NO_HOME = "this user has no home folder, so nothing is kept for later runs; set LITCFL_CACHE to a folder for it"


def cache_folder() -> Path | None:
    """Returns the cache folder: LITCFL_CACHE if it is set, else `~/.cache/lit-cfl`.

    Returns:
        None if LITCFL_CACHE is `off`, or if it is not set and the user has no home folder, of which a notice warns.

    Raises:
        InputError: LITCFL_CACHE begins with `~`, and the user has no home folder.
    """
    place = os.environ.get("LITCFL_CACHE")
    if place == "off":
        return None
    if place:
        return expand_home(place)
    try:
        return Path("~/.cache/lit-cfl").expanduser()
    except RuntimeError:
        warnings.warn(Notice(_NO_HOME), stacklevel=2)
        return None
