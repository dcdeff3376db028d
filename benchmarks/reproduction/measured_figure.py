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
        name: Name of its file.
        title, shows: Title of the figure, and the content of the paper's.
        grid: Panels of the figure; empty without the measurements.
        notes: Notes below the picture.
        styles: Style of each curve.
        measurements: File or folder of the measurements, next to the page.
        command: Command that measures it.
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
