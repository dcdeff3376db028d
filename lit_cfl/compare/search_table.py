"""The table of the searches that came before a comparison's runs: `search.csv`, on the screen and on a page."""

from collections.abc import Sequence
from pathlib import Path

from lit_cfl.compare.arguments import SEARCH_TABLE
from lit_cfl.metric_names import Row
from lit_cfl.progress.tables import number
from lit_cfl.storage.csv_log import read_table

_COUNTS = ("trials", "stopped", "failed", "rounds")
COLUMNS = ("algorithm", *_COUNTS, "core_seconds", "metric", "own", "best", "setting", "trial", "error")


def read_searches(path: Path) -> list[Row]:
    """Reads `search.csv` in the directory of a comparison; empty without that file."""
    file = path / SEARCH_TABLE
    return read_table(file, text=("algorithm", "setting", "trial", "error")) if file.exists() else []


def search_cells(rows: Sequence[Row]) -> list[list[str]]:
    """Formats the headings and one line per algorithm as plain text; a dash means unknown."""
    heads = ["algorithm", *_COUNTS, "core s", f"own {rows[0]['metric']}", "best", "best setting"]
    lines = []
    for row in rows:
        counts, scores = (str(row[count]) for count in _COUNTS), (number(row[score], 4) for score in ("own", "best"))
        setting = row["setting"] or f"none: {row['error']}"
        lines.append([row["algorithm"], *counts, number(row["core_seconds"], 1), *scores, setting])
    return [heads, *lines]
