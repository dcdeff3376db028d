"""One colour a cluster, the same in all pictures of runs."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

_COLOURS = np.array([
    to_rgb(name) for name in (
        "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22",
        "#17becf", "#1a1a6e", "#ffe119", "#800000", "#00665e", "#fabed4", "#000000", "#bfef45",
    )
])  # fmt: skip
MAX_COLOURS = len(_COLOURS)
_NONE = to_rgb("#dddddd")  # of clients without a cluster


def colours_of(clusters: np.ndarray) -> np.ndarray:
    """RGB in [0, 1] of clusters of any shape, `[..., 3]`: grey for -1; they repeat every 16 clusters."""
    colours: np.ndarray = np.where((clusters < 0)[..., None], _NONE, _COLOURS[clusters % MAX_COLOURS])
    return colours


def name_clusters(axes: Axes, clusters: np.ndarray, unknown: str) -> None:
    """A legend beside the axes; of more than 16 clusters, a line that tells how many.

    Args:
        clusters: numbers that are drawn, any shape.
        unknown: what -1 means.
    """
    numbers = np.unique(clusters)
    named = numbers[numbers >= 0]
    without = [Patch(facecolor=_NONE, label=unknown)] if (numbers < 0).any() else []
    few = len(named) <= MAX_COLOURS
    shown = named.tolist() if few else []
    handles = [*(Patch(facecolor=to_rgb(_COLOURS[k % MAX_COLOURS]), label=f"cluster {k}") for k in shown), *without]
    title = None if few else f"{len(named)} clusters:\ncolours repeat\nevery {MAX_COLOURS}"
    axes.legend(
        handles=handles, title=title, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0,
        frameon=False, fontsize=8, title_fontsize=8, handlelength=1.2,
    )  # fmt: skip
