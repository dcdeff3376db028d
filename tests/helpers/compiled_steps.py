"""Switches to the compiled steps in a folder, or disables them if the folder has none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lit_cfl.engines import steps


@contextmanager
def steps_of(folder: Path) -> Iterator[None]:
    before, steps.FOLDER = steps.FOLDER, folder
    steps.load_library.cache_clear()
    try:
        yield
    finally:
        steps.FOLDER = before
        steps.load_library.cache_clear()
