"""Figures of a search: its history, importance of parameters, Pareto front, and one parameter at a time."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lit_cfl.metric_names import Row
from lit_cfl.pictures.figure import HEIGHT, Figure, finite_number, short
from lit_cfl.pictures.panels import BLUE, ORANGE, SKY, VERMILLION, Curve, Panel, Points, Style, plain

_MOST_SLICES = 12
_ACROSS = 2  # panels side by side in a figure of slices
_WIDE = 10  # ratio of values above which their axis is logarithmic
_LONG_NAME = 22  # maximum number of letters of a parameter's name on one line under a panel
_LONGEST_LABEL = 18  # maximum number of letters of a choice on an axis
_BAR = 0.22  # height in inches of a parameter's bar in the figure of importance
_FRONT, _BEST = "Pareto front", "best so far"
TRIAL_STYLES = {
    "finished": Style(BLUE, marker="o", size=4),
    "stopped": Style(SKY, marker="v", size=4),
    "running": Style("#999999", marker="D", size=4),
    "interrupted": Style("#999999", marker="D", size=4),
    "failed": Style(VERMILLION, marker="X", size=4),
    _BEST: Style(ORANGE),
    _FRONT: Style(ORANGE, marker="s", size=5),
}  # styles of points by the status of a trial


@dataclass(frozen=True)
class Search:
    """The trials of a search.

    Args:
        rows: Rows of the trained trials by number: `trial_id`, `status`, values by parameter, metrics.
        metric: Metric by which trials are compared.
        parameters: Names of the values that a trial may have.
        best: Returns the best of some rows, or None.
        traffic: Column of MiB.
    """

    rows: Sequence[Row]
    metric: str
    parameters: Sequence[str]
    best: Callable[[Sequence[Row]], Row | None]
    traffic: str

    @property
    def known(self) -> list[Row]:
        """The trials that reported the metric."""
        return [row for row in self.rows if finite_number(row.get(self.metric)) is not None]

    def of(self, status: str) -> list[Row]:
        """Lists the trials with this status that reported the metric."""
        return [row for row in self.known if row["status"] == status]

    def points(self, name: str, rows: Sequence[Row], column: str, y: float | None = None) -> list[Points]:
        """Returns trials as points: x is a column's value, y the metric or the given number."""
        x = [float(row[column]) for row in rows]
        heights = [float(row[self.metric] if y is None else y) for row in rows]
        return [Points(name, x, heights, notes=list(map(self._note, rows)))] if rows else []

    def by_status(self, column: str) -> list[Points]:
        """Returns the trials of each status as points: x is a column's value, y the metric."""
        return [dots for status in TRIAL_STYLES for dots in self.points(status, self.of(status), column)]

    def _note(self, row: Row) -> dict[str, str | None]:
        columns = ("status", "origin", "rounds", self.traffic, self.metric, *self.parameters, "error")
        shown = {key: None if row.get(key) is None else short(row[key]) for key in columns}
        return {"trial": str(row["trial_id"])} | shown


def history(search: Search) -> Figure | None:
    """Draws the metric by trial number, and the best finished trial so far; None if no trial reported the metric."""
    if not search.known:
        return None
    x: list[float] = []
    y: list[float] = []
    for k, row in enumerate(search.rows):
        best = search.best([one for one in search.rows[: k + 1] if one["status"] == "finished"])
        if best is not None:  # draws steps: the best value so far holds until the next trial
            x += [int(row["trial_id"])] * (2 if y else 1)
            y += [*y[-1:], float(best[search.metric])]
    failed = [row for row in search.rows if row["status"] == "failed"]
    lowest = min(float(row[search.metric]) for row in search.known)
    points = [*search.by_status("trial_id"), *search.points("failed", failed, "trial_id", lowest)]
    return Figure(
        "history",
        "History of the search",
        [[Panel("", "trial", search.metric, [Curve(_BEST, x, y)] if x else [], points)]],
        f"Each trial's last {search.metric}. Trials that were stopped early ran fewer rounds, and only finished ones "
        f"can be the best.{' A cross marks the number of a failed trial.' if failed else ''}",
        f"Scatter plot of {len(search.known)} trials"
        + (f"; the best so far goes from {y[0]:.4g} to {y[-1]:.4g}." if y else "."),
        TRIAL_STYLES,
    )


def importance(shares: Mapping[str, float], method: str) -> Figure | None:
    """Draws the importance of parameters, the highest on top; None if it is unknown.

    Args:
        shares: Share of each parameter.
        method: Name of the method.
    """
    if not shares:
        return None
    order = sorted(shares, key=shares.__getitem__)
    listed = ", ".join(f"{key} {shares[key]:.2f}" for key in reversed(order))
    lines = [Curve("importance", [0.0, shares[key]], [k, k]) for k, key in enumerate(order)]
    notes = [{"parameter": key, "share": f"{shares[key]:.3f}"} for key in order]
    dots = Points("importance", [shares[key] for key in order], range(len(order)), notes=notes)
    ticks = {float(k): key for k, key in enumerate(order)}
    return Figure(
        "importance",
        "Importance of the parameters",
        [[Panel("", f"share ({method})", "", lines, [dots], y_ticks=ticks)]],
        "Each parameter's share in what makes the best quarter of the finished trials the best; rough with few trials.",
        f"Dot plot of importance: {listed}.",
        {"importance": Style(BLUE, size=4)},
        height=max(HEIGHT, 0.6 + _BAR * len(order)),
    )


def pareto(search: Search, front: Sequence[Row]) -> Figure | None:
    """Draws finished trials by traffic and metric; None if all have the same traffic.

    Args:
        search: Trials of the search.
        front: Pareto-optimal rows, the cheapest first.
    """
    rows = [row for row in search.of("finished") if finite_number(row.get(search.traffic)) is not None]
    if len({row[search.traffic] for row in rows}) < 2:
        return None
    dots = search.points(_FRONT, front, search.traffic)
    line = Curve(_FRONT, dots[0].x, dots[0].y)
    dots += search.points("finished", [row for row in rows if row not in front], search.traffic)
    return Figure(
        "pareto",
        "What it costs: Pareto front",
        [[Panel("", "traffic, MiB", search.metric, [line], dots)]],
        "Finished trials by traffic. For a trial on the front, no other one is at least as good in both.",
        f"Scatter plot of {len(rows)} trials by traffic and {search.metric}; on the front: "
        f"{', '.join(str(row['trial_id']) for row in front)}.",
        TRIAL_STYLES,
    )


def slices(search: Search) -> Figure | None:
    """Draws the metric against each parameter that varies, at most twelve; None if none varies."""
    panels: list[Panel | None] = []
    shown = []
    for key in search.parameters:
        rows = [row for row in search.known if row.get(key) is not None]
        values = [row[key] for row in rows]
        if len(set(map(str, values))) < 2 or len(panels) == _MOST_SLICES:
            continue
        numbers = all(finite_number(value) is not None for value in values)
        words = [] if numbers else sorted(set(map(str, values)))
        rows = [row | {"at": row[key] if numbers else words.index(str(row[key]))} for row in rows]
        points = replace(search, rows=rows).by_status("at")
        ticks = {float(k): word for k, word in enumerate(short_labels(words))}
        wide = numbers and min(values) > 0 and max(values) > _WIDE * min(values)
        panels.append(Panel("", plain(_on_two_lines(key)), search.metric, points=points, x_ticks=ticks, log_x=wide))
        shown.append(key)
    if not panels:
        return None
    is_wide = any(panel.log_x for panel in panels if panel is not None)
    scale = f" Values that differ by more than a factor of {_WIDE} have a logarithmic axis." if is_wide else ""
    across = min(_ACROSS, len(panels))
    panels += [None] * (-len(panels) % across)
    return Figure(
        "slices",
        "One parameter at a time",
        [panels[k : k + across] for k in range(0, len(panels), across)],
        "Trials by their value of each parameter that varies." + scale,
        f"Scatter plots of {len(search.known)} trials by {', '.join(shown)} and {search.metric}.",
        TRIAL_STYLES,
        height=1.6,
    )


def _on_two_lines(key: str) -> str:
    """Breaks a parameter's name that is too long for the width of a panel at its last dot."""
    before, dot, name = key.rpartition(".")
    return f"{before}{dot}\n{name}" if dot and len(key) > _LONG_NAME else key


def short_labels(choices: Sequence[Any]) -> list[str]:
    """Makes a short, distinct label for each choice: for a class its name, without its module."""
    words = [_short_label(str(choice)) for choice in choices]
    return words if len(set(words)) == len(words) else [f"{k + 1}: {word}" for k, word in enumerate(words)]


def _short_label(word: str) -> str:
    try:
        content = json.loads(word)
    except ValueError:
        content = word
    if isinstance(content, dict) and "class_path" in content:
        own = ", ".join(f"{key}={value}" for key, value in (content.get("init_args") or {}).items())
        word = f"{str(content['class_path']).rpartition('.')[2]}({own})"
    return word if len(word) <= _LONGEST_LABEL else word[: _LONGEST_LABEL - 1] + "…"
