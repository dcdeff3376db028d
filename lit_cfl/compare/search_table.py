"""The table of the searches that came before a comparison's runs: `search.csv`, on the screen and on a page."""

from pathlib import Path

from rich.console import Console

from lit_cfl.compare.arguments import SEARCH_TABLE
from lit_cfl.compare.tables import print_table
from lit_cfl.metric_names import Row
from lit_cfl.progress.tables import number
from lit_cfl.storage.csv_log import read_table

COLUMNS = (
    *("algorithm", "trials", "finished", "stopped", "failed", "rounds", "core_seconds", "metric", "own", "best"),
    *("setting", "trial", "error"),
)


def read_searches(path: Path) -> list[Row]:
    """Reads `search.csv` in the directory of a comparison; empty without that file."""
    file = path / SEARCH_TABLE
    return read_table(file, text=("algorithm", "setting", "trial", "error")) if file.exists() else []


def search_cells(rows: list[Row]) -> list[list[str]]:
    """Formats the headings and one line per algorithm as plain text; a dash means unknown."""
    metric = rows[0]["metric"] if rows else ""
    counts = ("trials", "stopped", "failed", "rounds")
    titles = ["algorithm", *counts, "core s", f"own {metric}", "best", "best setting"]
    figures = [(number(row["core_seconds"], 1), number(row["own"], 4), number(row["best"], 4)) for row in rows]
    settings = [row["setting"] or f"none: {row['error']}" for row in rows]
    lines = [
        [row["algorithm"], *(str(row[name]) for name in counts), *shown, setting]
        for row, shown, setting in zip(rows, figures, settings, strict=True)
    ]
    return [titles, *lines]


def show_searches(console: Console, path: Path) -> None:
    """Prints the table of the searches, if there were any."""
    if rows := read_searches(path):
        print_table(console, *search_cells(rows))
