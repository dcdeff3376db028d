"""Figures of who gains: each client's gain over the first algorithm of a comparison, and its two scores."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lit_cfl.pictures.colours import line_styles, shorten
from lit_cfl.pictures.figure import Figure, short, thin
from lit_cfl.pictures.panels import BLACK, Bars, Curve, Panel, Points, Style, plain
from lit_cfl.pictures.sample import describe_sample, sample
from lit_cfl.scores import Score

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_BARS, _MOST_POINTS = 60, 500  # maximum number of clients shown as bars, and of points of a curve
_MOST_CLIENTS, _FEWEST = 1500, 60  # maximum number of clients in all panels of a scatter, and the minimum in each


def gain_figures(gains: "DataFrame", names: Sequence[str], score: Score) -> list[Figure]:
    """Draws the sorted gains of the clients, and their scores against those under the first algorithm.

    Args:
        gains: Rows of `client_gains.csv`, at least one.
        names: Names of all compared algorithms, the first one first.
        score: Score that was compared.
    """
    styles = {name: replace(style, size=2.5, alpha=0.4, named=False) for name, style in line_styles(names).items()}
    styles |= {"zero": Style(BLACK, ":", named=False)}
    parts = {str(name): own for name, own in gains.groupby("algorithm", sort=False)}
    low, high = min(0.0, gains["gain"].min()), max(0.0, gains["gain"].max())
    limits = (low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1))
    most = max(_FEWEST, _MOST_CLIENTS // len(parts))
    shown = {name: own.iloc[sample(own["true_cluster"].fillna(-1).to_numpy(), most)] for name, own in parts.items()}
    of = "mean over the seeds under which both runs score it"
    ends = "; ".join(f"{name} {short(own['gain'].min())} to {short(own['gain'].max())}" for name, own in parts.items())
    drawn = describe_sample(sum(map(len, shown.values())), len(gains))
    return [
        Figure(
            "client-gains",
            f"Gains of the clients over {names[0]}",
            _grid([_sorted(name, sorted(own["gain"]), limits) for name, own in parts.items()]),
            f"Gain of each client in test {score.title}, in ascending order; above 0 the client gains ({of}).",
            f"Sorted gains, one panel per algorithm: {ends}.",
            styles,
            height=1.4,
        ),
        Figure(
            "client-scores",
            f"{score.heading} of the clients against {names[0]}",
            _grid([_against(name, own, names[0], score) for name, own in shown.items()]),
            f"A point is a client; on the line, its test {score.title} is the same ({of}).{drawn}",
            f"Scatter plots of the clients' {score.title} under {names[0]} and under {', '.join(parts)}.",
            styles,
            height=1.8,
        ),
    ]


def _grid(panels: list[Panel]) -> list[list[Panel | None]]:
    if len(panels) == 1:
        return [[panels[0]]]
    return [[*panels[k : k + 2], *[None] * (k + 2 - len(panels))] for k in range(0, len(panels), 2)]


def _sorted(name: str, values: Sequence[float], limits: tuple[float, float]) -> Panel:
    number = len(values)
    panel = Panel(plain(shorten(name)), "clients", "gain", limits=limits, x_limits=(0, number))
    if number <= _MOST_BARS:
        return replace(panel, bars=[Bars(name, range(number), 1, values)])
    kept = thin(number, _MOST_POINTS)
    line = Curve(name, [k + 1 for k in kept], [values[k] for k in kept])
    return replace(panel, curves=[Curve("zero", [0, number], [0, 0]), line])


def _against(name: str, own: "DataFrame", first: str, score: Score) -> Panel:
    known = own[["client", "name", "seed", "true_cluster", "gain"]].rename(columns={"true_cluster": "true cluster"})
    notes = known.astype(object).where(known.notna(), None).to_dict("records")
    points = Points(name, own["reference"].tolist(), own["score"].tolist(), notes=notes)
    axis = f"{score.title} under {plain(shorten(first))}"
    return Panel(plain(shorten(name)), axis, score.title, points=[points], diagonal=0.0)
