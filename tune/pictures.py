"""The pictures of a study, drawn without a display and without global state."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite, log10
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_cfl.metric_names import Row
from lit_cfl.storage.atomic_writes import write_atomically
from lit_cfl.tune.importance import METHOD
from lit_cfl.tune.objective import TRAFFIC, Objective
from lit_cfl.tune.optuna_space import in_space
from lit_cfl.tune.record import FAILED_STATUS, FINISHED_STATUS, STOPPED_STATUS
from lit_cfl.tune.spaces import OneOf, Parameter, Space, Uniform, as_plain

_LONGEST_LABEL = 18
_LONG = 24  # letters of all labels of an axis that still fit side by side
_APART = 0.12  # least distance of labels of a logarithmic axis, as a share of its length


def shown(space: Space) -> list[Parameter]:
    """The parameters of a space, and the choice among algorithms where there is one."""
    several = [Parameter("algorithm", OneOf(tuple(space.algorithms)))] if space.algorithms else []
    return [*several, *space.parameters]


class Scale:
    """An axis.

    Args:
        parameter: whose values it shows.
    """

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter
        what = parameter.distribution
        self._words = [as_plain(value) for value in what.values] if isinstance(what, OneOf) else []
        self._log = not isinstance(what, OneOf) and what.log
        if self._words:
            self.ends = 0.0, float(len(self._words) - 1)
            self.ticks = [float(k) for k in range(len(self._words))]
            self.labels = [_short(str(word)) for word in self._words]
        else:
            self.ends = self.position(what.corners[0]), self.position(what.corners[-1])
            self.ticks = self._ticks()
            self.labels = [f"{10**tick:.3g}" if self._log else f"{tick:g}" for tick in self.ticks]
        self.long = sum(len(label) for label in self.labels) > _LONG

    def _ticks(self) -> list[float]:
        low, high = self.ends
        if self._log:
            apart = _APART * (high - low)
            decades = [float(k) for k in range(int(low // 1), int(high // 1) + 1) if low + apart < k < high - apart]
            return [low, *decades[:: max(1, -(-len(decades) // 4))], high]
        whole = not isinstance(self.parameter.distribution, Uniform)
        ticks = [float(tick) for tick in MaxNLocator(5, integer=whole).tick_values(low, high)]
        return [tick for tick in ticks if low <= tick <= high]

    def position(self, value: Any) -> float:
        """Of a value, in the axis's own numbers: decimal logarithms, numbers of choices, or the value itself."""
        if self._words:
            return float(self._words.index(value))
        return log10(value) if self._log else float(value)

    def share(self, position: float) -> float:
        """Of the way from the lowest to the highest, 0 to 1."""
        low, high = self.ends
        return (position - low) / (high - low) if high > low else 0.5


def _short(word: str) -> str:
    return word if len(word) <= _LONGEST_LABEL else word[: _LONGEST_LABEL - 1] + "…"


_BLUE, _RED, _GREY = "#3b6ea8", "#c44e52", "#9a9a9a"
_PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}  # behind labels that lines cross
_COLUMNS = 3  # of slices


def draw(path: Path, rows: Sequence[Row], space: Space, objective: Objective, shares: Mapping[str, float]) -> None:
    """Writes the pictures of a study into a folder; one that there is nothing to show in is left out.

    Args:
        rows: of the trials that were trained, by number.
        shares: each parameter's importance.
    """
    known = [row for row in rows if _figure_of(row, objective) is not None]
    if not known:
        return
    searched = [row for row in known if in_space(row, space)]  # the default need not lie in the space
    figures = {
        "history": history(rows, objective),
        "slices": slices(searched, space, objective) if searched else None,
        "parallel": parallel(searched, space, objective) if searched else None,
        "importance": importance_bars(shares, sum(row["status"] == FINISHED_STATUS for row in searched))
        if shares
        else None,
        "pareto": pareto([row for row in known if row["status"] == FINISHED_STATUS], objective),
    }
    path.mkdir(exist_ok=True)
    for name, figure in figures.items():
        (path / f"{name}.png").unlink(missing_ok=True)  # a study that was resumed may have drawn it before
        if figure is not None:
            write_atomically(path / f"{name}.png", partial(figure.savefig, dpi=120))


def _figure_of(row: Row, objective: Objective) -> float | None:
    value = row.get(objective.metric)
    return value if value is not None and isfinite(value) else None


def history(rows: Sequence[Row], objective: Objective) -> Figure:
    """Each trial's figure in the order in which trials were begun, and the best so far."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for status, face in ((FINISHED_STATUS, _BLUE), (STOPPED_STATUS, "white")):
        points = [
            (k, row[objective.metric])
            for k, row in enumerate(rows)
            if row["status"] == status and _figure_of(row, objective) is not None
        ]
        if points:
            across, up = zip(*points, strict=True)
            axes.scatter(across, up, s=30, facecolor=face, edgecolor=_BLUE, label=status, zorder=3)
    failed = [k for k, row in enumerate(rows) if row["status"] == FAILED_STATUS]
    if failed:
        marks = axes.get_xaxis_transform()  # at the lower edge, wherever that is
        axes.scatter(failed, [0.02] * len(failed), marker="x", color=_RED, label=FAILED_STATUS, transform=marks)
    best = [
        (k, row[objective.metric])
        for k in range(len(rows))
        if (row := objective.best([r for r in rows[: k + 1] if r["status"] == FINISHED_STATUS]))
    ]
    if best:
        axes.step(*zip(*best, strict=True), where="post", color=_RED, linewidth=1.2, label="best so far")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="trial", ylabel=objective.metric, title="History of the search")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def slices(rows: Sequence[Row], space: Space, objective: Objective) -> Figure:
    """The figure over each parameter alone."""
    parameters = shown(space)
    columns = min(_COLUMNS, len(parameters))
    lines = -(-len(parameters) // columns)
    figure = Figure(figsize=(3.6 * columns + 0.6, 3.0 * lines + 0.5), layout="constrained")
    places = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
    for axes, parameter in zip(places, parameters, strict=False):
        own = [row for row in rows if row.get(parameter.key) is not None]
        scale = Scale(parameter)
        for status, face in ((FINISHED_STATUS, _BLUE), (STOPPED_STATUS, "white")):
            some = [row for row in own if row["status"] == status]
            points = [scale.position(row[parameter.key]) for row in some], [row[objective.metric] for row in some]
            axes.scatter(*points, s=26, facecolor=face, edgecolor=_BLUE, alpha=0.85)
        axes.set_xlabel(parameter.key)
        turned = {"rotation": 25, "ha": "right"} if scale.long else {}
        axes.set_xticks(scale.ticks, scale.labels, **turned)
        low, high = scale.ends
        margin = 0.06 * (high - low) or 0.5
        axes.set_xlim(low - margin, high + margin)
    for axes in places[len(parameters) :]:
        axes.axis("off")
    for first in range(0, len(parameters), columns):
        places[first].set_ylabel(objective.metric)
    figure.suptitle("One parameter at a time (hollow: stopped early)")
    return figure


def parallel(rows: Sequence[Row], space: Space, objective: Objective) -> Figure:
    """A line for each trial through all its values; a panel for each algorithm."""
    names = [name for name in space.algorithms or [""] if any(row.get("algorithm", "") == name for row in rows)]
    most = max(len(space.of(name)) for name in names) + 1
    figure = Figure(figsize=(2.6 * max(most, 3) + 1, 3.4 * len(names) + 0.4), layout="constrained")
    panels = figure.subplots(len(names), 1, squeeze=False).flatten()
    values = [float(row[objective.metric]) for row in rows]
    colour = ScalarMappable(Normalize(min(values), max(values)), colormaps["viridis"])
    for axes, name in zip(panels, names, strict=True):
        own = [row for row in rows if row.get("algorithm", "") == name]
        _lines(axes, own, space.of(name), objective, colour)
        axes.set_title(name, loc="left", weight="bold")
    figure.colorbar(colour, ax=list(panels), label=objective.metric, pad=0.02)
    figure.suptitle("Every trial a line (dashed: stopped early)")
    return figure


def _lines(
    axes: Axes, rows: Sequence[Row], parameters: Sequence[Parameter], objective: Objective, colour: ScalarMappable
) -> None:
    scales = [Scale(parameter) for parameter in parameters]
    axes.axis("off")
    for k, scale in enumerate(scales):
        _axis(axes, k, scale.parameter.option.removeprefix("algorithm."))
        for tick, label in zip(scale.ticks, scale.labels, strict=True):
            axes.text(k - 0.03, scale.share(tick), label, ha="right", va="center", fontsize=9, bbox=_PAPER, zorder=4)
    _axis(axes, len(scales), objective.metric, weight="bold")
    lowest, highest = colour.get_clim()
    span = (highest - lowest) or 1.0
    for row in sorted(rows, key=lambda row: float(row[objective.metric]), reverse=objective.mode == "min"):
        crossed = [
            (k, scale.share(scale.position(row[scale.parameter.key])))
            for k, scale in enumerate(scales)
            if row.get(scale.parameter.key) is not None
        ]
        style = "-" if row["status"] == FINISHED_STATUS else (0, (4, 2))
        points = zip(*crossed, (len(scales), (row[objective.metric] - lowest) / span), strict=True)
        axes.plot(*points, color=colour.to_rgba(row[objective.metric]), linestyle=style, linewidth=1.6)
    axes.set(xlim=(-0.4, len(scales) + 0.25), ylim=(-0.06, 1.2))


def _axis(axes: Axes, place: int, name: str, **style: Any) -> None:
    axes.plot([place, place], [0, 1], color=_GREY, linewidth=0.8)
    axes.text(place, 1.06, name, ha="center", va="bottom", **style)


def importance_bars(shares: Mapping[str, float], trials: int) -> Figure:
    """The importance of each parameter, the greatest first."""
    figure = Figure(figsize=(7, 1.1 + 0.38 * len(shares)), layout="constrained")
    axes = figure.subplots()
    names = list(shares)[::-1]
    bars = axes.barh(names, [shares[name] for name in names], color=_BLUE, height=0.65)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set(xlim=(0, 1.1 * max(shares.values())), xlabel=f"importance ({METHOD}, the best quarter of {trials} trials)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("What mattered")
    return figure


def pareto(rows: Sequence[Row], objective: Objective) -> Figure | None:
    """The metric against the traffic, and the trials that none beats in both; None where all cost the same."""
    rows = [row for row in rows if row[TRAFFIC] is not None]
    costs = [float(row[TRAFFIC]) for row in rows]
    if len(set(costs)) < 2:
        return None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    front = pareto_front(rows, objective)
    what = objective.scores[0].title if objective.metric == objective.usual else objective.metric
    others = [row for row in rows if row not in front]
    axes.scatter([row[TRAFFIC] for row in others], [row[objective.metric] for row in others], color=_GREY, s=26)
    costs_of_front, best = [row[TRAFFIC] for row in front], [row[objective.metric] for row in front]
    axes.plot(costs_of_front, best, "-o", color=_RED, drawstyle="steps-post", label="Pareto front")
    if max(costs) > 20 * min(costs) > 0:
        axes.set_xscale("log")
    axes.set(xlabel=f"{TRAFFIC} (finished trials)", ylabel=objective.metric, title=f"What {what} costs")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def pareto_front(rows: Sequence[Row], objective: Objective) -> list[Row]:
    """The rows that no other beats in metric and traffic at once, the cheapest first."""
    sign = 1.0 if objective.mode == "min" else -1.0
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (row[TRAFFIC], sign * row[objective.metric])):
        if not front or sign * row[objective.metric] < sign * front[-1][objective.metric]:
            front.append(row)
    return front
