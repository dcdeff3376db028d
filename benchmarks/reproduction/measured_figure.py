"""Describes a figure that is drawn from measurements of its own, not from the runs of a table."""

from collections.abc import Mapping
from dataclasses import dataclass

from lit_cfl.pictures.panels import Panel, Style

Grid = list[list[Panel | None]]


@dataclass(frozen=True)
class MeasuredFigure:
    """A figure from measurements.

    Args:
        paper: whose figure it is.
        name: of its file.
        title, shows: what it is about, and what the paper's shows.
        grid: its panels; empty without the measurements.
        notes: below the picture.
        styles: of what it shows.
        measurements: their file or folder, beside the page.
        command: that measures it.
    """

    paper: str
    name: str
    title: str
    shows: str
    grid: Grid
    notes: str
    styles: Mapping[str, Style]
    measurements: str
    command: str
