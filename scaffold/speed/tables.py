"""Prints each row of a benchmark as soon as it is measured, and runs cases in fresh processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lit_cfl.metric_names import Row


def print_rows(columns: Sequence[str], rows: Iterable[Row], out: Path | None = None) -> list[Row]:
    """Prints a Markdown table row by row, writes all rows so far to the JSON file `out`, and returns them."""
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    found = []
    for row in rows:
        found.append(row)
        print(f"| {' | '.join(format_cell(row.get(column, '')) for column in columns)} |", flush=True)
        if out is not None:
            out.write_text(json.dumps(found, indent=1) + "\n")
    return found


def format_cell(cell: Any) -> str:
    """Formats a number with three significant digits; a number of 100 or more, as a whole number."""
    if not isinstance(cell, int | float):
        return str(cell)
    return f"{cell:,.3g}" if cell < 100 else f"{cell:,.0f}"


def run_in_process(script: str, words: Sequence[str], environment: dict[str, str] | None = None) -> Row:
    """Runs a case of a script in a fresh process; returns the row that the script prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, script, *words],
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row
