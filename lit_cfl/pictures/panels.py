"""Figures of small panels in the size of a paper's column or page: curves over the rounds, points and bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

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
COLUMN = 3.5  # inches
PAGE = 7.16
"""Width of a page of a paper, in inches."""
DPI = 180
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
_HEIGHT = 1.55  # of a panel
LINE_COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE, YELLOW)  # of lines, in this order: everywhere the same
_LEGEND = 0.22  # of a line of the legend
_LETTER, _HANDLE = 4.0, 45  # of the legend, in points


@dataclass(frozen=True)
class Style:
    """How the lines or points of a name look.

    Args:
        colour: of all of them.
        line: of lines.
        marker, size, alpha: of points.
        label: in the legend; empty = the name.
    """

    colour: str
    line: Any = "-"
    marker: str = "o"
    size: float = 3.0
    alpha: float = 0.85
    label: str = ""


@dataclass(frozen=True)
class Curve:
    """A line with a band.

    Args:
        name: that its style and the legend go by.
        x, y: its points.
        low, high: edges of the band; empty = none.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Points:
    """Points of one look.

    Args:
        name: that its style and the legend go by.
        x, y: their places.
        labels: beside them; empty = none.
        notes: about each of them, which only a page shows; empty = none.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Bars:
    """Upright bars of one look.

    Args:
        name: that its style and the legend go by.
        x: their left edges.
        width: of all of them.
        height: of each.
        base: where each begins; empty = at 0.
    """

    name: str
    x: Sequence[float]
    width: float
    height: Sequence[float]
    base: Sequence[float] = ()


@dataclass(frozen=True)
class HeatMap:
    """A square of colours.

    Args:
        values: its rows, the first above; nan = white.
        low, high: the range of the colours.
        label: of the colours.
    """

    values: np.ndarray
    low: float
    high: float
    label: str


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Args:
        title: above it.
        x, y: names of the axes.
        curves, points, bars: what it shows.
        limits: of the vertical axis; None = as drawn.
        diagonal: half the width of a band around equal values, drawn with its middle; None = none.
        logarithmic: both axes.
        x_ticks, y_ticks: names of places on the axes; empty = numbers.
        matrix: in place of curves, points and bars; the matrices of a row share one bar of colours.
        bare: neither numbers nor a grid: the axes of a map mean nothing.
    """

    title: str
    x: str
    y: str
    curves: Sequence[Curve] = ()
    points: Sequence[Points] = ()
    limits: tuple[float, float] | None = None
    diagonal: float | None = None
    logarithmic: bool = False
    bars: Sequence[Bars] = ()
    x_ticks: Mapping[float, str] = field(default_factory=dict)
    y_ticks: Mapping[float, str] = field(default_factory=dict)
    matrix: HeatMap | None = None
    bare: bool = False

    @property
    def names(self) -> list[str]:
        """Lists the names of what it shows, each once."""
        parts: list[Curve | Points | Bars] = [*self.curves, *self.points, *self.bars]
        return list(dict.fromkeys(part.name for part in parts))


def draw_panels(
    grid: Sequence[Sequence[Panel | None]], styles: Mapping[str, Style], width: float = PAGE, height: float = _HEIGHT
) -> Figure:
    """Draws panels in rows and columns, with one legend below them for all.

    A title is left out below a panel with the same one, and so are the names of axes that a neighbour has.

    Args:
        grid: rows of panels; None = an empty place.
        styles: of the names of curves and points; the legend has their order.
        width: of the figure in inches.
        height: of a panel in inches.
    """
    panels = [panel for row in grid for panel in row if panel is not None]
    names = {name for panel in panels for name in panel.names}
    known = [name for name in styles if name in names]
    longest = max((len(styles[name].label.replace("$", "") or name) for name in known), default=0)
    per_line = max(1, int(72 * width / (_LETTER * longest + _HANDLE)))
    legend = _LEGEND * -(-len(known) // per_line)
    with rc_context(LOOK):
        figure = Figure(figsize=(width, height * len(grid) + legend + 0.1), layout="constrained")
        axes = figure.subplots(len(grid), len(grid[0]), squeeze=False)
        for number, (row, places) in enumerate(zip(grid, axes, strict=True)):
            above = grid[number - 1] if number else [None] * len(row)
            below = grid[number + 1] if number + 1 < len(grid) else [None] * len(row)
            for left, panel, place, over, under in zip([None, *row], row, places, above, below, strict=False):
                if panel is None:
                    place.axis("off")
                    continue
                _draw(place, panel, styles)
                place.set_title("" if over is not None and over.title == panel.title else panel.title)
                place.set_xlabel("" if under is not None and under.x == panel.x else panel.x)
                place.set_ylabel("" if left is not None and left.y == panel.y else panel.y)
            _add_colour_bar(figure, row, places)
        figure.align_ylabels()
        if known and len(styles) > 1:
            handles = [_handle(panels, name, styles[name]) for name in known]
            add_legend(figure, handles, min(per_line, len(known)))
    return figure


def add_legend(figure: Figure, handles: Sequence[Artist], per_line: int) -> None:
    """Adds a legend below a figure that reads line by line; matplotlib's own reads column by column."""
    by_column = [handle for column in range(per_line) for handle in handles[column::per_line]]
    figure.legend(handles=by_column, loc="outside lower center", ncols=per_line, frameon=False)


def _draw(axes: Axes, panel: Panel, styles: Mapping[str, Style]) -> None:
    for curve in panel.curves:
        style = styles[curve.name]
        if len(curve.low):
            axes.fill_between(curve.x, curve.low, curve.high, color=style.colour, alpha=0.15, linewidth=0)
        axes.plot(curve.x, curve.y, linestyle=style.line, color=style.colour)
    for bars in panel.bars:
        colour, base = styles[bars.name].colour, bars.base or 0
        axes.set_axisbelow(True)
        axes.bar(bars.x, bars.height, bars.width, base, align="edge", color=colour, edgecolor="white", linewidth=0.3)
    for points in panel.points:
        style = styles[points.name]
        axes.plot(
            points.x,
            points.y,
            style.marker,
            color=style.colour,
            markersize=style.size,
            markeredgewidth=0.6,
            alpha=style.alpha,
            zorder=1.5,
        )
        for x, y, label in zip(points.x, points.y, points.labels, strict=False):
            axes.annotate(label, (x, y), (3, 3), textcoords="offset points", fontsize=7, color=style.colour)
    if panel.logarithmic:
        axes.set(xscale="log", yscale="log")
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    if not panel.logarithmic:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    for axis, ticks in ((axes.xaxis, panel.x_ticks), (axes.yaxis, panel.y_ticks)):
        if ticks:
            axis.set_ticks(list(ticks), [name.replace("$", r"\$") for name in ticks.values()])
    if panel.bare:
        axes.grid(visible=False)
        axes.tick_params(length=0, labelbottom=False, labelleft=False)
    if panel.matrix is not None:
        axes.grid(visible=False)
        axes.imshow(panel.matrix.values, cmap="viridis", vmin=panel.matrix.low, vmax=panel.matrix.high)
    if panel.diagonal is not None:
        _draw_diagonal(axes, panel.diagonal)
    if panel.logarithmic:
        low, high = np.log10(axes.get_xlim())
        powers = 10.0 ** np.arange(np.ceil(low), np.floor(high) + 1)
        axes.set(xticks=powers, yticks=powers)
        axes.minorticks_off()


def _add_colour_bar(figure: Figure, row: Sequence[Panel | None], places: Sequence[Axes]) -> None:
    """Adds the colours of a row's matrices to its right."""
    shown = [(panel.matrix, place) for panel, place in zip(row, places, strict=True) if panel and panel.matrix]
    if shown:
        matrix, place = shown[0]
        figure.colorbar(place.images[0], ax=[place for _, place in shown], label=matrix.label, aspect=15)


def _draw_diagonal(axes: Axes, half_width: float) -> None:
    """Makes the axes square and alike, with the line on which both values are equal."""
    shown = axes.dataLim
    low, high = min(shown.x0, shown.y0), max(shown.x1, shown.y1)
    axes.update_datalim([(low, low), (high, high)])
    axes.autoscale_view()  # the usual margin, of the common range
    low, high = axes.get_xlim()
    line = np.array([low, high])
    axes.plot(line, line, color="grey", linewidth=0.6, zorder=0)
    if half_width:
        axes.fill_between(line, line - half_width, line + half_width, color="grey", alpha=0.2, linewidth=0, zorder=0)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")


def _handle(panels: Sequence[Panel], name: str, style: Style) -> Any:
    if any(bars.name == name for panel in panels for bars in panel.bars):
        return Patch(facecolor=style.colour, label=style.label or name)
    if any(curve.name == name for panel in panels for curve in panel.curves):
        return Line2D([], [], color=style.colour, linestyle=style.line, label=style.label or name)
    return Line2D(
        [], [], color=style.colour, linestyle="", marker=style.marker, markersize=4, label=style.label or name
    )
