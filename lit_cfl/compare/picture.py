"""The main score over the rounds: a line an algorithm, and how far its seeds spread."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lit_cfl.pictures.curves import name_rounds, name_score
from lit_cfl.scores import ACCURACY, Score

_STYLES = ("-", "--", ":", "-.")


def mean_curves(
    curves: Mapping[str, Mapping[int, Sequence[float]]], target: float | None, score: Score = ACCURACY
) -> Figure:
    """Means over the seeds, with a band of one standard deviation where there are two seeds or more.

    Args:
        curves: for each algorithm the test figures of its runs by round.
        target: drawn as a thin line.
        score: what the figures are.
    """
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    colours = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]  # of listed maps
    for number, (name, curve) in enumerate(curves.items()):
        if not curve:
            continue
        rounds, values = np.array(list(curve)), np.array(list(curve.values()))
        mean, colour = values.mean(1), colours[number % len(colours)]
        mark = "o" if len(rounds) == 1 else None
        style = _STYLES[number // len(colours) % len(_STYLES)]
        axes.plot(rounds, mean, style, color=colour, marker=mark, label=name.replace("$", r"\$"))
        if values.shape[1] > 1:
            deviation = values.std(1, ddof=1)
            axes.fill_between(rounds, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
    if target is not None:
        axes.axhline(target, color="grey", linewidth=0.8, linestyle=":", zorder=0, label=f"target {target:g}")
    axes.set_title("Mean over seeds, band: one standard deviation")
    name_rounds(axes, max((max(curve) for curve in curves.values() if curve), default=1))
    name_score(axes, score, "weighted test ")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure
