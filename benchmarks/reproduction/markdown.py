"""Writes a table of Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Returns the lines of a table and an empty one below it.

    Args:
        heads: Headings of the columns.
        rows: Lists of cells, one for each column.
    """
    return [_line(heads), "|---" * len(heads) + "|", *map(_line, rows), ""]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
