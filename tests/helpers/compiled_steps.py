"""Switches to the compiled steps in a folder, and compiles the present source where that was not done."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hatch_build
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


def compile_steps(folder: Path) -> Path:
    """Returns the checkout's folder if its steps are compiled from the present source, else compiles them into another.

    Without a compiler the folder stays empty: a package without compiled steps trains in other ways.
    """
    if steps.describe_steps().startswith("compiled for "):
        return steps.FOLDER
    if HAS_COMPILER:
        assert hatch_build.compile_steps(steps.SOURCE, folder)
    return folder
