"""Writes Markdown tables."""

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Returns the lines of a table and a blank line after it.

    Args:
        heads: Headings of the columns.
        rows: Rows of cells, with one cell per column.
    """
    return [_line(heads), "|---" * len(heads) + "|", *map(_line, rows), ""]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
