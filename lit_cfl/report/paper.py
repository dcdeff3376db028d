"""Draws the figures of a page for a paper, as PNG and PDF in the width of a column."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure as Drawn

from lit_cfl.errors import SaveError
from lit_cfl.pictures.cells import Matrix, draw_grid, draw_matrix
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.options import Format
from lit_cfl.pictures.panels import COLUMN, Panel, draw_panels
from lit_cfl.report.blocks import Figure, Page

FORMATS: tuple[Format, ...] = ("png", "pdf")
_DPI = 300
_HEIGHT, _LINE = 2.1, 0.22  # of a panel, and of a named place on its upright axis, in inches


def slug(text: str) -> str:
    """Makes a name of a file of any text."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "run"


def draw(figure: Figure) -> Drawn:
    """Draws a figure in the width of a column."""
    drawing = figure.drawing
    if isinstance(drawing, Panel):
        height = max(_HEIGHT, _LINE * len(drawing.y_ticks) + 0.6)
        return draw_panels([[drawing]], figure.styles, COLUMN, height)
    return draw_matrix(drawing) if isinstance(drawing, Matrix) else draw_grid(drawing)


def write_figures(page: Page, folder: Path, drawn: Callable[[], object]) -> None:
    """Writes the figures of a page into a folder, except those that cannot be drawn.

    Args:
        page: with figures.
        folder: for their files.
        drawn: called after each.

    Raises:
        SaveError: a file could not be written.
    """
    guard = DrawingGuard(passed=(SaveError,))
    for figure in page.figures:
        guard(f"figure {figure.name}", partial(_write, figure, folder))
        drawn()


def _write(figure: Figure, folder: Path) -> None:
    write_figure(draw(figure), folder / figure.name, FORMATS, _DPI)
