"""Stores the results of finished runs: a row of `runs.csv`, and a curve in a file per table. Both are committed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from experiments.files import Row, append_compressed, read_yaml
from experiments.scores import CURVE, SCORES
from lit_cfl.storage import read_table, write_rows

RUNS, CURVES = "runs.csv", "curves"
FACTS = (
    *("run", "seed", "algorithm", "rounds", "results_version", "version", "commit", "device", "processor", "torch"),
    *("seconds", "plan"),
)
COLUMNS = (*FACTS, *SCORES, "command")
_TEXT = ("commit",)  # read as text, since some commits look like numbers, such as 123456e00012
_VERSIONS = Path(__file__).parent / "results_versions.yaml"


@dataclass(frozen=True)
class Ledger:
    """The recorded results of finished runs, by key; see `result_key`.

    Args:
        folder: Folder with `runs.csv` and `curves/`, with a file per table.
        rows: Rows of `runs.csv`, by key.
    """

    folder: Path
    rows: Mapping[str, Row]

    @classmethod
    def read(cls, folder: Path) -> "Ledger":
        """Reads the ledger of a folder; returns an empty one if the folder has none yet."""
        file = folder / RUNS
        rows = read_table(file, text=_TEXT) if file.exists() else []
        return cls(folder, {row["run"]: row for row in rows})

    def with_run(self, row: Row, table: str = "", curve: Sequence[Row] | None = None) -> "Ledger":
        """Records a finished run, and returns the ledger with it.

        The curve is written first. The row replaces one with the same key; rows that other processes have written in
        the meantime are kept.

        Args:
            row: Row of `runs.csv`.
            table: Table to whose file the curve is appended.
            curve: Rows with the columns `CURVE`; None to keep no curve.
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
        """Returns the rows that are not stale, by the command of their run."""
        return {row["command"]: row for row in self.rows.values() if not is_stale(row)}

    def fresh(self, key: str) -> Row | None:
        """Returns the row of a run, or None if it is missing or stale."""
        row = self.rows.get(key)
        return row if row is not None and not is_stale(row) else None

    @cached_property
    def curves(self) -> dict[str, list[Row]]:
        """Returns the curves of all runs, by key; later recordings override earlier ones."""
        found: dict[str, list[Row]] = {}
        for file in sorted((self.folder / CURVES).glob("*.csv.xz")):
            for key, point in ((row.pop("run"), row) for row in read_table(file)):
                curve = found.setdefault(key, [])
                if curve and point["round"] <= curve[-1]["round"]:
                    curve.clear()
                curve.append(point)
        return found


def read_results_version(algorithm: str) -> int:
    """Returns the version of an algorithm's results: 1 if they have never changed."""
    return int(_read_versions().get(algorithm, 1))


@cache
def _read_versions() -> dict[str, Any]:
    """Reads the versions of all algorithms' results, only once, since every look-up needs them."""
    return read_yaml(_VERSIONS) or {}


def is_stale(row: Row) -> bool:
    """Returns whether the results of a run's algorithm have changed since the run."""
    return int(row["results_version"]) < read_results_version(str(row["algorithm"]))
