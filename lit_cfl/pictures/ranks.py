"""The critical-difference diagram: methods by their mean rank over data sets (Demsar, JMLR 7, 2006, Figure 1)."""

from matplotlib.figure import Figure as Drawn

from lit_cfl.pictures.figure import Figure, Table, draw, short
from lit_cfl.pictures.panels import BLACK, BLUE, VERMILLION, Curve, Panel, Points, Style
from lit_cfl.statistics import Ranking

__all__ = ["draw_ranks", "rank_diagram"]

_METHODS, _GROUPS, _CRITICAL = "mean rank", "no significant difference", "critical difference"
_STYLES = {_METHODS: Style(BLUE), _GROUPS: Style(BLACK), _CRITICAL: Style(VERMILLION)}


def rank_diagram(ranking: Ranking) -> Figure:
    """Builds the diagram as data: one row per method, the best on top, and then one line per group.

    Args:
        ranking: Ranks that `lit_cfl.statistics.friedman` returned.
    """
    names, ranks = list(ranking.mean_ranks), list(ranking.mean_ranks.values())
    rows = [float(-k) for k in range(len(names))]
    below = rows[-1]
    spans = [(ranking.mean_ranks[group[0]], ranking.mean_ranks[group[-1]]) for group in ranking.groups]
    lines = [
        Curve(_GROUPS, list(span), [below - 1 - k] * 2, notes=[", ".join(group)] * 2)
        for k, (span, group) in enumerate(zip(spans, ranking.groups, strict=True))
    ]
    length = Curve(_CRITICAL, [ranks[0], ranks[0] + ranking.critical_difference], [1.0, 1.0])
    listed = "; ".join(f"{name} {short(rank)}" for name, rank in ranking.mean_ranks.items())
    return Figure(
        "ranks",
        f"Mean ranks over {ranking.data_sets} data sets",
        [
            [
                Panel(
                    "",
                    "mean rank (1 = best)",
                    "",
                    [*lines, length],
                    [Points(_METHODS, ranks, rows)],
                    y_ticks=dict(zip(rows, names, strict=True)),
                )
            ]
        ],
        f"Friedman's test of equal methods: p = {ranking.p_value:.2g}. By Nemenyi's test at 5 %, methods under one "
        f"line do not differ significantly: their mean ranks differ by {ranking.critical_difference:.2f} or less.",
        f"Diagram of mean ranks: {listed}.",
        _STYLES,
        Table("Mean ranks", ["method", "mean rank"], [[name, round(ranking.mean_ranks[name], 3)] for name in names]),
        height=0.6 + 0.2 * (len(names) + len(lines) + 1),
    )


def draw_ranks(ranking: Ranking) -> Drawn:
    """Draws the diagram at the width of a paper's column; `figure.savefig("ranks.pdf")` saves it."""
    return draw(rank_diagram(ranking))
