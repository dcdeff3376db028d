"""Reads and writes files of the reproduction: YAML, growing compressed tables, and pictures."""

import csv
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from matplotlib.figure import Figure

from lit_cfl.errors import InputError

Row = dict[str, Any]
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DPI = 180


def read_yaml(path: Path) -> Any:
    """Reads plain values from a YAML file."""
    return yaml.load(path.read_text("utf-8"), _LOADER)  # noqa: S506  # either loader builds only plain values


def read_page_text(name: str) -> str:
    """Reads the hand-written text of a page, without the last line break."""
    return (Path(__file__).parent / "texts" / f"{name}.md").read_text("utf-8").rstrip("\n")


def round_floats(row: Mapping[str, Any], digits: int) -> Row:
    """Returns a row with floats rounded to significant digits."""
    return {name: f"{value:.{digits}g}" if isinstance(value, float) else value for name, value in row.items()}


def append_compressed(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends rows to a compressed table atomically, as a separate stream, without recompressing old rows."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        writer.writerow(columns)
    writer.writerows([row[column] for column in columns] for row in rows)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes((path.read_bytes() if path.exists() else b"") + lzma.compress(text.getvalue().encode()))
    unfinished.replace(path)


def write_picture(figure: Figure, path: Path, dpi: int = _DPI) -> None:
    """Writes a figure as `<path>.png`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_name(f"{path.name}.png"), dpi=dpi)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Locks a folder within the block. Raises InputError if another command holds the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock").acquire(timeout=0.5):
            yield
    except Timeout as error:
        raise InputError(f"{folder} is in use by another command; wait for it, or choose another --out") from error
