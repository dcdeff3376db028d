"""The pictures of a study, for its directory and its page."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from lit_cfl.metric_names import Row
from lit_cfl.pictures.figure import Figure
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.search import Search, history, importance, pareto, slices
from lit_cfl.tune.importance import METHOD
from lit_cfl.tune.objective import TRAFFIC, Objective
from lit_cfl.tune.record import FINISHED_STATUS

_LONGEST_LABEL = 18


def makers(
    rows: Sequence[Row], parameters: Sequence[str], objective: Objective, shares: Mapping[str, float]
) -> dict[str, Callable[[], Figure | None]]:
    """Lists the figures of a study by name, with functions that return None if the figure would be empty.

    Args:
        rows: Rows of the trained trials by number.
        parameters: names of the values that a trial may have.
        objective: Objective by which trials are compared.
        shares: each parameter's importance.
    """
    search = Search(rows, objective.metric, parameters, objective.best, TRAFFIC)
    costed = [row for row in search.of(FINISHED_STATUS) if row.get(TRAFFIC) is not None]
    return {
        "history": lambda: history(search),
        "importance": lambda: importance(shares, METHOD),
        "pareto": lambda: pareto(search, pareto_front(costed, objective)),
        "slices": lambda: slices(search, short_labels),
    }


def draw(
    path: Path,
    rows: Sequence[Row],
    parameters: Sequence[str],
    objective: Objective,
    shares: Mapping[str, float],
    guard: DrawingGuard,
) -> None:
    """Writes the study's pictures into a folder; skips those that would be empty or that cannot be drawn.

    Args:
        path: the folder; what an earlier call drew is removed.
        rows: Rows of the trained trials by number.
        parameters: names of the values that a trial may have.
        objective: Objective by which trials are compared.
        shares: each parameter's importance.
        guard: receives what cannot be drawn.
    """
    if all(row.get(objective.metric) is None or not isfinite(row[objective.metric]) for row in rows):
        return
    if guard("pictures", lambda: _empty_folder(path)) is not None:
        for name, make in makers(rows, parameters, objective, shares).items():
            guard(f"pictures/{name}", partial(_write, path / name, make))


def _write(path: Path, make: Callable[[], Figure | None]) -> None:
    figure = make()
    if figure is not None:
        write_figure(figure, path, ["png"])


def _empty_folder(path: Path) -> Path:
    """Makes or empties the folder, as a resumed study may have drawn into it."""
    path.mkdir(exist_ok=True)
    for file in path.glob("*.png"):
        file.unlink()
    return path


def short_labels(choices: Sequence[Any]) -> list[str]:
    """Makes a short, distinct label for each choice: for a class its name, without its module."""
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


def pareto_front(rows: Sequence[Row], objective: Objective) -> list[Row]:
    """Finds the Pareto-optimal rows in metric and traffic, the cheapest first."""
    sign = 1.0 if objective.mode == "min" else -1.0
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (row[TRAFFIC], sign * row[objective.metric])):
        if not front or sign * row[objective.metric] < sign * front[-1][objective.metric]:
            front.append(row)
    return front
