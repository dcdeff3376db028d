"""Figures of metrics over the rounds and over the traffic: a line for each group, with a band over its seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from statistics import fmean, stdev

import numpy as np

from lit_cfl.metric_names import higher_is_better
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.panels import LINE_COLOURS, Curve, Panel, Style
from lit_cfl.report.blocks import Block, Figure, Section, Table, Text
from lit_cfl.report.run_files import known
from lit_cfl.report.sources import Group
from lit_cfl.scores import ACCURACY, Score

MOST_POINTS = 500  # of a curve
_MOST_ROWS = 60  # of the table of a figure
_LINES: tuple[object, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_MARKERS = ("o", "^", "s", "D", "v", "P", "X")


@dataclass(frozen=True)
class Means:
    """A metric of a group over the rounds.

    Args:
        rounds: that every run of the group has.
        mean: over the seeds.
        deviation: over the seeds; empty with one.
    """

    rounds: Sequence[int]
    mean: Sequence[float]
    deviation: Sequence[float] = ()


def styles_of(groups: Sequence[Group]) -> dict[str, Style]:
    """Chooses a colour, a line and a marker for each group; the first seven differ in colour, all in one of them."""
    size = len(LINE_COLOURS)
    return {
        group.name: Style(
            LINE_COLOURS[k % size], _LINES[k // size % len(_LINES)], _MARKERS[k % len(_MARKERS)], label=group.name
        )
        for k, group in enumerate(groups)
    }


def means(group: Group, column: str) -> Means:
    """Computes the means of a metric over the runs of a group that count, in the rounds in which all know it."""
    found = [_values(run.rows, column) for run in group.counted if run.rows]
    rounds = sorted(set.intersection(*map(set, found))) if found else []
    values = [[one[number] for one in found] for number in rounds]
    deviation = [stdev(row) for row in values] if len(found) > 1 else []
    return Means(rounds, [fmean(row) for row in values], deviation)


def _values(rows: Sequence[Mapping[str, object]], column: str) -> dict[int, float]:
    pairs = ((int(str(row["round"])), known(row.get(column))) for row in rows)
    return {number: value for number, value in pairs if value is not None}


def thin(count: int, most: int = MOST_POINTS) -> list[int]:
    """Chooses at most so many of `count` places, the first and the last among them."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist())) if count else []


def cut_note(shown: int, total: int, what: str) -> str:
    """Says how many rows a table has, if those are not all."""
    return "" if shown == total else f"{shown:,} of {total:,} {what}."


def section(groups: Sequence[Group], score: Score, guard: DrawingGuard) -> Section:
    """Makes the section of metrics over the rounds."""
    title = score.title
    shown = [
        (
            f"test/weighted_{score.name}",
            f"{title.capitalize()} on test data",
            title,
            "Over the examples of all clients.",
        ),
        (
            f"val/weighted_{score.name}",
            f"{title.capitalize()} on validation data",
            title,
            "Over the validation examples of all clients.",
        ),
        (f"test/worst10_{score.name}", "Worst tenth of the clients", title, f"Their mean {title} on test data."),
        ("test/loss", "Loss on test data", "loss", "Mean over the examples of all clients."),
        ("train/loss", "Training loss", "loss", "Mean over the clients that trained in the round."),
        ("train/discrepancy", "Discrepancy", "distance", "Mean distance of local models from their cluster's new one."),
        ("clusters/count", "Number of clusters", "clusters", "Clusters that have a client among those scored."),
        ("clusters/ari", "Agreement with the true clusters", "ARI", "Adjusted Rand index: 1 = equal, 0 = chance."),
        ("clusters/churn", "Churn", "share of clients", "Share of the clients whose cluster changed."),
    ]
    figures: list[Block] = []
    for column, heading, axis, meaning in shown:
        figure = guard(heading, partial(_over_rounds, groups, column, heading, axis, meaning, score))
        if figure is not None:
            figures.append(figure)
    traffic = guard("traffic", lambda: _over_traffic(groups, score))
    figures += [traffic] if traffic is not None else []
    scored = sorted({int(row["round"]) for group in groups for run in group.runs for row in run.rows})
    if not figures and len(scored) == 1:
        figures.append(Text(f"Only round {scored[0]} was scored: its values are in the table of the results."))
    return Section("Over the rounds", figures)


def _over_rounds(
    groups: Sequence[Group], column: str, heading: str, axis: str, meaning: str, score: Score
) -> Figure | None:
    found = {group.name: means(group, column) for group in groups}
    drawn = {name: one for name, one in found.items() if one.rounds}
    if max((len(one.rounds) for one in drawn.values()), default=0) < 2:
        return None  # the table of the results has it
    if column.startswith("clusters/") and not _varies(drawn):
        return None
    curves = [_curve(name, one, limits_of(column, score)) for name, one in drawn.items()]
    banded = any(one.deviation for one in drawn.values())
    better = "" if column.startswith("clusters/") else _direction(column, score)
    caption = f"{meaning} {better}{_band(banded)}{_left_out(groups, drawn)}".strip()
    last = "; ".join(f"{name} {_short(one.mean[0])} to {_short(one.mean[-1])}" for name, one in drawn.items())
    alt = f"Line chart. {heading}, from round {_first(drawn)} to {_last(drawn)}: {last}."
    return Figure(
        column.replace("/", "-"),
        heading,
        Panel("", "round", axis, curves),
        caption,
        alt,
        styles_of(groups),
        _table(heading, drawn, "round"),
    )


def _varies(drawn: Mapping[str, Means]) -> bool:
    """Tells whether there is something to see: a line that is not flat, or lines that differ."""
    return len({value for one in drawn.values() for value in one.mean}) > 1


def _curve(name: str, one: Means, limits: tuple[float, float]) -> Curve:
    kept = thin(len(one.rounds))
    rounds, mean = [one.rounds[k] for k in kept], [one.mean[k] for k in kept]
    if not one.deviation:
        return Curve(name, rounds, mean)
    least, most = limits
    low = [max(least, one.mean[k] - one.deviation[k]) for k in kept]
    return Curve(name, rounds, mean, low, [min(most, one.mean[k] + one.deviation[k]) for k in kept])


def limits_of(column: str, score: Score) -> tuple[float, float]:
    """Returns the least and the greatest value that a metric can have: a band ends there."""
    if column.startswith(("clusters/ari", "clusters/churn")):
        return (-0.5, 1.0) if column.endswith("ari") else (0.0, 1.0)
    if score == ACCURACY and column.endswith(ACCURACY.name):
        return 0.0, 1.0
    return (0.0, inf) if column in ("clusters/count", "train/discrepancy") else (-inf, inf)


def _over_traffic(groups: Sequence[Group], score: Score) -> Figure | None:
    curves, column, total = [], f"test/weighted_{score.name}", 0
    for group in groups:
        mine, traffic = means(group, column), means(group, "traffic/mib")
        sent = dict(zip(traffic.rounds, traffic.mean, strict=True))
        pairs = [(sent[number], value) for number, value in zip(mine.rounds, mine.mean, strict=True) if number in sent]
        if pairs:
            x, y = zip(*(pairs[k] for k in thin(len(pairs))), strict=True)
            curves.append(Curve(group.name, x, y))
            total += len(pairs)
    if max((len(curve.x) for curve in curves), default=0) < 2 or not any(curve.x[-1] > 0 for curve in curves):
        return None
    title = f"{score.title.capitalize()} against traffic"
    ends = "; ".join(f"{curve.name} {_short(curve.y[-1])} after {_short(curve.x[-1])} MiB" for curve in curves)
    head = ["", "MiB", score.title]
    rows = [[c.name, _short(c.x[k]), _short(c.y[k])] for c in curves for k in thin(len(c.x), _MOST_ROWS)]
    return Figure(
        "traffic",
        title,
        Panel("", "models sent to and by clients, MiB", score.title, curves),
        f"Weighted test {score.title} against all that was sent until then; means over the seeds.",
        f"Line chart. {title}: {ends}.",
        styles_of(groups),
        Table(f"{title}: values", head, rows, folded=True, note=cut_note(len(rows), total, "rounds")),
    )


def _table(heading: str, drawn: Mapping[str, Means], first: str) -> Table:
    """Lists the values: a row a round, at most 60 of them, and a column for each group."""
    rounds = sorted({number for one in drawn.values() for number in one.rounds})
    by_name = {name: dict(zip(one.rounds, range(len(one.rounds)), strict=True)) for name, one in drawn.items()}
    rows = []
    for number in (rounds[k] for k in thin(len(rounds), _MOST_ROWS)):
        cells = [_cell(one, by_name[name].get(number)) for name, one in drawn.items()]
        rows.append([number, *cells])
    note = cut_note(len(rows), len(rounds), "rounds")
    return Table(f"{heading}: values", [first, *drawn], rows, folded=True, note=note)


def _cell(one: Means, place: int | None) -> str | None:
    if place is None:
        return None
    spread = f" ± {_short(one.deviation[place])}" if one.deviation else ""
    return _short(one.mean[place]) + spread


def _direction(column: str, score: Score) -> str:
    return "" if higher_is_better(column, (score,)) else "Lower is better. "


def _band(banded: bool) -> str:
    return "Lines are means over the seeds, bands one standard deviation. " if banded else ""


def _left_out(groups: Sequence[Group], drawn: Mapping[str, Means]) -> str:
    missing = [group.name for group in groups if group.name not in drawn]
    return f"Not known for {', '.join(missing)}." if missing else ""


def _first(drawn: Mapping[str, Means]) -> int:
    return min(one.rounds[0] for one in drawn.values())


def _last(drawn: Mapping[str, Means]) -> int:
    return max(one.rounds[-1] for one in drawn.values())


def _short(value: float) -> str:
    return f"{value:.4g}"
