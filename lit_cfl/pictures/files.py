"""Writes figures to files."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lit_cfl.pictures.figure import Figure, draw
from lit_cfl.pictures.options import Format
from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically

_DPI = 300  # dots per inch of a PNG, and of cells in a PDF
# no date is written, so that equal figures give equal files
_METADATA: dict[Format, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}}


def write_figure(figure: Figure, path: Path, formats: Sequence[Format], titled: bool = True) -> list[Path]:
    """Writes a figure into one file per format, and returns the files.

    Args:
        figure: Figure to draw.
        path: Path without the ending; its folder is made.
        formats: Formats of the files.
        titled: Draw the heading above the figure.

    Raises:
        SaveError: a file could not be written.
    """
    drawn = draw(figure, titled)
    with name_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{name}") for name in formats]
    for file, name in zip(files, formats, strict=True):
        write_atomically(file, partial(drawn.savefig, dpi=_DPI, format=name, metadata=_METADATA[name]))
    return files
