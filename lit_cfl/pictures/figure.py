"""A figure as data: panels, styles, and texts. Files, pages and trackers draw it."""

from collections.abc import Callable, Mapping, Sequence
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
    """A figure as data: title, panels, caption and text alternative.

    Args:
        name: Name of the file, and anchor on a page.
        title: Heading of the figure.
        rows: Rows of panels; None = an empty place.
        caption: Text below the figure.
        alt: Text alternative that describes the figure.
        styles: Styles of the names in the panels, in the order of the legend.
        height: Height of a panel, inches.
        drawing: Draws the figure if it does not consist of panels; None = it does.
    """

    name: str
    title: str
    rows: Sequence[Sequence[Panel | None]]
    caption: str
    alt: str
    styles: Mapping[str, Style] = field(default_factory=dict)
    height: float = HEIGHT
    drawing: Callable[[], Drawn] | None = None

    @property
    def panels(self) -> list[Panel]:
        """All panels, row by row."""
        return [panel for row in self.rows for panel in row if panel is not None]

    @property
    def first_panel(self) -> Panel:
        """The figure's only or first panel."""
        return self.panels[0]


def draw(figure: Figure, titled: bool = False) -> Drawn:
    """Draws a figure at the width of a paper's column.

    Args:
        figure: Figure to draw.
        titled: Draw the heading above the figure.
    """
    drawn = figure.drawing() if figure.drawing else draw_panels(figure.rows, figure.styles, COLUMN, figure.height)
    if titled:
        drawn.suptitle(plain(figure.title), fontsize=9)
    return drawn


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
