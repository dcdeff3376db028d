"""The picture of LayerCFL's layer scores."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

_MAX_NAMED = 8


def layer_scores(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws how well each layer alone separates the clients: a line for each comparison of a cluster's clients.

    Args:
        rows: of `layers.csv`, one or more.
    """
    compared = [(key, list(found)) for key, found in groupby(rows, lambda row: (row["round"], row["cluster"]))]
    names = list(dict.fromkeys(str(row["layer"]) for row in rows))
    figure = Figure(figsize=(9 + 0.3 * max(len(names) - 8, 0), 6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(compared)))
    for axes, score in zip(panels, ("silhouette", "gap"), strict=True):
        for ((round, cluster), found), colour in zip(compared, colours, strict=True):
            places = [names.index(str(row["layer"])) for row in found]
            heights = [np.nan if row[score] is None else float(row[score]) for row in found]
            chosen = [k for k, row in enumerate(found) if row["chosen"]]
            axes.plot(places, heights, "-o", color=colour, markersize=3, label=f"round {round}, cluster {cluster}")
            axes.plot([places[k] for k in chosen], [heights[k] for k in chosen], "o", color=colour, markersize=9)
        axes.axhline(0, color="grey", linewidth=0.6)
        axes.set_ylabel(score)
    panels[0].set_title("How well each layer separates the clients (large dot: chosen)", loc="left")
    panels[1].set_xticks(range(len(names)), [name.replace("$", r"\$") for name in names], rotation=45, ha="right")
    if len(compared) <= _MAX_NAMED:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    else:
        first, last = rows[0]["round"], rows[-1]["round"]
        panels[1].set_xlabel(
            f"{len(compared)} comparisons of a cluster's clients, round {first} (dark) to {last} (light)"
        )
    return figure
