"""Keeps what each finished run came to: a row of `runs.csv`, and its curve in its table's file. Both are committed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from benchmarks.reproduction.files import Row, append_compressed, read_yaml
from benchmarks.reproduction.scores import CURVE, SCORES
from lit_cfl.storage import read_table, write_rows

RUNS, CURVES = "runs.csv", "curves"
FACTS = (
    *("run", "seed", "algorithm", "rounds", "results_version", "version", "commit", "device", "processor", "torch"),
    *("seconds", "plan"),
)
COLUMNS = (*FACTS, *SCORES, "command")
_TEXT = ("commit",)  # some look like numbers: 123456e00012
_VERSIONS = Path(__file__).parent / "results_versions.yaml"


@dataclass(frozen=True)
class Ledger:
    """The runs that have ended, by key; see `result_key`.

    Args:
        folder: Folder with `runs.csv` and `curves/`, which has a file for each table.
        rows: Rows of `runs.csv`, by key.
    """

    folder: Path
    rows: Mapping[str, Row]

    @classmethod
    def read(cls, folder: Path) -> "Ledger":
        """Reads the ledger of a folder; an empty one where there is none yet."""
        file = folder / RUNS
        rows = read_table(file, text=_TEXT) if file.exists() else []
        return cls(folder, {row["run"]: row for row in rows})

    def with_run(self, row: Row, table: str = "", curve: Sequence[Row] | None = None) -> "Ledger":
        """Writes a run that has ended, its curve first; a row with the same key is replaced.

        Rows that others have written into the file since it was read are kept.

        Args:
                    row: Row of `runs.csv`.
                    table: Table whose file of curves keeps the curve.
            curve: Rows with the columns `CURVE`; None = it is not kept.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if curve is not None:
            file = self.folder / CURVES / f"{table}.csv.xz"
            append_compressed(file, ("run", *CURVE), ({"run": row["run"]} | point for point in curve))
        rows = {**Ledger.read(self.folder).rows, row["run"]: row}
        write_rows(self.folder / RUNS, COLUMNS, [rows[key] for key in sorted(rows)])
        return Ledger.read(self.folder)

    @cached_property
    def by_command(self) -> dict[str, Row]:
        """The rows that are not stale, by the command that makes the run."""
        return {row["command"]: row for row in self.rows.values() if not is_stale(row)}

    def fresh(self, key: str) -> Row | None:
        """Returns the row of a run whose algorithm has given other results in no version since; else None."""
        row = self.rows.get(key)
        return row if row is not None and not is_stale(row) else None

    @cached_property
    def curves(self) -> dict[str, list[Row]]:
        """The curves of all runs, by key; of a run that was recorded twice the later one."""
        found: dict[str, list[Row]] = {}
        for file in sorted((self.folder / CURVES).glob("*.csv.xz")):
            for key, point in ((row.pop("run"), row) for row in read_table(file)):
                curve = found.setdefault(key, [])
                if curve and point["round"] <= curve[-1]["round"]:
                    curve.clear()
                curve.append(point)
        return found


def results_version(algorithm: str) -> int:
    """Returns how often results of an algorithm have changed, counted from 1; "Results changed" in the changelog."""
    return int(_versions().get(algorithm, 1))


@cache
def _versions() -> dict[str, Any]:
    """Reads the packaged file once: every row that is looked up is asked for its version."""
    return read_yaml(_VERSIONS) or {}


def is_stale(row: Row) -> bool:
    """Tells whether results of the run's algorithm have changed since it ran."""
    return int(row["results_version"]) < results_version(str(row["algorithm"]))
