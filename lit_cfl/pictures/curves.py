"""Learning curves: the main score over the rounds, of a run or of the algorithms of a comparison."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_cfl.pictures.panels import BLUE, LINE_COLOURS
from lit_cfl.scores import ACCURACY, Score

_COLOURS = (BLUE, "#7f7f7f")  # of the run, of its baseline
_LINES = {  # column before the score's name: style, title
    "test/weighted": ("-", "test"),
    "test/worst10": (":", "test, worst tenth of the clients"),
    "val/weighted": ("--", "validation"),
}
_STYLES = ("-", "--", ":", "-.")  # of algorithms that share a colour
_MOST_TICKS = 10


def learning_curve(runs: Mapping[str, Sequence[Mapping[str, Any]]], score: Score) -> Figure:
    """Draws the main score of a run over the rounds, and its baseline's.

    Args:
        runs: rows of `metrics.csv` by the name of the algorithm: the run's, then its baseline's if there is one.
        score: the task's main one.
    """
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    shown = set()
    for (name, rows), colour in zip(runs.items(), _COLOURS, strict=False):
        axes.plot([], [], color=colour, label=name.replace("$", r"\$"))
        for column, (style, _) in _LINES.items():
            points = [(row["round"], row[f"{column}_{score.name}"]) for row in rows]
            known = [(number, value) for number, value in points if value is not None]
            if known:
                shown.add(column)
                axes.plot(*zip(*known, strict=True), style, color=colour, marker="o" if len(known) == 1 else None)
    name_rounds(axes, max((row["round"] for rows in runs.values() for row in rows), default=1))
    name_score(axes, score)
    if score == ACCURACY:
        axes.set_ylim(0, 1)
    for column, (style, title) in _LINES.items():
        if column in shown:
            axes.plot([], [], style, color="black", label=title)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    axes.set_title(" and ".join(runs).replace("$", r"\$"), fontsize=11)
    return figure


def mean_curves(
    curves: Mapping[str, Mapping[int, Sequence[float]]], target: float | None, score: Score = ACCURACY
) -> Figure:
    """Draws means over the seeds, with a band of one standard deviation where there are two seeds or more.

    Args:
        curves: for each algorithm the test figures of its runs by round.
        target: drawn as a thin line.
        score: what the figures are.
    """
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(curves.items()):
        if not curve:
            continue
        rounds, values = np.array(list(curve)), np.array(list(curve.values()))
        mean, colour = values.mean(1), LINE_COLOURS[number % len(LINE_COLOURS)]
        mark = "o" if len(rounds) == 1 else None
        style = _STYLES[number // len(LINE_COLOURS) % len(_STYLES)]
        axes.plot(rounds, mean, style, color=colour, marker=mark, label=name.replace("$", r"\$"))
        if values.shape[1] > 1:
            deviation = values.std(1, ddof=1)
            low, high = (0.0, 1.0) if score == ACCURACY else (-np.inf, np.inf)
            band = (mean - deviation).clip(min=low), (mean + deviation).clip(max=high)
            axes.fill_between(rounds, *band, color=colour, alpha=0.15, linewidth=0)
    if target is not None:
        axes.axhline(target, color="grey", linewidth=0.8, linestyle=":", zorder=0, label=f"target {target:g}")
    axes.set_title("Mean over seeds, band: one standard deviation")
    name_rounds(axes, max((max(curve) for curve in curves.values() if curve), default=1))
    name_score(axes, score, "weighted test ")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def name_rounds(axes: Axes, last: int) -> None:
    """Names the axis of the rounds 1 to `last`, which has a tick."""
    axes.set_xlabel("round")
    axes.set_xticks(round_ticks(last))
    axes.grid(alpha=0.25)


def round_ticks(last: int) -> list[int]:
    """Chooses at most 11 numbers of rounds: 1, multiples of a plain step, and the last round."""
    steps = (digit * 10**power for power in range(12) for digit in (1, 2, 5))
    step = next(step for step in steps if last <= step * _MOST_TICKS)
    inner = [number for number in range(step, last, step) if last - number > step / 2 and number > 1 + step / 2]
    return sorted({1, *inner, last})


def name_score(axes: Axes, score: Score, what: str = "") -> None:
    """Names the axis of a score, with its direction where lower is better; `what` goes before the name."""
    lower = "" if score.higher_is_better else " (lower is better)"
    axes.set_ylabel(f"{what}{score.title}{lower}")
