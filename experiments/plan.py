"""Finds the runs that a table needs, and those that are missing."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from statistics import median

from experiments.cells import Cell, PaperTable, Setting
from experiments.ledger import Ledger
from experiments.result_key import compute_key, get_class_name
from lit_cfl.errors import InputError

_NAMED = 12  # maximum number of names listed in an error


@dataclass(frozen=True)
class PlannedRun:
    """A setting under one seed.

    Args:
        setting, seed: The run's setting and seed.
        key: Key of the run; see `result_key`.
        algorithm: Class name of the algorithm.
        rounds: Number of rounds of the run.
    """

    setting: Setting
    seed: int
    key: str
    algorithm: str
    rounds: int

    def __str__(self) -> str:
        return f"{self.setting}, seed {self.seed}"


def select_cells(table: PaperTable, only: Sequence[str]) -> list[Cell]:
    """Returns the cells and extra cells whose ids match a pattern; raises InputError like `match_names`."""
    known = {cell.id: cell for cell in (*table.cells, *table.extras)}
    return [known[name] for name in match_names(list(known), only, f"cell of {table.name}")]


def match_names(names: Sequence[str], patterns: Sequence[str], what: str) -> list[str]:
    """Returns the names that match one of the patterns, or all names if there are no patterns.

    Args:
        what: Kind of the names, for an error.

    Raises:
        InputError: A pattern matches no name.
    """
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            known = ", ".join(names) if len(names) <= _NAMED else f"{names[0]}, {names[1]}, ..."
            raise InputError(f"no {what} matches {pattern}; there are {known}")
    return [name for name in names if not patterns or any(fnmatch(name, pattern) for pattern in patterns)]


def plan_runs(table: PaperTable, cells: Sequence[Cell]) -> list[PlannedRun]:
    """Returns every run that the cells need, seed by seed; equal runs of several methods share a key."""
    settings = dict.fromkeys(setting for cell in cells for setting in table.settings(cell))
    runs = [run for setting in settings for run in list_runs(setting, setting.seeds)]
    return sorted(runs, key=lambda run: run.setting.seeds.index(run.seed))


def list_runs(setting: Setting, seeds: Sequence[int]) -> list[PlannedRun]:
    """Returns the runs of a setting under these seeds."""
    return [
        PlannedRun(setting, seed, compute_key(config), get_class_name(config["algorithm"]), int(config["rounds"]))
        for seed, config in setting.configs(seeds).items()
    ]


def group_keys(runs: Sequence[PlannedRun]) -> dict[tuple[Setting, int], str]:
    """Returns the keys of planned runs by setting and seed."""
    return {(run.setting, run.seed): run.key for run in runs}


def find_missing(runs: Sequence[PlannedRun], ledger: Ledger) -> list[PlannedRun]:
    """Returns the runs without a fresh row in the ledger, one per key."""
    return list({run.key: run for run in reversed(runs) if ledger.fresh(run.key) is None}.values())[::-1]


def estimate_seconds(run: PlannedRun, ledger: Ledger) -> float | None:
    """Returns the expected duration of a run, or None if unknown.

    This is the median over recorded runs with the same options; without such runs the value in the table's file;
    otherwise the median time per round of the recorded runs of the same configuration whose options differ in the
    fewest words.
    """
    setting, found = run.setting, defaultdict[int, list[float]](list)
    for words, seconds in _read_durations(setting.config, ledger):
        found[len(words.symmetric_difference(setting.words))].append(seconds)
    if 0 not in found and setting.core_hours is not None:
        return 3600 * setting.core_hours
    return median(found[min(found)]) * run.rounds if found else None


def _read_durations(config: str, ledger: Ledger) -> Iterator[tuple[frozenset[str], float]]:
    """Yields the option words and the seconds per round of each recorded run of a configuration."""
    for row in ledger.rows.values():
        used, words = _split(row["command"])
        if used == config:
            yield words, float(row["seconds"]) / int(row["rounds"])


@cache
def _split(command: str) -> tuple[str, frozenset[str]]:
    """Splits a run's command into the configuration and the option words, without the seed."""
    words = shlex.split(command.partition(" --seed ")[0])
    return words[3], frozenset(words[4:])


def format_time(seconds: Iterable[float | None]) -> str:
    """Formats the total expected time of runs, and the number of runs whose time is unknown."""
    times = list(seconds)
    known = [value for value in times if value is not None]
    unknown = len(times) - len(known)
    total = sum(known)
    work = f"about {total / 3600:.1f} core-hours" if total >= 3600 else f"about {total / 60:.0f} core-minutes"
    hours = work if known else ""
    more = f"{unknown} runs of unknown length" if unknown else ""
    return " and ".join(part for part in (hours, more) if part) or "nothing"
