"""Runs long experiments in cells: each combination of settings runs once, and its rows are appended to a CSV file."""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lit_cfl.metric_names import Row


def run_cells(
    path: Path | None,
    key: Sequence[str],
    columns: Sequence[str],
    wanted: Iterable[tuple[Any, ...]],
    run: Callable[..., Iterable[Row]],
) -> Iterator[list[Row]]:
    """Yields the rows of each wanted cell, read from the file or computed by running the cell.

    Args:
        path: The CSV file, created if it does not exist; None to keep nothing.
        key: Columns that name a cell.
        columns: Other columns.
        wanted: Cells, as values of `key`.
        run: Function that returns the rows of a cell, without its key.
    """
    for cell in wanted:
        name = dict(zip(key, map(str, cell), strict=True))
        rows = [row for row in _read_rows(path) if name.items() <= row.items()]
        if not rows:
            rows = [name | {column: _format_value(row.get(column)) for column in columns} for row in run(*cell)]
            _append_rows(path, (*key, *columns), rows)
        yield rows


def _format_value(value: object) -> str:
    return "" if value is None else str(value)


def _read_rows(path: Path | None) -> list[Row]:
    if path is None or not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _append_rows(path: Path | None, columns: Sequence[str], rows: list[Row]) -> None:
    if path is None:
        return
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)
