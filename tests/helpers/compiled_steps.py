"""Switches to the compiled steps in a folder, or disables them if the folder has none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lit_cfl.engines import library


@contextmanager
def steps_of(folder: Path) -> Iterator[None]:
    before, library.FOLDER = library.FOLDER, folder
    library.load_library.cache_clear()
    try:
        yield
    finally:
        library.FOLDER = before
        library.load_library.cache_clear()
