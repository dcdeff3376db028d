"""Draws a table of numbers on colours."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

_WHITE_TEXT = 0.6  # of the strongest colour


def heat_table(
    texts: np.ndarray, values: np.ndarray, rows: Sequence[str], columns: Sequence[str], label: str, least: float
) -> Figure:
    """Draws numbers on the colours of other ones, which are white at 0, purple above and orange below.

    Args:
        texts: numbers to print, with one digit, `[rows, columns]`.
        values: that give the colours, `[rows, columns]`.
        rows, columns: their names; columns' words go below each other.
        label: of the colours.
        least: value of the strongest colour, unless one is larger.
    """
    figure = Figure((1.9 + 0.85 * len(columns), 1.1 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    limit = max(least, float(np.abs(values).max()))
    image = axes.imshow(values, cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto")
    for row, column in np.ndindex(values.shape):
        colour = "white" if abs(values[row, column]) > _WHITE_TEXT * limit else "black"
        axes.text(column, row, f"{texts[row, column]:.1f}", ha="center", va="center", color=colour, size=8)
    axes.set_xticks(range(len(columns)), [name.replace(" ", "\n") for name in columns], size=8)
    axes.set_yticks(range(len(rows)), rows, size=8)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    return figure
