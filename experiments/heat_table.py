"""Draws a table of numbers with coloured cells."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

_WHITE_TEXT = 0.3  # distance of a cell's colour from white above which its text is white; the maximum is 0.5
_TICKS = (1, 2, 5, 10, 20, 50, 100)  # ticks of the colour bar, on both sides of 0


def heat_table(
    texts: np.ndarray, values: np.ndarray, rows: Sequence[str], columns: Sequence[str], label: str, linear: float
) -> Figure:
    """Draws a table of numbers with cells coloured by other values: white at 0, orange above, purple below.

    Args:
        texts: Numbers to print, with one digit, `[rows, columns]`.
        values: Values that set the colours, `[rows, columns]`; a cell with NaN stays blank.
        rows, columns: Names of the rows and columns; each word of a column's name is on a separate line.
        label: Label of the colour bar.
        linear: Absolute value up to which the colour scale is linear; beyond it is logarithmic.
    """
    figure = Figure((1.9 + 0.85 * len(columns), 1.1 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    limit = max(linear, float(np.nanmax(np.abs(values))))
    norm = SymLogNorm(linear, vmin=-limit, vmax=limit)
    image = axes.imshow(values, cmap="PuOr_r", norm=norm, aspect="auto")
    for row, column in np.argwhere(~np.isnan(values)):
        colour = "white" if abs(float(norm(values[row, column])) - 0.5) > _WHITE_TEXT else "black"
        axes.text(column, row, f"{texts[row, column]:.1f}", ha="center", va="center", color=colour, size=8)
    axes.set_xticks(range(len(columns)), [name.replace(" ", "\n") for name in columns], size=8)
    axes.set_yticks(range(len(rows)), rows, size=8)
    axes.tick_params(length=0)
    above = [tick for tick in _TICKS if linear <= tick <= limit]
    bar = figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    bar.set_ticks(
        [*(-tick for tick in above), 0, *above], labels=[*(f"-{tick}" for tick in above), "0", *map(str, above)]
    )
    bar.ax.minorticks_off()
    return figure
