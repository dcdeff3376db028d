"""The critical-difference diagram: methods by their mean rank over data sets (Demsar, JMLR 7, 2006, Figure 1)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure as Drawn

from lit_cfl.pictures.colours import shorten
from lit_cfl.pictures.figure import Figure, draw, short
from lit_cfl.pictures.panels import COLUMN, LOOK, PaperFigure, plain
from lit_cfl.statistics import Ranking

__all__ = ["draw_ranks", "rank_diagram"]

_LETTER, _ROW = 0.057, 0.17  # width of a letter and height of a row, in inches
_ABOVE = 4  # rows above the axis: its numbers, and the critical difference
_LEAST = 1.1  # minimum width of the axis, in inches
_MOST_TICKS = 10
_GAP = 0.1  # minimum distance of two bars, in ranks


def rank_diagram(ranking: Ranking) -> Figure:
    """Builds the diagram: ranks on an axis, methods on both sides of it, and a bar over those that may be equal.

    Args:
        ranking: Ranks that `lit_cfl.statistics.friedman` returned.
    """
    listed = "; ".join(f"{name} {short(rank)}" for name, rank in ranking.mean_ranks.items())
    groups = "; ".join(", ".join(group) for group in ranking.groups)
    return Figure(
        "ranks",
        f"Mean ranks over {ranking.data_sets} data sets",
        [],
        f"Friedman's test of equal methods: p = {ranking.p_value:.2g}. By Nemenyi's test at 5 %, methods joined by a "
        f"bar do not differ significantly: their mean ranks differ by {ranking.critical_difference:.2f} (CD) or less.",
        f"Diagram of mean ranks: {listed}. {f'Joined: {groups}.' if groups else 'None are joined.'}",
        drawing=partial(_draw, ranking),
    )


def draw_ranks(ranking: Ranking) -> Drawn:
    """Draws the diagram at the width of a paper's column; `figure.savefig("ranks.pdf")` saves it."""
    return draw(rank_diagram(ranking))


def _draw(ranking: Ranking) -> Drawn:
    names, ranks = list(ranking.mean_ranks), list(ranking.mean_ranks.values())
    texts = [f"{shorten(name)} {rank:.2f}" for name, rank in zip(names, ranks, strict=True)]
    half = -(-len(names) // 2)  # names on the left, the best on top
    sides = [max(map(len, part), default=0) * _LETTER + 0.15 for part in (texts[:half], texts[half:])]
    bars = _bars([(ranking.mean_ranks[group[0]], ranking.mean_ranks[group[-1]]) for group in ranking.groups])
    first = 1.3 + 0.6 * max((level for _, level in bars), default=0)  # the first row of names is below the bars
    width, rows = max(COLUMN, sum(sides) + _LEAST), first + half - 0.3
    with rc_context(LOOK):
        figure = PaperFigure(figsize=(width, _ROW * (rows + _ABOVE)))
        place = (sides[0] / width, 0.0, 1 - sum(sides) / width, rows / (rows + _ABOVE))
        ticks = range(1, len(names) + 1, -(-len(names) // _MOST_TICKS))
        axes = figure.add_axes(place, xlim=(1, len(names)), ylim=(rows, 0), xticks=ticks, yticks=[])
        axes.xaxis.tick_top()
        axes.grid(visible=False)
        axes.spines[["left", "right", "bottom"]].set_visible(False)
        axes.spines["top"].set_visible(True)
        for (low, high), level in bars:
            axes.plot([low - 0.03, high + 0.03], [0.6 + 0.6 * level] * 2, "k", linewidth=2.5, solid_capstyle="butt")
        for k, (text, rank) in enumerate(zip(texts, ranks, strict=True)):
            side, row = (0, first + k) if k < half else (1, first + len(names) - 1 - k)
            end = axes.get_xlim()[side]
            axes.plot([rank, rank, end], [0, row, row], "k", linewidth=0.6, clip_on=False)
            look: Any = {"va": "center", "ha": ("right", "left")[side], "textcoords": "offset points"}
            axes.annotate(plain(text), (end, row), (6 * side - 3, 0), fontsize=7.5, annotation_clip=False, **look)
        length = [1, 1 + ranking.critical_difference]
        axes.plot(length, [-2.2, -2.2], "k|-", linewidth=0.8, markersize=5, clip_on=False)
        label = f"CD = {ranking.critical_difference:.2f}"
        axes.annotate(label, (sum(length) / 2, -2.5), ha="center", va="bottom", fontsize=7.5, annotation_clip=False)
    return figure


def _bars(spans: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], int]]:
    """Chooses the lowest level for each bar at which it touches no other one."""
    ends: list[float] = []  # right end of the last bar of each level
    bars = []
    for low, high in sorted(spans):
        level = next((k for k, end in enumerate(ends) if end + _GAP < low), len(ends))
        ends[level : level + 1] = [high]
        bars.append(((low, high), level))
    return bars
