"""Describes a figure that is drawn from separate measurements instead of the runs of a table."""

from collections.abc import Mapping
from dataclasses import dataclass

from lit_cfl.pictures.panels import Panel, Style

Grid = list[list[Panel | None]]


@dataclass(frozen=True)
class MeasuredFigure:
    """A figure drawn from measurements instead of runs, with its texts.

    Args:
        paper: The paper that has the figure.
        name: Name of its file.
        title, shows: Title of the figure, and the content of the paper's.
        grid: Panels of the figure; empty without the measurements.
        notes: Notes below the picture.
        styles: Style of each curve.
        measurements: File or folder of the measurements, relative to the page.
        command: Command that makes the measurements.
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
