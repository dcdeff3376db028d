"""Switches to the compiled steps in a folder."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lit_cfl.engines import steps

HAS_COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))


@contextmanager
def steps_of(folder: Path) -> Iterator[None]:
    """Uses the steps in a folder within a block; a folder without any disables them."""
    before, steps.FOLDER = steps.FOLDER, folder
    steps.load_library.cache_clear()
    try:
        yield
    finally:
        steps.FOLDER = before
        steps.load_library.cache_clear()
