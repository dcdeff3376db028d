"""Looks up the recorded runs of a cell in all tables: rows of `runs.csv`, and curves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from experiments.cells import DEFAULT, Cell, PaperTable, load_table, table_names
from experiments.files import Row
from experiments.ledger import Ledger
from experiments.pages import Judged, Keys, judge_cells
from experiments.plan import group_keys, plan_runs
from lit_cfl.statistics import interval


@dataclass(frozen=True)
class RecordedResults:
    """The papers' tables, with all finished runs.

    Args:
        tables: Tables of the papers.
        ledger: Ledger of the finished runs.
        keys: Keys of all runs that the tables need.
    """

    tables: Sequence[PaperTable]
    ledger: Ledger
    keys: Keys

    @classmethod
    def read(cls, folder: Path) -> "RecordedResults":
        """Reads the ledger of a folder, and builds all experiments of all tables, in about a minute."""
        tables = [load_table(name) for name in table_names()]
        runs = [run for table in tables for run in plan_runs(table, (*table.cells, *table.extras))]
        return cls(tables, Ledger.read(folder), group_keys(runs))

    def judged(self, table: PaperTable) -> list[Judged]:
        """Returns the cells of a table with their verdicts."""
        return judge_cells(table, self.ledger, self.keys)

    def cells(self, pattern: str) -> list[tuple[PaperTable, Cell]]:
        """Returns the cells and extras whose ids match a pattern, with their tables."""
        known = ((table, cell) for table in self.tables for cell in (*table.cells, *table.extras))
        return [(table, cell) for table, cell in known if fnmatch(cell.id, pattern)]

    def rows(self, table: PaperTable, cell: Cell, variant: str = DEFAULT) -> list[Row]:
        """Returns the rows of a cell's variant, one per seed that has run, without stale rows."""
        return [self.ledger.rows[key] for key in self._recorded(table, cell, variant)]

    def mean(self, table: PaperTable, cell: Cell, metric: str, variant: str = DEFAULT) -> float | None:
        """Returns the mean of a score over the seeds that have run; None without runs, or if a run lacks the score."""
        return interval([row[metric] for row in self.rows(table, cell, variant)]).mean

    def curves(self, table: PaperTable, cell: Cell) -> dict[str, list[Row]]:
        """Returns the curves of the default variant's runs, by key."""
        return {key: self.ledger.curves[key] for key in self._recorded(table, cell, DEFAULT)}

    def _recorded(self, table: PaperTable, cell: Cell, variant: str) -> Iterator[str]:
        for setting in table.settings(cell):
            if setting.variant == variant:
                keys = (self.keys.get((setting, seed)) for seed in setting.seeds)
                yield from (key for key in keys if key is not None and self.ledger.fresh(key) is not None)
