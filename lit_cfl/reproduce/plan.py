"""Finds which runs a table needs, and which of them are missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from statistics import median

from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.reproduce.cells import Cell, PaperTable, Setting
from lit_cfl.reproduce.ledger import Ledger
from lit_cfl.reproduce.result_key import result_key


@dataclass(frozen=True)
class PlannedRun:
    """A setting under one seed.

    Args:
        setting, seed: what runs.
        key: see `result_key`.
    """

    setting: Setting
    seed: int
    key: str

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, built when it is first needed."""
        return self.setting.build(self.seed)

    def __str__(self) -> str:
        return f"{self.setting}, seed {self.seed}"


def chosen_cells(table: PaperTable, only: Sequence[str]) -> list[Cell]:
    """Returns the cells and extras whose ids fit one of the patterns; all without a pattern.

    Raises:
        InputError: no id fits one of the patterns.
    """
    known = (*table.cells, *table.extras)
    for pattern in only:
        if not any(fnmatch(cell.id, pattern) for cell in known):
            raise InputError(f"no cell of {table.name} fits {pattern}; its ids are like {table.cells[0].id}")
    return [cell for cell in known if not only or any(fnmatch(cell.id, pattern) for pattern in only)]


def planned_runs(table: PaperTable, cells: Sequence[Cell]) -> list[PlannedRun]:
    """Returns every run that some cells need, seed by seed. Runs of several methods may be one: they have one key."""
    settings = dict.fromkeys(setting for cell in cells for setting in table.settings(cell))
    runs = [
        PlannedRun(setting, seed, result_key(config))
        for setting in settings
        for seed, config in setting.configs(setting.seeds).items()
    ]
    return sorted(runs, key=lambda run: run.setting.seeds.index(run.seed))


def keys_of(runs: Sequence[PlannedRun]) -> dict[tuple[Setting, int], str]:
    """Returns the keys of runs by setting and seed."""
    return {(run.setting, run.seed): run.key for run in runs}


def missing(runs: Sequence[PlannedRun], ledger: Ledger) -> list[PlannedRun]:
    """Returns the runs for which the ledger has no fresh row, each key once."""
    return list({run.key: run for run in reversed(runs) if ledger.fresh(run.key) is None}.values())[::-1]


def expected_seconds(run: PlannedRun, ledger: Ledger) -> float | None:
    """Returns how long a run takes, from recorded runs of the same file; None where there are none."""
    per_round = seconds_per_round(run.setting.config, ledger)
    return None if per_round is None else per_round * run.experiment.rounds


def seconds_per_round(config: str, ledger: Ledger) -> float | None:
    """Returns the median over the recorded runs of a file; None where there are none."""
    found = [
        float(row["seconds"]) / int(row["rounds"])
        for row in ledger.rows.values()
        if f"--config {config} " in f"{row['command']} "
    ]
    return median(found) if found else None


def told_time(seconds: Mapping[str, float | None]) -> str:
    """Returns the sum of expected times in words, and how many are not known."""
    known = [value for value in seconds.values() if value is not None]
    unknown = len(seconds) - len(known)
    total = sum(known)
    work = f"about {total / 3600:.1f} core-hours" if total >= 3600 else f"about {total / 60:.0f} core-minutes"
    hours = work if known else ""
    more = f"{unknown} runs of unknown length" if unknown else ""
    return " and ".join(part for part in (hours, more) if part) or "nothing"
