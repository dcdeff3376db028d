"""Writes figures to files."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from lit_cfl.pictures.options import Format
from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically

_DPI = 120
_METADATA: dict[Format, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}}  # the same bits at any time


def write_figure(figure: Figure, path: Path, formats: Sequence[Format], dpi: int | None = None) -> list[Path]:
    """Writes a figure into a file of each format, and returns them.

    Args:
        path: without the ending; its folder is made.
        dpi: dots per inch of a PNG; None = 120.

    Raises:
        SaveError: a file could not be written.
    """
    with name_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{name}") for name in formats]
    for file, name in zip(files, formats, strict=True):
        write_atomically(file, partial(figure.savefig, dpi=dpi or _DPI, format=name, metadata=_METADATA[name]))
    return files
