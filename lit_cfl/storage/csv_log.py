"""Writes CSV files that grow by rows, and reads them."""

import csv
import json
import lzma
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from io import BytesIO, StringIO
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

_MIB = 2**20
_PART = 2**18  # bytes; the rest is copied after each round, and written by each save


class CsvLog:
    """A CSV file with a fixed header, whose text a checkpoint also holds.

    Args:
        path: Path of the file.
        columns: Columns of the header.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)
        self.parts: dict[int, Tensor] = {}  # the text in bytes, in parts that never change
        self.rest = bytearray()  # the text after them

    @property
    def header(self) -> bytes:
        """First line of the file."""
        return as_csv([self.columns])

    @property
    def size(self) -> int:
        """The number of bytes written."""
        return len(self.parts) * _PART + len(self.rest)

    def start(self) -> None:
        """Atomically writes a new file with only the header."""
        self.restore({}, self.header)

    def restore(self, parts: Mapping[int, "Tensor"], rest: bytes) -> None:
        """Atomically writes the file with a text of an earlier moment, whatever it holds now."""
        write_atomically(self.path, lambda file: file.writelines(text_of(parts, rest)))
        self.parts, self.rest = dict(parts), bytearray(rest)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows; nan and missing values become blank."""
        data = as_csv([blank_nan(row.get(column)) for column in self.columns] for row in rows)
        with name_write_errors(self.path), self.path.open("ab") as file:
            file.write(data)
        self.rest += data
        while len(self.rest) >= _PART:
            self._close_part()

    def _close_part(self) -> None:
        import torch  # reading tables does not need it

        self.parts[len(self.parts)] = torch.frombuffer(self.rest[:_PART], dtype=torch.uint8)
        del self.rest[:_PART]


def text_of(parts: Mapping[int, "Tensor"], rest: bytes) -> Iterator[bytes]:
    """Yields a table's text in bytes: its parts, which never change, and what follows them."""
    yield from (part.numpy().tobytes() for part in parts.values())
    yield rest


def as_csv(rows: Iterable[Iterable[Any]]) -> bytes:
    """Formats rows of values as CSV, encoded in UTF-8."""
    text = StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def write_rows(
    path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], digits: int | None = None
) -> None:
    """Writes a whole CSV file: dicts as JSON, nan and missing values blank.

    Args:
        digits: Significant digits of each float; None = all.
    """

    def cell(value: Any) -> Any:
        if isinstance(value, dict):
            return json.dumps(value, sort_keys=True)
        value = blank_nan(value)
        return f"{value:.{digits}g}" if isinstance(value, float) and digits is not None else value

    data = as_csv([columns, *([cell(row.get(column)) for column in columns] for row in rows)])
    write_atomically(path, lambda file: file.write(data))


def read_table(path: Path, size: int | None = None, text: Collection[str] = ()) -> list[dict[str, Any]]:
    """Reads the rows of one of our CSV files: numbers as numbers, blanks as None.

    Args:
        path: Path of the file; `.xz` files are compressed.
        size: Number of bytes to read from a table that may still grow, up to the end of a row; None = all.
        text: Columns whose values are text, even those that look like numbers.
    """
    data = path.read_bytes()
    return _rows(lzma.decompress(data) if path.suffix == ".xz" else data[:size], text)


def read_frame(table: Path | BytesIO, *texts: str) -> "DataFrame":
    """Reads a table as a DataFrame; blanks are NaN.

    Args:
        texts: Columns with names, which are read unchanged: one may be 007 or NA.
    """
    from pandas import read_csv  # takes most of a second

    return read_csv(table, dtype=dict.fromkeys(texts, str), keep_default_na=False, na_values=[""])


def read_columns(path: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yields some columns of a CSV file row by row, parsed as `read_table` does, without loading the whole file."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = next(rows)
        places = [header.index(column) for column in columns]
        for row in rows:
            yield tuple(_number(row[place]) for place in places)


def latest_rows(path: Path, size: int, text: Collection[str] = ()) -> list[dict[str, Any]]:
    """Reads the rows in the last MiB of a table that may still grow.

    Args:
        size: Number of bytes to read, up to the end of a row.
        text: See `read_table`.
    """
    with path.open("rb") as file:
        header = file.readline()
        start = max(len(header), size - _MIB)
        file.seek(start)
        found = file.read(size - start)
    # skips an incomplete first row
    return _rows(header + (found if start == len(header) else found.partition(b"\n")[2]), text)


def _rows(data: bytes, text: Collection[str] = ()) -> list[dict[str, Any]]:
    lines = StringIO(data.decode(), newline="")
    return [
        {key: cell if cell and key in text else _number(cell) for key, cell in row.items()}
        for row in csv.DictReader(lines)
    ]


def blank_nan(value: Any) -> Any:
    """Replaces nan by None."""
    return None if isinstance(value, float) and isnan(value) else value


def _number(text: str) -> int | float | str | None:
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
