"""Figures of small panels at the size of a paper's column or page: curves over rounds, points and bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

__all__ = [
    "BLACK",
    "BLUE",
    "GREEN",
    "ORANGE",
    "PAGE",
    "PURPLE",
    "SKY",
    "VERMILLION",
    "YELLOW",
    "Bars",
    "Cells",
    "Curve",
    "HeatMap",
    "Panel",
    "Points",
    "Style",
    "draw_panels",
]

# Okabe and Ito's colours, which colour-blind people can tell apart.
BLACK = "#000000"
"""Black of Okabe and Ito's palette."""
ORANGE = "#E69F00"
"""Orange of Okabe and Ito's palette."""
SKY = "#56B4E9"
"""Sky of Okabe and Ito's palette."""
GREEN = "#009E73"
"""Green of Okabe and Ito's palette."""
YELLOW = "#F0E442"
"""Yellow of Okabe and Ito's palette."""
BLUE = "#0072B2"
"""Blue of Okabe and Ito's palette."""
VERMILLION = "#D55E00"
"""Vermillion of Okabe and Ito's palette."""
PURPLE = "#CC79A7"
"""Purple of Okabe and Ito's palette."""
COLUMN = 3.5  # width of a column of a paper, in inches
PAGE = 7.16
"""Width of a page of a paper, in inches."""
LOOK: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.35,
    "lines.linewidth": 0.9,
}
_FONTS: Any = {"pdf.fonttype": 42, "ps.fonttype": 42}  # TrueType, since publishers refuse fonts of Type 3
_HEIGHT = 1.55  # height of a panel
_T = TypeVar("_T")
_MARKS = 8  # approximate number of markers of a long curve
_MOST_GROUPS = 20  # maximum number of names at the side of a matrix
_LONG = 40  # names on a horizontal axis as wide as a figure are rotated if they have more letters than this in total
_DECADES = 100  # ratio of values up to which a logarithmic axis also labels 3, 0.3, ...
_THIN = 0.045  # minimum share of the rows that a group needs for a mark next to it
_LEGEND = 0.22  # height of a line of the legend
_LETTER, _HANDLE = 4.0, 45  # widths in the legend, in points
_AXIS_LETTER, _AXIS_LINE = 0.06, 0.15  # width of a letter and height of a line of an axis label, in inches
_BELOW = 0.45  # height of the numbers and the label below a panel, in inches


Note = Mapping[str, str | int | float | None]


@dataclass(frozen=True)
class Style:
    """Style of the lines or points that belong to one name in the legend.

    Args:
        colour: Colour of all points and lines.
        line: Style of lines.
        marker, size, alpha: Marker, size and opacity of points.
        label: Label in the legend; empty = the name.
        named: True to show the name in the legend.
        marked: True to draw markers on curves, too.
    """

    colour: str
    line: Any = "-"
    marker: str = "o"
    size: float = 3.0
    alpha: float = 0.85
    label: str = ""
    named: bool = True
    marked: bool = False


@dataclass(frozen=True)
class Curve:
    """A line with an optional band around it.

    Args:
        name: Name by which its style and the legend entry are found.
        x, y: Coordinates of the points.
        low, high: Edges of the band; empty = no band.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Points:
    """Points of one style.

    Args:
        name: Name by which its style and the legend entry are found.
        x, y: Coordinates of the points.
        labels: Labels next to the points; empty = none.
        notes: Facts about each point by name, which a page shows at the pointer; None = unknown; empty = none.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str] = ()
    notes: Sequence[Note] = ()


@dataclass(frozen=True)
class Bars:
    """Vertical bars of one style.

    Args:
        name: Name by which its style and the legend entry are found.
        x: Left edges of the bars.
        width: Width of all bars.
        height: Height of each bar.
        base: Lower end of each bar; empty = 0.
    """

    name: str
    x: Sequence[float]
    width: float
    height: Sequence[float]
    base: Sequence[float] = ()


@dataclass(frozen=True)
class HeatMap:
    """A matrix of values shown as colours, with a colour bar.

    Args:
        values: Rows of values, the first on top; nan = no colour.
        low, high: Range of the colours.
        label: Label of the colour bar.
        groups: Groups of the rows and columns, equal ones adjacent; lines divide them, and labels at the side name
            them.
    """

    values: np.ndarray
    low: float
    high: float
    label: str
    groups: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Cells:
    """Rows of cells along an axis with named values, such as clients and their clusters.

    Args:
        places: Indices into `names`, int `[rows, columns]`.
        names: Names by which styles and legend entries are found.
        edges: Edges of the columns on the axis, `[columns + 1]`.
        marks: Short forms of the names, shown next to long stretches of the last column.
        side: Indices into `names` of a narrow column on the left, int `[rows]`; None = no such column.
        side_name: Label below the narrow column.
    """

    places: np.ndarray
    names: Sequence[str]
    edges: Sequence[float]
    marks: Sequence[str] = ()
    side: np.ndarray | None = None
    side_name: str = ""

    @property
    def row_labels(self) -> list[tuple[float, str]]:
        """Middle row and text of the label of each long stretch of equal cells in the last column."""
        edges, places = stretches(self.places[:, -1].tolist())
        thin = len(self.places) * _THIN
        found = zip(pairwise(edges), places, strict=True)
        return [((a + b - 1) / 2, self.marks[place]) for (a, b), place in found if b - a >= thin]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Args:
        title: Title above the panel.
        x, y: Labels of the axes.
        curves, points, bars: Contents of the panel.
        limits: Limits of the vertical axis; None = automatic.
        x_limits: Limits of the horizontal axis; None = automatic.
        diagonal: Half the width of a band around equal values, drawn with its middle; None = no band.
        log_x, log_y: Make the horizontal or the vertical axis logarithmic.
        counts: The vertical axis counts things: its ticks are whole numbers.
        x_ticks, y_ticks: Names of places on the axes; empty = numbers.
        matrix: Matrix instead of curves, points and bars.
        cells: Cells instead of curves, points and bars.
        bare: Draw neither numbers nor a grid, as the axes of a map have no meaning.
    """

    title: str
    x: str
    y: str
    curves: Sequence[Curve] = ()
    points: Sequence[Points] = ()
    limits: tuple[float, float] | None = None
    x_limits: tuple[float, float] | None = None
    diagonal: float | None = None
    log_x: bool = False
    log_y: bool = False
    counts: bool = False
    bars: Sequence[Bars] = ()
    x_ticks: Mapping[float, str] = field(default_factory=dict)
    y_ticks: Mapping[float, str] = field(default_factory=dict)
    matrix: HeatMap | None = None
    cells: Cells | None = None
    bare: bool = False

    @property
    def names(self) -> list[str]:
        """The names of all curves, points, bars and cells, each once."""
        parts: list[Curve | Points | Bars] = [*self.curves, *self.points, *self.bars]
        return list(dict.fromkeys([*(part.name for part in parts), *(self.cells.names if self.cells else ())]))


class PaperFigure(Figure):
    """A figure whose PDFs have the TrueType fonts that publishers ask for."""

    def savefig(self, *args: Any, **options: Any) -> None:
        """Saves the figure; see `matplotlib.figure.Figure.savefig`."""
        with rc_context(_FONTS):
            super().savefig(*args, **options)


def draw_panels(
    grid: Sequence[Sequence[Panel | None]], styles: Mapping[str, Style], width: float = PAGE, height: float = _HEIGHT
) -> Figure:
    """Draws panels in rows and columns, with one legend below.

    A title that repeats that of the panel above is left out, and so are axis names that a neighbour has.

    Args:
        grid: Rows of panels; None = an empty place.
        styles: Styles by name of curve and points, in the legend's order.
        width: Width of the figure, inches.
        height: Height of a panel, inches; panels are higher if the label of a vertical axis needs it.
    """
    panels = [panel for row in grid for panel in row if panel is not None]
    height = max([height, *map(_least_height, panels)])
    names = {name for panel in panels for name in panel.names}
    known = [name for name in styles if name in names and styles[name].named]
    longest = max((len(styles[name].label.replace("$", "") or name) for name in known), default=0)
    per_line = max(1, int(72 * width / (_LETTER * longest + _HANDLE)))
    legend = _LEGEND * -(-len(known) // per_line)
    with rc_context(LOOK):
        figure = PaperFigure(figsize=(width, height * len(grid) + legend + 0.1), layout="constrained")
        axes = figure.subplots(len(grid), len(grid[0]), squeeze=False)
        for number, (row, places) in enumerate(zip(grid, axes, strict=True)):
            above = grid[number - 1] if number else [None] * len(row)
            below = grid[number + 1] if number + 1 < len(grid) else [None] * len(row)
            for left, panel, place, over, under in zip([None, *row], row, places, above, below, strict=False):
                if panel is None:
                    place.axis("off")
                    continue
                _draw(place, panel, styles, len(row))
                place.set_title("" if over is not None and over.title == panel.title else panel.title)
                shared = under is not None and under.x == panel.x
                place.set_xlabel("" if shared else panel.x)
                if shared and panel.x_ticks:
                    place.tick_params(labelbottom=False)
                place.set_ylabel("" if left is not None and left.y == panel.y else panel.y)
        figure.align_ylabels()
        if known and len(styles) > 1:
            handles = [_handle(panels, name, styles[name]) for name in known]
            figure.legend(handles=handles, loc="outside lower center", ncols=per_line, frameon=False)
    return figure


def _least_height(panel: Panel) -> float:
    """Returns the height in inches at which the label of the vertical axis is not cut off at the figure's top."""
    longest = max(map(len, panel.y.split("\n")))
    return _AXIS_LETTER * longest + _BELOW + _AXIS_LINE * panel.x.count("\n")


def stretches(groups: Sequence[_T]) -> tuple[list[int], list[_T]]:
    """Finds stretches of equal neighbours: their boundaries, and the value of each."""
    starts = [k for k, name in enumerate(groups) if k == 0 or name != groups[k - 1]]
    return [*starts, len(groups)], [groups[k] for k in starts]


def plain(text: str) -> str:
    """Escapes text, so that it is not read as a formula."""
    return text.replace("$", r"\$")


def _draw(axes: Axes, panel: Panel, styles: Mapping[str, Style], columns: int) -> None:
    for k, curve in enumerate(panel.curves):
        _draw_curve(axes, curve, styles[curve.name], k)
    for bars in panel.bars:
        look: Any = {"color": styles[bars.name].colour, "edgecolor": "white", "linewidth": 0.3}
        axes.set_axisbelow(True)
        axes.bar(bars.x, bars.height, bars.width, bars.base or 0, align="edge", **look)
    for k, points in enumerate(panel.points):
        _draw_points(axes, points, styles[points.name], f"points-{k}")
    axes.set(xscale="log" if panel.log_x else "linear", yscale="log" if panel.log_y else "linear")
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    if panel.x_limits is not None:
        axes.set_xlim(*panel.x_limits)
    _set_ticks(axes, panel, columns)
    if panel.matrix is not None:
        _draw_matrix(axes, panel.matrix)
    if panel.cells is not None:
        _draw_cells(axes, panel.cells, styles)
    if panel.diagonal is not None:
        _draw_diagonal(axes, panel.diagonal)


def _draw_curve(axes: Axes, curve: Curve, style: Style, number: int) -> None:
    """Draws a band and its line; markers of several curves are staggered, so that they do not cover each other."""
    if len(curve.low):
        axes.fill_between(curve.x, curve.low, curve.high, color=style.colour, alpha=0.15, linewidth=0)
    look: Any = {"linestyle": style.line, "color": style.colour}
    if style.marked or len(curve.x) == 1:
        step = max(1, len(curve.x) // _MARKS)
        look |= {"marker": style.marker, "markersize": style.size, "markevery": (number % step, step)}
    axes.plot(curve.x, curve.y, **look)


def _draw_points(axes: Axes, points: Points, style: Style, gid: str) -> None:
    look: Any = {"color": style.colour, "markersize": style.size, "alpha": style.alpha, "markeredgewidth": 0.6}
    look |= {"markerfacecolor": style.colour, "markeredgecolor": style.colour}
    axes.plot(points.x, points.y, style.marker, zorder=1.5, gid=gid, **look)
    for x, y, label in zip(points.x, points.y, points.labels, strict=False):
        axes.annotate(label, (x, y), (3, 3), textcoords="offset points", fontsize=7, color=style.colour)


def _set_ticks(axes: Axes, panel: Panel, columns: int) -> None:
    parts: list[Curve | Points] = [*panel.curves, *panel.points]
    across = [value for part in [*parts, *panel.bars] for value in part.x]
    up = [value for part in parts for value in part.y] + [height for bars in panel.bars for height in bars.height]
    counts = panel.counts or (_are_whole(up) and (bool(panel.bars) or max(up) > 1))
    for axis, values, is_log, whole, most in (
        (axes.xaxis, across, panel.log_x, _are_whole(across), 5 if columns == 1 else 3),
        (axes.yaxis, up, panel.log_y, counts, 5),
    ):
        if is_log:
            _set_log_ticks(axis, values, whole)
        else:
            axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1 if whole else 2))
    for axis, ticks in ((axes.xaxis, panel.x_ticks), (axes.yaxis, panel.y_ticks)):
        if ticks:
            axis.set_ticks(list(ticks), list(map(plain, ticks.values())))
    if sum(map(len, panel.x_ticks.values())) * columns > _LONG:
        axes.tick_params(axis="x", rotation=45)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
    if panel.bare:
        axes.grid(visible=False)
        axes.tick_params(length=0, labelbottom=False, labelleft=False)


def _set_log_ticks(axis: Axis, values: Sequence[float], whole: bool) -> None:
    """Labels a logarithmic axis with plain numbers, as an exponent would be too small to read in a column."""
    if values and max(values) <= _DECADES * min(values):  # powers of ten alone would give only one or two labels
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if whole else (1, 3)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def _are_whole(values: Sequence[float]) -> bool:
    return len(values) > 0 and all(float(value).is_integer() for value in values)


def _draw_matrix(axes: Axes, matrix: HeatMap) -> None:
    axes.grid(visible=False)
    shown = axes.imshow(matrix.values, interpolation="none", cmap="viridis", vmin=matrix.low, vmax=matrix.high)
    axes.figure.colorbar(shown, ax=axes, label=matrix.label, aspect=15)
    edges, names = stretches(matrix.groups)
    if names:
        axes.set(xticks=[], yticks=[])
    if 0 < len(names) <= _MOST_GROUPS:
        for edge in edges[1:-1]:
            axes.axhline(edge - 0.5, color="white", linewidth=0.7)
            axes.axvline(edge - 0.5, color="white", linewidth=0.7)
        axes.set_yticks([(a + b - 1) / 2 for a, b in pairwise(edges)], names)


def _draw_cells(axes: Axes, cells: Cells, styles: Mapping[str, Style]) -> None:
    rows = np.arange(len(cells.places) + 1) - 0.5
    look: Any = {"cmap": ListedColormap([styles[name].colour for name in cells.names]), "rasterized": True}
    look |= {"vmin": -0.5, "vmax": len(cells.names) - 0.5}
    axes.pcolormesh(cells.edges, rows, cells.places, **look)
    axes.set(yticks=[], ylim=(rows[-1], rows[0]))
    axes.grid(visible=False)
    if cells.side is not None:
        side = axes.inset_axes((-0.085, 0, 0.05, 1), sharey=axes)
        side.pcolormesh([0, 1], rows, cells.side[:, None], **look)
        side.set(xticks=[0.5], xticklabels=[cells.side_name])
        side.tick_params(length=0)
        side.grid(visible=False)
        axes.yaxis.labelpad = 22  # keeps the label clear of the narrow column
    for middle, mark in cells.row_labels if cells.marks else ():
        place: Any = axes.get_yaxis_transform()
        axes.annotate(mark, (1, middle), (2, 0), place, "offset points", va="center", fontsize=7)


def _draw_diagonal(axes: Axes, half_width: float) -> None:
    """Gives both axes the same range, and draws the line of equal values."""
    shown = axes.dataLim
    low, high = min(shown.x0, shown.y0), max(shown.x1, shown.y1)
    axes.update_datalim([(low, low), (high, high)])
    axes.autoscale_view()  # restores the usual margin around the common range
    low, high = axes.get_xlim()
    line = np.array([low, high])
    axes.plot(line, line, color="grey", linewidth=0.6, zorder=0)
    if half_width:
        axes.fill_between(line, line - half_width, line + half_width, color="grey", alpha=0.2, linewidth=0, zorder=0)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")


def _handle(panels: Sequence[Panel], name: str, style: Style) -> Any:
    label = style.label or plain(name)
    if any(bars.name == name for panel in panels for bars in panel.bars) or any(
        name in panel.cells.names for panel in panels if panel.cells is not None
    ):
        return Patch(facecolor=style.colour, label=label)
    curve = any(curve.name == name for panel in panels for curve in panel.curves)
    points = any(points.name == name for panel in panels for points in panel.points)
    look: Any = {"linestyle": style.line if curve else "", "marker": style.marker, "markersize": 4}
    if curve and not (points or style.marked):
        look["marker"] = "None"
    return Line2D([], [], color=style.colour, label=label, **look)
