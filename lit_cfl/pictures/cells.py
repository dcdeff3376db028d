"""Pictures of many small cells: pairs of clients, and clients over the rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from lit_cfl.pictures.panels import COLUMN, LOOK, add_legend

LEVELS = 254  # of a matrix in 8 bits; 255 = not known
_T = TypeVar("_T")
_MOST_NAMED = 21  # groups at the side, and values in the legend
_NAMES, _LINE = 3, 0.16  # names in a line of the legend, and its height in inches
_THIN = 0.045  # share of the rows that a mark needs


@dataclass(frozen=True, eq=False)
class Frame:
    """One state of a matrix.

    Args:
        title: such as the round.
        cells: uint8 `[n, n]`, symmetric; 0 to 254 between the matrix's low and high, 255 = not known.
        labels: of the rows, and of the columns, `[n]`.
        groups: of the rows `[n]`, equal ones side by side.
    """

    title: str
    cells: np.ndarray
    labels: Sequence[str]
    groups: Sequence[str]


@dataclass(frozen=True, eq=False)
class Matrix:
    """A symmetric matrix in 8 bits, in one state or several.

    Args:
        frames: its states, one or more.
        low, high: the values of 0 and 254.
        shown: the values where the colours begin and end.
        name: of the values.
        axis: what rows and columns are.
    """

    frames: Sequence[Frame]
    low: float
    high: float
    shown: tuple[float, float]
    name: str
    axis: str

    def values(self, frame: Frame) -> np.ndarray:
        """Returns the values of a state; nan = not known."""
        known = frame.cells.astype(float) / LEVELS * (self.high - self.low) + self.low
        return np.where(frame.cells > LEVELS, np.nan, known)


def in_8_bits(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Rounds values to 0 to 254, low to high; nan becomes 255."""
    scaled = (np.nan_to_num(values.astype(np.float32), nan=low) - low) / max(high - low, 1e-9) * LEVELS
    return np.where(np.isnan(values), LEVELS + 1, scaled.round().clip(0, LEVELS)).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class CellGrid:
    """Rows of cells that hold one of a few values.

    Args:
        cells: uint8 `[rows, columns]`, places in `names`.
        side: uint8 `[rows]`, the same of a narrow column on the left; None = there is none.
        names, colours: of the values; a colour as #rrggbb.
        marks: short names of the values, which stand beside the last column.
        rows, columns: names of the single rows and columns.
        x, y: names of the axes.
    """

    cells: np.ndarray
    side: np.ndarray | None
    names: Sequence[str]
    colours: Sequence[str]
    marks: Sequence[str]
    rows: Sequence[str]
    columns: Sequence[str]
    x: str
    y: str

    @property
    def ends(self) -> list[tuple[float, str]]:
        """Lists where stretches of equal values in the last column have their middles, and their marks.

        Stretches that are too thin for a mark are left out.
        """
        edges, places = stretches(self.cells[:, -1].tolist())
        thin = len(self.cells) * _THIN
        found = zip(pairwise(edges), places, strict=True)
        return [((a + b - 1) / 2, self.marks[place]) for (a, b), place in found if b - a >= thin]

    @property
    def looks(self) -> dict[str, str]:
        """Returns the colours by the names of the values; of names with one colour the first."""
        first = {colour: name for name, colour in reversed(list(zip(self.names, self.colours, strict=True)))}
        return {name: colour for name, colour in zip(self.names, self.colours, strict=True) if first[colour] == name}


def draw_matrix(matrix: Matrix, width: float = COLUMN) -> Figure:
    """Draws the last state of a matrix in the size of a paper's column."""
    frame = matrix.frames[-1]
    with rc_context({**LOOK, "axes.grid": False}):
        figure = Figure(figsize=(width, 0.82 * width), layout="constrained")
        axes = figure.subplots()
        low, high = matrix.shown
        drawn = axes.imshow(matrix.values(frame), cmap="cividis", vmin=low, vmax=high, interpolation="nearest")
        figure.colorbar(drawn, label=matrix.name, shrink=0.85)
        axes.set(title=frame.title, xlabel=matrix.axis, ylabel="cluster", xticks=[], yticks=[])
        edges, names = stretches(frame.groups)
        if len(names) <= _MOST_NAMED:
            for edge in edges[1:-1]:
                axes.axhline(edge - 0.5, color="white", linewidth=0.7)
                axes.axvline(edge - 0.5, color="white", linewidth=0.7)
            axes.set_yticks([(a + b - 1) / 2 for a, b in pairwise(edges)], names)
    return figure


def stretches(groups: Sequence[_T]) -> tuple[list[int], list[_T]]:
    """Finds where stretches of equal groups begin and end, and their names."""
    starts = [k for k, name in enumerate(groups) if k == 0 or name != groups[k - 1]]
    return [*starts, len(groups)], [groups[k] for k in starts]


def draw_grid(grid: CellGrid, width: float = COLUMN) -> Figure:
    """Draws rows of cells in the size of a paper's column."""
    colours = np.array([to_rgb(colour) for colour in grid.colours])
    with rc_context({**LOOK, "axes.grid": False}):
        lines = -(-len(grid.looks) // _NAMES) if len(grid.looks) <= _MOST_NAMED else 0
        figure = Figure(figsize=(width, 0.62 * width + _LINE * lines), layout="constrained")
        widths = [1] if grid.side is None else [1, 18]
        *sides, axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
        axes.imshow(colours[grid.cells], aspect="auto", interpolation="nearest")
        for side in sides:
            side.imshow(colours[grid.side][:, None], aspect="auto", interpolation="nearest")
            side.set(xticks=[0], xticklabels=["true"], yticks=[])
        figure.axes[0].set_ylabel(grid.y)
        axes.set(xlabel=grid.x, yticks=[])
        _name_columns(axes, grid.columns)
        for middle, mark in grid.ends:
            axes.annotate(
                mark, (1, middle), (2, 0), axes.get_yaxis_transform(), "offset points", va="center", fontsize=6.5
            )
        handles = [Patch(facecolor=own, label=name.replace("$", r"\$")) for name, own in grid.looks.items()]
        if len(handles) <= _MOST_NAMED:
            add_legend(figure, handles, _NAMES)
    return figure


def _name_columns(axes: Axes, columns: Sequence[str]) -> None:
    places = np.unique(np.linspace(0, len(columns) - 1, min(len(columns), 6)).round().astype(int))
    if len(columns) > 1:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xticks(places, [columns[k] for k in places])
