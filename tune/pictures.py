"""The figures of a study, for its directory and its page, and the importance of its parameters.

Importance is PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023), as Optuna computes it: how much a parameter's values in
the best quarter of its trials differ from those in all of them. Only finished trials that have the parameter count.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from lit_cfl.metric_names import Row
from lit_cfl.pictures.colours import line_styles
from lit_cfl.pictures.figure import Figure, finite_number
from lit_cfl.pictures.panels import BLACK, Curve, Panel, Points, Style, plain
from lit_cfl.tune.objective import TRAFFIC, Objective
from lit_cfl.tune.record import FAILED_STATUS, FINISHED_STATUS, STOPPED_STATUS
from lit_cfl.tune.spaces import Space, contains

METHOD = "PED-ANOVA"
FEWEST_TRIALS = 10  # minimum number of finished trials that have a parameter
NO_IMPORTANCE = (
    f"Importance of the parameters: unknown; a parameter needs {FEWEST_TRIALS} finished trials that have it, whose "
    "scores differ"
)
_MOST_SLICES = 12
_WIDE = 10  # ratio of values above which their axis is logarithmic
_LONG_NAME = 22  # maximum number of letters of a parameter's name on one line under a panel
_LONGEST_LABEL = 18  # maximum number of letters of a choice on an axis
_MARKERS = {FINISHED_STATUS: "o", STOPPED_STATUS: "v", FAILED_STATUS: "X"}
_BEST, _FRONT = "best so far", "Pareto front"
_SHAPES = "Triangles are trials that were stopped early or still run"


class _Trials:
    """The trials of a study as points: one colour for each algorithm, one marker for each status."""

    def __init__(self, rows: Sequence[Row], objective: Objective) -> None:
        self.rows, self.metric = rows, objective.metric
        self.known = [row for row in rows if finite_number(row.get(self.metric)) is not None]
        self.finished = [row for row in self.known if row["status"] == FINISHED_STATUS]
        names = list(dict.fromkeys(str(row.get("algorithm") or "trials") for row in rows))
        colours = {name: style.colour for name, style in line_styles(names).items()}
        several = len(names) > 1  # then the legend names the algorithms, else the shapes
        self.styles = {
            f"{name} {status}": Style(
                colour, "", marker, 4, label=plain(name if several else status), named=marker == "o" or not several
            )
            for (name, colour), (status, marker) in product(colours.items(), _MARKERS.items())
        } | {_BEST: Style(BLACK), _FRONT: Style(BLACK)}

    def points(self, rows: Sequence[Row], column: str, y: float | None = None) -> list[Points]:
        """Returns trials as points: x is a column's value, y the metric or the given number."""
        groups: dict[str, list[Row]] = {}
        for row in rows:
            status = row["status"] if row["status"] in _MARKERS else STOPPED_STATUS
            groups.setdefault(f"{row.get('algorithm') or 'trials'} {status}", []).append(row)
        heights = {name: [float(row[self.metric] if y is None else y) for row in own] for name, own in groups.items()}
        return [Points(name, [float(row[column]) for row in own], heights[name]) for name, own in groups.items()]


def list_figures(
    rows: Sequence[Row], parameters: Sequence[str], objective: Objective
) -> dict[str, Callable[[], Figure | None]]:
    """Returns functions that draw a study's figures, by name; each returns None if its figure would be empty.

    Args:
        rows: Rows of the trained trials by number.
        parameters: Names of the values that a trial may have.
        objective: Objective by which trials are compared.
    """
    trials = _Trials(rows, objective)
    if not trials.known:
        return {}
    return {
        "history": lambda: _history(trials, objective),
        "pareto": lambda: _pareto(trials, objective),
        "slices": lambda: _slices(trials, parameters),
    }


def _history(trials: _Trials, objective: Objective) -> Figure:
    """Draws the metric by trial number, and the best finished trial so far."""
    steps: list[tuple[float, float]] = []  # the best value so far holds until the next trial
    best: Row | None = None
    finished = {row["trial_id"] for row in trials.finished}
    for row in trials.rows:
        candidates = [row] if row["trial_id"] in finished else []
        best = objective.best(candidates if best is None else [best, *candidates])
        if best is not None:
            steps.append((int(row["trial_id"]), float(best[trials.metric])))
    x, y = _stairs(steps)
    failed = [row for row in trials.rows if row["status"] == FAILED_STATUS]
    lowest = min(float(row[trials.metric]) for row in trials.known)
    dots = trials.points(trials.known, "trial_id") + trials.points(failed, "trial_id", lowest)
    curves = [Curve(_BEST, x, y)] if x else []
    return Figure(
        "history",
        "History of the search",
        [[Panel("", "trial", trials.metric, curves, dots)]],
        f"Each trial's last {trials.metric}; only finished trials can be the best. {_SHAPES}; a cross marks the number "
        "of a failed one.",
        f"Scatter plot of {len(trials.known)} trials"
        + (f"; the best so far goes from {y[0]:.4g} to {y[-1]:.4g}." if y else "."),
        trials.styles,
    )


def _stairs(steps: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Returns x and y of a line that keeps the value of each step until the next one."""
    return [x for x, _ in steps for _ in range(2)][1:], [y for _, y in steps for _ in range(2)][:-1]


def _pareto(trials: _Trials, objective: Objective) -> Figure | None:
    """Draws finished trials by traffic and metric; None if all have the same traffic."""
    rows = [row for row in trials.finished if finite_number(row.get(TRAFFIC)) is not None]
    if len({row[TRAFFIC] for row in rows}) < 2:
        return None
    front = objective.front(rows)
    # between two trials, the cheaper one is what a budget buys
    x, y = _stairs([(float(row[TRAFFIC]), float(row[trials.metric])) for row in front])
    return Figure(
        "pareto",
        "What it costs: Pareto front",
        [[Panel("", "traffic, MiB", trials.metric, [Curve(_FRONT, x, y)], trials.points(rows, TRAFFIC))]],
        "Finished trials by traffic. For a trial on the front, no other one is at least as good in both.",
        f"Scatter plot of {len(rows)} trials by traffic and {trials.metric}; on the front: "
        f"{', '.join(str(row['trial_id']) for row in front)}.",
        trials.styles,
    )


def _slices(trials: _Trials, parameters: Sequence[str]) -> Figure | None:
    """Draws the metric against each parameter that varies, at most twelve; None if none varies."""
    groups = {key: [row for row in trials.known if row.get(key) is not None] for key in parameters}
    shown = [key for key, rows in groups.items() if len({str(row[key]) for row in rows}) > 1][:_MOST_SLICES]
    panels: list[Panel | None] = [_slice(trials, key, groups[key]) for key in shown]
    if not panels:
        return None
    across = min(2, len(panels))
    panels += [None] * (-len(panels) % across)
    return Figure(
        "slices",
        "One parameter at a time",
        [panels[k : k + across] for k in range(0, len(panels), across)],
        f"Trials by their value of each parameter that varies. {_SHAPES}.",
        f"Scatter plots of {len(trials.known)} trials by {', '.join(shown)} and {trials.metric}.",
        trials.styles,
        height=1.6,
    )


def _slice(trials: _Trials, key: str, rows: Sequence[Row]) -> Panel:
    values = [row[key] for row in rows]
    is_wide, ticks = False, dict[float, str]()
    if all(finite_number(value) is not None for value in values):
        is_wide = min(values) > 0 and max(values) > _WIDE * min(values)
        dots = trials.points(rows, key)
    else:
        words = sorted(set(map(str, values)))
        dots = trials.points([row | {"at": words.index(str(row[key]))} for row in rows], "at")
        ticks = {float(k): label for k, label in enumerate(short_labels(words))}
    before, dot, name = key.rpartition(".")
    label = f"{before}{dot}\n{name}" if dot and len(key) > _LONG_NAME else key
    return Panel("", plain(label), trials.metric, points=dots, x_ticks=ticks, log_x=is_wide)


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


def importance(rows: Sequence[Row], space: Space, objective: Objective) -> dict[str, float]:
    """Computes each parameter's importance, as shares with sum 1, highest first.

    Args:
        rows: Rows of trained trials.
        space: Search space.
        objective: Objective by which trials are compared.

    Returns:
        The share of each parameter that at least ten finished trials have; empty if there is none, or none mattered.
    """
    found: dict[str, float] = {}
    finished = _Trials(rows, objective).finished
    for key, kind in space.distributions().items():
        own = [row for row in finished if row.get(key) is not None and contains(kind, row[key])]
        if len(own) >= FEWEST_TRIALS:
            found[key] = _importance_of(key, kind, own, objective)
    total = sum(found.values())
    shares: Mapping[str, float] = {key: value / total for key, value in found.items()} if total > 0 else {}
    return dict(sorted(shares.items(), key=lambda share: -share[1]))


def _importance_of(key: str, kind: Any, rows: Sequence[Row], objective: Objective) -> float:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=objective.directions[0])
    for row in rows:
        value = float(row[objective.metric])
        study.add_trial(create_trial(params={key: row[key]}, distributions={key: kind}, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that few trials make it imprecise
        found = get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator(target_quantile=0.25), params=[key], normalize=False
        )
    return float(found[key])
