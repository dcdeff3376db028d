"""The pictures of a study: its history, and what Optuna draws of the trials that ran to their end."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import optuna
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial
from optuna.visualization import matplotlib as optuna_pictures

from lit_cfl.metric_names import Row
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.storage.atomic_writes import write_atomically
from lit_cfl.tune.importance import EVALUATOR, finished_study
from lit_cfl.tune.objective import TRAFFIC, Objective
from lit_cfl.tune.record import FAILED_STATUS, FINISHED_STATUS, STOPPED_STATUS
from lit_cfl.tune.spaces import Space

_BLUE, _RED = "#3b6ea8", "#c44e52"
_LONGEST_LABEL = 18
_INCHES = 2.6  # of a parameter's axis


def draw(
    path: Path,
    rows: Sequence[Row],
    space: Space,
    objective: Objective,
    shares: Mapping[str, float],
    guard: DrawingGuard,
) -> None:
    """Writes the study's pictures into a folder; skips those that would be empty or that cannot be drawn.

    Args:
        rows: of the trials that were trained, by number.
        shares: each parameter's importance.
        guard: receives what cannot be drawn.
    """
    known = [row for row in rows if _figure_of(row, objective) is not None]
    if not known or guard("pictures", lambda: _empty_folder(path)) is None:
        return
    guard("pictures/history", lambda: _save(path / "history.png", history(rows, objective)))
    for name, drawn in (guard("pictures", lambda: _of_optuna(known, space, objective, shares)) or {}).items():
        guard(f"pictures/{name}", partial(_save_optuna, path / f"{name}.png", drawn))


def _empty_folder(path: Path) -> Path:
    """Makes the folder, or empties it: a study that was resumed may have drawn into it before."""
    path.mkdir(exist_ok=True)
    for file in path.glob("*.png"):
        file.unlink()
    return path


def _of_optuna(
    known: Sequence[Row], space: Space, objective: Objective, shares: Mapping[str, float]
) -> dict[str, Callable[[], Figure]]:
    """Lists the pictures that Optuna draws, by name. Each algorithm has one of its own finished trials."""
    if matplotlib.get_backend(auto_select=False) is None:
        matplotlib.use("agg")  # Optuna draws with pyplot, which would look for a display
    study, metric = finished_study(known, space, objective), objective.metric
    found: dict[str, Callable[[], Figure]] = {}
    if study.trials:
        found["slices"] = lambda: _slices(with_short_choices(study), metric)
    for name in space.algorithms or [""]:
        own = of_algorithm(study, name)
        keys = [p.key for p in space.of(name) if any(p.key in trial.params for trial in own.trials)]
        if keys:
            found[f"parallel-{name}" if name else "parallel"] = partial(_parallel, own, keys, name, metric)
    if shares:
        found["importance"] = lambda: _importance(study, metric)
    finished = [row for row in known if row["status"] == FINISHED_STATUS and row[TRAFFIC] is not None]
    if len({row[TRAFFIC] for row in finished}) > 1:
        found["pareto"] = lambda: _pareto(finished, objective)
    return found


def _save(path: Path, figure: Figure) -> None:
    write_atomically(path, partial(figure.savefig, dpi=120, bbox_inches="tight"))


def _save_optuna(path: Path, drawn: Callable[[], Figure]) -> None:
    """Saves a picture of Optuna's, which changes pyplot's style and keeps its figure open."""
    open_before = pyplot.get_fignums()
    with pyplot.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few trials, and of values that are all equal
        try:
            _save(path, drawn())
        finally:
            for number in set(pyplot.get_fignums()) - set(open_before):
                pyplot.close(number)


def _figure_of(row: Row, objective: Objective) -> float | None:
    value = row.get(objective.metric)
    return value if value is not None and isfinite(value) else None


def history(rows: Sequence[Row], objective: Objective) -> Figure:
    """Draws each trial's figure at its number, and the best so far."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for status, face in ((FINISHED_STATUS, _BLUE), (STOPPED_STATUS, "white")):
        points = [
            (int(row["trial_id"]), row[objective.metric])
            for row in rows
            if row["status"] == status and _figure_of(row, objective) is not None
        ]
        if points:
            across, up = zip(*points, strict=True)
            axes.scatter(across, up, s=30, facecolor=face, edgecolor=_BLUE, label=status, zorder=3)
    failed = [int(row["trial_id"]) for row in rows if row["status"] == FAILED_STATUS]
    if failed:
        marks = axes.get_xaxis_transform()  # at the lower edge, wherever that is
        axes.scatter(failed, [0.02] * len(failed), marker="x", color=_RED, label=FAILED_STATUS, transform=marks)
    best = [
        (int(rows[k]["trial_id"]), row[objective.metric])
        for k in range(len(rows))
        if (row := objective.best([r for r in rows[: k + 1] if r["status"] == FINISHED_STATUS]))
    ]
    if best:
        axes.step(*zip(*best, strict=True), where="post", color=_RED, linewidth=1.2, label="best so far")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="trial", ylabel=objective.metric, title="History of the search")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def of_algorithm(study: optuna.Study, name: str) -> optuna.Study:
    """Copies the finished trials of one algorithm; all of them in a study of one algorithm, whose name is empty."""
    own = optuna.create_study(directions=study.directions)
    done = study.get_trials(states=(TrialState.COMPLETE,))
    own.add_trials([trial for trial in done if trial.params.get("algorithm", "") == name])
    return own


def with_short_choices(study: optuna.Study) -> optuna.Study:
    """Copies a study with choices that fit on an axis."""
    short = optuna.create_study(directions=study.directions)
    for trial in study.trials:
        names = {
            key: dict(zip(known.choices, short_labels(known.choices), strict=True))
            for key, known in trial.distributions.items()
            if isinstance(known, CategoricalDistribution)
        }
        labels = {key: CategoricalDistribution(list(own.values())) for key, own in names.items()}
        values = {key: names[key][value] if key in names else value for key, value in trial.params.items()}
        short.add_trial(
            create_trial(
                state=trial.state, params=values, distributions=trial.distributions | labels, values=trial.values
            )
        )
    return short


def short_labels(choices: Sequence[Any]) -> list[str]:
    """Makes a short and distinct label of each choice: of a class its name, without its module."""
    words = [_short(str(choice)) for choice in choices]
    return words if len(set(words)) == len(words) else [f"{k + 1}: {word}" for k, word in enumerate(words)]


def _short(word: str) -> str:
    try:
        content = json.loads(word)
    except ValueError:
        content = word
    if isinstance(content, dict) and "class_path" in content:
        own = ", ".join(f"{key}={value}" for key, value in (content.get("init_args") or {}).items())
        word = f"{str(content['class_path']).rpartition('.')[2]}({own})"
    return word if len(word) <= _LONGEST_LABEL else word[: _LONGEST_LABEL - 1] + "…"


def _slices(study: optuna.Study, metric: str) -> Figure:
    drawn: Any = optuna_pictures.plot_slice(study, target_name=metric)
    panels: list[Axes] = np.ravel(drawn).tolist()  # one parameter alone comes without an array
    figure = pyplot.gcf()
    figure.set_size_inches(_INCHES * (len(panels) + 1), 4)
    figure.suptitle("One parameter at a time (finished trials)")
    for axes in panels:
        axes.set_title("")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", labelrotation=25)
    return figure


def _parallel(study: optuna.Study, parameters: list[str], algorithm: str, metric: str) -> Figure:
    axes = optuna_pictures.plot_parallel_coordinate(with_short_choices(study), parameters, target_name=metric)
    figure = pyplot.gcf()
    for lines in axes.collections:
        if lines.colorbar is not None:
            lines.colorbar.remove()  # it says what the first axis says, and hides the labels of the last
    figure.set_size_inches(_INCHES * (len(parameters) + 1), 4)
    axes.set_title(f"{algorithm or 'All values'} (each finished trial a line)", y=1.03)
    return figure


def _importance(study: optuna.Study, metric: str) -> Figure:
    optuna_pictures.plot_param_importances(study, EVALUATOR, target_name=metric)
    return pyplot.gcf()


def _pareto(rows: Sequence[Row], objective: Objective) -> Figure:
    study = optuna.create_study(directions=replace(objective, second=TRAFFIC).directions[::-1])
    for row in rows:
        study.add_trial(create_trial(values=[row[TRAFFIC], row[objective.metric]]))
    axes = optuna_pictures.plot_pareto_front(study, target_names=[TRAFFIC, objective.metric])
    axes.set_title("What none beats in both (finished trials)")
    return pyplot.gcf()


def pareto_front(rows: Sequence[Row], objective: Objective) -> list[Row]:
    """Finds the rows that no other beats in metric and traffic at once, the cheapest first."""
    sign = 1.0 if objective.mode == "min" else -1.0
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (row[TRAFFIC], sign * row[objective.metric])):
        if not front or sign * row[objective.metric] < sign * front[-1][objective.metric]:
            front.append(row)
    return front
