"""Further content of comparisons: the table of differences, and failed runs."""

from pathlib import Path

from lit_cfl.report.blocks import Table
from lit_cfl.report.run_files import attempt
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import read_table


def read_comparison(path: Path, score: Score) -> tuple[list[Table], list[str]]:
    """Reads `results.csv` and `runs.csv` of a comparison. Returns its table, and failed or damaged runs."""
    problems: list[str] = []
    file = path / "results.csv"
    table = attempt(problems, file, lambda: _table(path, score)) if file.exists() else None
    runs = path / "runs.csv"
    rows = (attempt(problems, runs, lambda: read_table(runs)) if runs.exists() else None) or []
    failed = [row for row in rows if row.get("status") == "failed"]
    problems += [f"{row['algorithm']}, seed {row['seed']}, failed: {row.get('error')}." for row in failed]
    return ([table] if table is not None else []), problems


def _table(path: Path, score: Score) -> Table:
    from lit_cfl.compare.results import Results  # import Lightning
    from lit_cfl.compare.tables import cells, read_notes

    rows = read_table(path / "results.csv")
    for row in rows:
        row["algorithm"] = str(row["algorithm"])
    head, *lines = cells(Results([], rows, [], {}, score))
    return Table("Compared seed by seed", head, lines, note=" ".join(read_notes(path)))
