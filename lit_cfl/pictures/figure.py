"""A figure as data: panels, styles, and texts. Files, pages and trackers draw it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real

import numpy as np
from matplotlib.figure import Figure as Drawn

from lit_cfl.pictures.panels import COLUMN, Panel, Style, draw_panels, plain

Cell = str | int | float | None
HEIGHT = 2.1  # height of a panel in inches
_LARGE = 1e4  # smallest number that is written without decimals
_WHOLE = 1e9  # whole numbers below this are written without an exponent
MOST_ROWS = 60  # maximum number of rows of a table over the rounds
_MOST_NOTED = 500  # maximum number of rows of a table of clients or trials


@dataclass(frozen=True)
class Table:
    """Contents of a table that a page shows.

    Args:
        title: Caption of the table.
        head: Names of the columns.
        rows: Rows with a cell for each column; None = blank.
        folded: Show the table on demand only.
        note: Sentence below the table.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    folded: bool = False
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure as data: title, panels, caption, text alternative and table.

    Args:
        name: Name of the file, and anchor on a page.
        title: Heading of the figure.
        rows: Rows of panels; None = an empty place.
        caption: Text below the figure.
        alt: Text alternative that describes the figure.
        styles: Styles of the names in the panels, in the order of the legend.
        table: Table of the values; None = taken from the panels.
        height: Height of a panel, inches.
        frames: States of its only panel by their names, the last one as in `rows`; empty = it has one state.
        total: Number of rounds; None = the panels show all.
    """

    name: str
    title: str
    rows: Sequence[Sequence[Panel | None]]
    caption: str
    alt: str
    styles: Mapping[str, Style] = field(default_factory=dict)
    table: Table | None = None
    height: float = HEIGHT
    frames: Mapping[str, Panel] = field(default_factory=dict)
    total: int | None = None

    @property
    def first_panel(self) -> Panel:
        """The figure's only or first panel."""
        return next(panel for row in self.rows for panel in row if panel is not None)

    @property
    def values(self) -> Table:
        """The table of the values that the figure shows."""
        return _values_of(self) if self.table is None else self.table


def draw(figure: Figure, titled: bool = False) -> Drawn:
    """Draws a figure at the width of a paper's column.

    Args:
        figure: Figure to draw.
        titled: Draw the heading above the figure.
    """
    drawn = draw_panels(figure.rows, figure.styles, COLUMN, figure.height)
    if titled:
        drawn.suptitle(plain(figure.title), fontsize=9)
    return drawn


def _values_of(figure: Figure) -> Table:
    """Lists the values shown: the notes of points if any, else curves and bars, one row per x value."""
    panels, title = [panel for row in figure.rows for panel in row if panel is not None], f"{figure.title}: values"
    parts = [dots for panel in panels for dots in panel.points]
    notes = [dict(note) for note in dict.fromkeys(tuple(note.items()) for dots in parts for note in dots.notes)]
    if notes:
        heads = [key for key in notes[0] if any(note[key] is not None for note in notes)]
        rows = [[notes[k][key] for key in heads] for k in thin(len(notes), _MOST_NOTED)]
        return Table(title, heads, rows, folded=True, note=cut_note(len(rows), len(notes), "rows"))
    columns: dict[str, dict[float, str]] = {}
    panels = [panel for panel in panels if panel.x == panels[0].x]
    for panel in panels:
        after = f", {panel.y}" if len(panels) > 1 else ""
        for one in panel.curves:
            columns[f"{one.name}{after}"] = dict(zip(one.x, one.notes or map(short, one.y), strict=True))
        for bars in panel.bars:
            middles = [round(x + bars.width / 2, 9) for x in bars.x]
            columns[f"{bars.name}{after}"] = dict(zip(middles, map(short, bars.height), strict=True))
    places = sorted({x for column in columns.values() for x in column})
    kept = [places[k] for k in thin(len(places), MOST_ROWS)]
    rows = [[panels[0].x_ticks.get(x, short(x)), *(own.get(x) for own in columns.values())] for x in kept]
    note = cut_note(len(kept), figure.total or len(places), "rounds" if panels[0].x == "round" else "rows")
    return Table(title, [panels[0].x, *columns], rows, folded=True, note=note)


def finite_number(value: object) -> float | None:
    """Returns a finite number as a float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        return None
    return float(value)


def short(value: object) -> str:
    """Formats whole and large floats as integers, others with four significant digits, the rest with `str`."""
    if not isinstance(value, float):
        return str(value)
    is_whole = value.is_integer() or abs(value) >= _LARGE
    return f"{value:.0f}" if is_whole and abs(value) < _WHOLE else f"{value:.4g}"


def thin(count: int, most: int) -> list[int]:
    """Chooses at most `most` of `count` indices, including the first and the last."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist())) if count else []


def cut_note(shown: int, total: int, what: str) -> str:
    """Describes how many rows of a table are shown; empty if all are."""
    return "" if shown == total else f"{shown:,} of {total:,} {what}."
