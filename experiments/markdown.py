"""Formats tables as Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Returns the lines of a Markdown table, followed by a blank line.

    Args:
        heads: Headings of the columns.
        rows: Rows of cells, with one cell per column.
    """
    return [_line(heads), "|---" * len(heads) + "|", *map(_line, rows), ""]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
