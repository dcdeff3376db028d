"""Colours of clusters: each has that of the true cluster that it matches best."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from scipy.optimize import linear_sum_assignment

# The first seven are Okabe and Ito's, the others were searched for: any two of the twenty differ by more than 10 in
# CIEDE2000, also as people without red, green or blue cones see them (tests/pictures/test_colours.py).
_COLOURS = np.array(
    [
        to_rgb(name)
        for name in (
            "#0072B2",
            "#E69F00",
            "#009E73",
            "#D55E00",
            "#56B4E9",
            "#CC79A7",
            "#F0E442",
            "#892727",
            "#C4EBC4",
            "#3B4E62",
            "#C4A5A5",
            "#3B00EB",
            "#8976FF",
            "#76EBFF",
            "#624E4E",
            "#627676",
            "#C40000",
            "#89624E",
            "#B1C476",
            "#4E3B89",
        )
    ]
)
MAX_COLOURS = len(_COLOURS)
_NONE = to_rgb("#dddddd")  # of clients without a cluster


def colours_of(clusters: np.ndarray) -> np.ndarray:
    """Looks up the RGB in [0, 1] of clusters of any shape, `[..., 3]`: grey for -1; they repeat every 20 clusters."""
    colours: np.ndarray = np.where((clusters < 0)[..., None], _NONE, _COLOURS[clusters % MAX_COLOURS])
    return colours


def matched(found: np.ndarray, true: np.ndarray) -> dict[int, int]:
    """Matches each found cluster with the number whose colour it takes, so that equal clusters look equal.

    The pairs are those with the most clients in common (the assignment of greatest overlap). Found clusters that are
    left over take numbers that no true cluster has; where no true cluster is known, each keeps its own.

    Args:
        found: int `[..., clients]`, -1 = none.
        true: int `[clients]`, -1 = unknown.

    Returns:
        a number for each found cluster, each another one.
    """
    numbers = np.unique(found[found >= 0])
    if not len(numbers) or (true < 0).all():
        return {int(number): int(number) for number in numbers}
    known = (found >= 0) & (true >= 0)
    truths, columns = np.unique(np.broadcast_to(true, found.shape)[known], return_inverse=True)
    overlap = np.zeros((len(numbers), len(truths)), dtype=int)
    np.add.at(overlap, (np.searchsorted(numbers, found[known]), columns), 1)
    pairs = zip(*linear_sum_assignment(overlap, maximize=True), strict=True)
    taken = {int(numbers[k]): int(truths[j]) for k, j in pairs if overlap[k, j]}
    others = [int(number) for number in numbers if int(number) not in taken]
    return taken | {number: int(true.max()) + 1 + k for k, number in enumerate(others)}


def matched_colours(clusters: np.ndarray, match: Mapping[int, int]) -> np.ndarray:
    """Looks up the RGB in [0, 1] of clusters of any shape, `[..., 3]`: that of the number each is matched with."""
    taken = np.full(max(match, default=-1) + 2, -1)  # the last place is that of -1
    taken[list(match)] = list(match.values())
    return colours_of(taken[clusters])


def name_clusters(axes: Axes, clusters: np.ndarray, unknown: str, match: Mapping[int, int]) -> None:
    """Draws a legend beside the axes; for more than 20 clusters, a line that says how many there are.

    Args:
        clusters: numbers that are drawn, any shape.
        unknown: what -1 means.
        match: the numbers whose colours they take.
    """
    numbers = np.unique(clusters)
    named = numbers[numbers >= 0]
    without = [Patch(facecolor=_NONE, label=unknown)] if (numbers < 0).any() else []
    few = len(named) <= MAX_COLOURS
    shown = named if few else named[:0]
    colours = matched_colours(shown, match)
    handles = [*(Patch(facecolor=c, label=f"cluster {k}") for k, c in zip(shown, colours, strict=True)), *without]
    title = None if few else f"{len(named)} clusters:\ncolours repeat\nevery {MAX_COLOURS}"
    axes.legend(
        handles=handles,
        title=title,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0,
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        handlelength=1.2,
    )
