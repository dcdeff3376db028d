"""Curves over rounds and costs: of a run, and of groups of runs with a band over their seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean, stdev
from typing import Any

from lit_cfl.metric_names import higher_is_better
from lit_cfl.pictures.colours import line_styles
from lit_cfl.pictures.figure import Figure, finite_number, short, thin
from lit_cfl.pictures.panels import BLACK, Curve, Panel, Style
from lit_cfl.scores import ACCURACY, Score

_MOST_POINTS = 500  # maximum number of points of a curve
_WIDE = 10  # ratio of counts above which their axis is logarithmic, so that a high one does not flatten the others
_SPLITS = {  # by column without the score's name: style and name of the line
    "test/weighted": ("-", "test"),
    "test/worst10": (":", "test, worst tenth of the clients"),
    "val/weighted": ("--", "validation"),
}


@dataclass(frozen=True)
class Means:
    """Mean and standard deviation of a metric over runs, per round.

    Args:
        rounds: Rounds that every run of the group has.
        mean: Means over the seeds.
        deviation: Standard deviations over the seeds; empty with one.
    """

    rounds: Sequence[int]
    mean: Sequence[float]
    deviation: Sequence[float] = ()

    @classmethod
    def of(cls, runs: Sequence[Sequence[Mapping[str, Any]]], column: str) -> "Means":
        """Computes the means of a column over runs, in the rounds for which all runs have it.

        Args:
            runs: Rows of `metrics.csv` of each run.
            column: Column of these rows.
        """
        found = [{int(row["round"]): finite_number(row.get(column)) for row in rows} for rows in runs]
        rounds = sorted(set.intersection(*map(set, found))) if found else []
        whole: dict[int, list[Any]] = {k: values for k in rounds if None not in (values := [one[k] for one in found])}
        deviation = [stdev(own) for own in whole.values()] if len(runs) > 1 else []
        return cls(list(whole), [fmean(own) for own in whole.values()], deviation)


def limits_of(column: str, score: Score) -> tuple[float, float]:
    """Returns the minimum and maximum of a metric's range, to which the band of its curve is clipped."""
    if column == "clusters/ari":
        return -0.5, 1.0
    if column.endswith(f"_{score.name}") and score.is_share:
        return 0.0, 1.0
    return (0.0, inf) if column == "clusters/count" else (-inf, inf)


def over_rounds(
    column: str, title: str, axis: str, meaning: str, groups: Mapping[str, Means], score: Score
) -> Figure | None:
    """Draws a metric of groups over the rounds; None if the figure would show nothing.

    That is the case if no group has the metric in two rounds, or if a metric of clusters is constant.

    Args:
        column: Name of the column in `metrics.csv`.
        title: Heading.
        axis: Label of the vertical axis.
        meaning: Sentence for the caption.
        groups: Groups by name.
        score: The task's main score.
    """
    drawn = {name: one for name, one in groups.items() if one.rounds}
    if max((len(one.rounds) for one in drawn.values()), default=0) < 2:
        return None
    if column.startswith("clusters/") and len({value for one in drawn.values() for value in one.mean}) == 1:
        return None  # the lines would be flat and equal
    better = "" if column.startswith("clusters/") or higher_is_better(column, (score,)) else " Lower is better."
    missing = ", ".join(name for name in groups if name not in drawn)
    figure = _lines(title, axis, drawn, limits_of(column, score), line_styles(list(groups)))
    caption = f"{meaning}{better}{figure.caption}{f' Not known for {missing}.' if missing else ''}"
    panel = figure.first_panel
    if column == "clusters/count":
        values = [value for one in drawn.values() for value in one.mean]
        panel = replace(panel, counts=True, log_y=min(values) >= 1 and max(values) > _WIDE * min(values))
    return replace(figure, name=column.replace("/", "-"), caption=caption, rows=[[panel]])


def _lines(
    title: str,
    axis: str,
    groups: Mapping[str, Means],
    limits: tuple[float, float],
    styles: Mapping[str, Style],
) -> Figure:
    """Draws means over the rounds with their bands; the caption explains the bands."""
    rounds = sorted({number for one in groups.values() for number in one.rounds})
    listed = "; ".join(f"{name} {short(one.mean[0])} to {short(one.mean[-1])}" for name, one in groups.items())
    banded = any(one.deviation for one in groups.values())
    return Figure(
        "curve",
        title,
        [[Panel("", "round", axis, [_curve(name, one, limits) for name, one in groups.items()])]],
        " Lines are means over the seeds, bands one standard deviation." if banded else "",
        f"Line chart. {title}, from round {rounds[0]} to {rounds[-1]}: {listed}.",
        styles,
    )


def _curve(name: str, one: Means, limits: tuple[float, float]) -> Curve:
    kept = thin(len(one.rounds), _MOST_POINTS)
    rounds, mean = [one.rounds[k] for k in kept], [one.mean[k] for k in kept]
    if not one.deviation:
        return Curve(name, rounds, mean)
    deviation, (least, most) = [one.deviation[k] for k in kept], limits
    pairs = list(zip(mean, deviation, strict=True))
    low = [max(min(least, m), m - d) for m, d in pairs]  # a user's score of the same name may have another range
    high = [min(max(most, m), m + d) for m, d in pairs]
    return Curve(name, rounds, mean, low, high)


COSTS = {  # by the figure's name: column of the cost, label of the axis, unit, and what the cost is
    "traffic": ("traffic/mib", "models sent to and by clients, MiB", "MiB", "all traffic up to that round"),
    "local work": (
        "local/examples",
        "examples that clients trained on",
        "examples",
        "the examples that clients had trained on up to that round, including pre-training",
    ),
}


def over_cost(name: str, groups: Mapping[str, tuple[Means, Means]], score: Score) -> Figure | None:
    """Draws the main test score against a cost; None if the cost is always zero, or known for fewer than two rounds.

    Args:
        name: Name of the cost.
        groups: Score and cost by name.
        score: The task's main score.
    """
    _, axis, unit, meaning = COSTS[name]
    curves = []
    for group, (scored, spent) in groups.items():
        until = dict(zip(spent.rounds, spent.mean, strict=True))
        pairs = [(until[k], value) for k, value in zip(scored.rounds, scored.mean, strict=True) if k in until]
        kept = [pairs[k] for k in thin(len(pairs), _MOST_POINTS)]
        curves += [Curve(group, [x for x, _ in kept], [y for _, y in kept])] if kept else []
    if max((len(curve.x) for curve in curves), default=0) < 2 or not any(curve.x[-1] > 0 for curve in curves):
        return None
    title = f"{score.heading} against {name}"
    several = any(scored.deviation for scored, _ in groups.values())
    ends = "; ".join(f"{curve.name} {short(curve.y[-1])} after {short(curve.x[-1])} {unit}" for curve in curves)
    return Figure(
        name.replace(" ", "-"),
        title,
        [[Panel("", axis, score.title, curves)]],
        f"Weighted test {score.title} against {meaning}{'; means over the seeds' if several else ''}.",
        f"Line chart. {title}: {ends}.",
        line_styles(list(groups)),
    )


def learning_curve(runs: Mapping[str, Sequence[Mapping[str, Any]]], score: Score) -> Figure | None:
    """Draws the main score of a run and of its baseline over the rounds: test, worst tenth, validation.

    None if no round has the score, as without test and validation data.

    Args:
        runs: Rows of `metrics.csv` by the name of the algorithm: the run's, then its baseline's if there is one.
        score: The task's main score.
    """
    groups, styles, own = {}, {}, line_styles(list(runs))
    for run, rows in runs.items():
        for column, (line, split) in _SPLITS.items():
            one = Means.of([rows], f"{column}_{score.name}")
            if one.rounds:
                groups[f"{run}, {split}"] = one
                styles[f"{run}, {split}"] = replace(own[run], line=line, marked=line == "-")
    if not groups:
        return None
    figure = _lines(" and ".join(runs), _with_direction(score), groups, (-inf, inf), styles)
    limits = (0.0, 1.0) if score == ACCURACY else None
    return replace(figure, rows=[[replace(figure.first_panel, limits=limits)]])


def mean_curves(
    runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], target: float | None, score: Score = ACCURACY
) -> Figure | None:
    """Draws the main test score of algorithms: means over the seeds, with a band of one standard deviation.

    None if no algorithm has a round with the score in all of its runs.

    Args:
        runs: Rows of `metrics.csv` of each algorithm's runs.
        target: Value of a thin line.
        score: Score that the figures show.
    """
    column, styles = f"test/weighted_{score.name}", line_styles(list(runs))
    groups = {name: one for name, own in runs.items() if (one := Means.of(own, column)).rounds}
    if not groups:
        return None
    if target is not None:
        rounds = [number for one in groups.values() for number in one.rounds]
        groups[f"target {target:g}"] = Means([min(rounds), max(rounds)], [target, target])
        styles[f"target {target:g}"] = Style(BLACK, ":")
    limits = limits_of(column, score)
    several = any(one.deviation for one in groups.values())
    return _lines(
        "Mean over seeds, band: one standard deviation" if several else "One seed",
        f"weighted test {_with_direction(score)}",
        groups,
        limits,
        styles,
    )


def _with_direction(score: Score) -> str:
    return score.title if score.higher_is_better else f"{score.title} (lower is better)"
