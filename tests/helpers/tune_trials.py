"""Runs trials of a study without Ray: a searcher that follows a script, and trials that end at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_cfl.tune.record import TrialRecord
from lit_cfl.tune.trials import GivenSetting, Trials

METRIC = "val/weighted_accuracy"


class Script:
    """Searcher that proposes the settings of a list, and records the results that it receives."""

    learns = True

    def __init__(self, settings: Sequence[Mapping[str, Any]]) -> None:
        self.settings = list(settings)
        self.heard: list[tuple[int | None, str]] = []

    def ask(self, number: int) -> dict[str, Any] | None:
        return dict(self.settings[number]) if number < len(self.settings) else None

    def add(self, number: int | None, values: Mapping[str, Any], result: TrialRecord) -> None:
        self.heard.append((number, result.status))


def last_result(figure: float, rounds: int = 4, **more: Any) -> dict[str, Any]:
    return {METRIC: figure, "rounds": rounds, "traffic/mib": 1.0, "seconds": 1.0, "finished": True} | more


def new_trials(folder: Path, settings: Sequence[Mapping[str, Any]], limit: int = 9, **options: Any) -> Trials:
    first = options.pop("first", [GivenSetting("default", {"x": 0})])
    return Trials(folder, first, Script(settings), limit, **options)


def run_all(trials: Trials, figures: Mapping[Any, float]) -> list[dict[str, Any]]:
    """Ends each trial with the score for its value of `x`; returns the settings that were trained."""
    trained = []
    while (record := trials.next()) is not None:
        trained.append(record.values)
        trials.end(record.number, last_result(figures[record.values["x"]]))
    return trained
