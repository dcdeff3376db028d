"""The table of a comparison: on the screen, and as Markdown, LaTeX and CSV."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from lit_cfl.compare.results import COLUMNS, NOTE_ON_COSTS, Results, run_columns
from lit_cfl.metric_names import Row
from lit_cfl.progress.console import new_console
from lit_cfl.progress.tables import mebibytes, new_table, number
from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.csv_log import write_rows

_WIDE, _NO_LIMIT = 130, 1000  # widths in characters
_TEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
}


class _Column(NamedTuple):
    """A column: whether a narrow terminal and a paper show it, and a value of a row without which nothing shows it."""

    heading: str
    show: Callable[[Row], str]
    screen: bool = True
    paper: bool = True
    needs: str | None = "algorithm"


def _columns(results: Results) -> list[_Column]:
    rows, score, first = results.rows, results.score.title, results.rows[0]
    at = "target" if first["target"] is None else f"{first['target']:g}"
    known = {name for row in rows for name, value in row.items() if value is not None}
    uneven = len({row["runs"] for row in rows}) > 1
    count = None if "ari_mean" in known else "clusters_mean"  # agreement says more than the number of clusters
    columns = [
        _Column("algorithm", lambda row: row["algorithm"] + ("†" if row["rounds_with_all_clients"] else "")),
        _Column("seeds", lambda row: str(row["runs"]), screen=False, paper=uneven),
        _Column(f"test {score}", lambda row: _spread(row, "test")),
        _Column(f"val {score}", lambda row: _spread(row, "val"), screen=False, paper=False, needs="val_mean"),
        _Column(f"tuned {score}", lambda row: _spread(row, "tuned"), needs="tuned_mean"),
        _Column("newcomers", lambda row: _spread(row, "newcomers"), needs="newcomers_mean"),
        _Column(f"difference to {first['algorithm']}", lambda row: "" if row is first else _difference(row)),
        _Column("gap closed", lambda row: _interval(row, "gap_closed", ".2f"), needs="gap_closed"),
        _Column("ARI", lambda row: _spread(row, "ari", 2), needs="ari_mean"),
        _Column("clusters", lambda row: _spread(row, "clusters", 1), needs=count),
        _Column(f"rounds to {at}", lambda row: _cost(row, "rounds_to_target"), paper=False),
        _Column(f"MiB to {at}", lambda row: _cost(row, "mib_to_target", mebibytes), paper=False),
        _Column(f"local steps to {at}", lambda row: _cost(row, "local_steps_to_target", "{:.0f}".format), paper=False),
        _Column("traffic MiB", lambda row: "-" if row["mib"] is None else mebibytes(row["mib"]), screen=False),
        _Column("local steps", lambda row: number(row["local_steps"], 0), screen=False, paper=False),
        _Column("time s", lambda row: number(row["seconds"], 1), screen=False, paper=False),
    ]
    return [column for column in columns if column.needs in known]


def cells(results: Results, shown: Callable[[_Column], bool] = lambda column: True) -> list[list[str]]:
    """Formats the headings and one line per algorithm as plain text; a dash means unknown."""
    columns = [column for column in _columns(results) if shown(column)]
    return [[column.heading for column in columns], *([column.show(row) for column in columns] for row in results.rows)]


def _spread(row: Row, name: str, digits: int = 3) -> str:
    mean, deviation = row[f"{name}_mean"], row[f"{name}_sd"]
    return number(mean, digits) + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def _difference(row: Row) -> str:
    return _interval(row, "difference", "+.3f")


def _interval(row: Row, name: str, form: str) -> str:
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "-"
    return f"{value:{form}}" + ("" if low is None else f" [{low:{form}}, {high:{form}}]")


def _cost(row: Row, name: str, show: Callable[[float], str] = "{:.1f}".format) -> str:
    if row[name] is not None:
        return show(row[name])
    if row["target"] is None or not row["runs"]:
        return "-"
    return f"{row['reached']} of {row['runs']} runs"


def show_table(console: Console, results: Results) -> None:
    """Prints the table: fewer columns in a narrow terminal, all of them in a file or pipe."""
    narrow = console.is_terminal and console.width < _WIDE
    headings, *lines = cells(results, lambda column: column.screen or not narrow)
    print_table(console, [heading.replace(" to ", " to\n") for heading in headings], *lines)


def print_table(console: Console, headings: Sequence[str], *lines: Sequence[str]) -> None:
    """Prints a table of texts, wide enough that no cell is cut off."""
    table = new_table(*headings)
    for column in table.columns:
        column.no_wrap = True
    for line in lines:
        table.add_row(*map(Text, line))
    new_console(file=console.file, width=_NO_LIMIT, force_terminal=console.is_terminal).print(table)


def as_markdown(results: Results, title: str, picture: str | None) -> str:
    """Formats the table with its notes, and with the picture if there is one."""
    headings, *lines = [[_markdown(text) for text in line] for line in cells(results)]
    rule = ["---", *["---:"] * (len(headings) - 1)]
    table = [f"| {' | '.join(line)} |" for line in (headings, rule, *lines)]
    shown = [] if picture is None else ["", f"![test {results.score.title} over rounds]({picture})"]
    notes = [f"- {_markdown(note)}" for note in results.notes]
    return "\n".join([f"# {_markdown(title)}", "", *table, "", *notes, *shown]) + "\n"


def read_notes(path: Path) -> list[str]:
    """Reads the notes in `results.md` of a comparison; empty without that file."""
    file = path / "results.md"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [re.sub(r"\\([\\`*_\[\]<>|#~])", r"\1", line[2:]) for line in lines if line.startswith("- ")]


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def as_latex(results: Results) -> str:
    """Formats the table for LaTeX with booktabs, narrow enough for a page; the notes are comments.

    It leaves out the costs of a target, steps and time, validation scores, unknown columns, and the seeds if all rows
    have the same number.
    """

    def is_shown(column: _Column) -> bool:
        return column.paper and any(column.show(row) not in ("", "-") for row in results.rows)

    first, *figures = cells(results, is_shown)
    headings, lines = list(map(latex, first)), [[latex(name), *map(_latex_figure, rest)] for name, *rest in figures]
    # LaTeX would take a [ or * at the start of a line as an argument of the \\ before it
    rows = ["{}" * line[0].startswith(("[", "*")) + " & ".join(line) + r" \\" for line in lines]
    notes = ["% " + " ".join(note.split()) for note in results.notes if not note.startswith(NOTE_ON_COSTS)]
    head = [
        rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
        r"\toprule",
        " & ".join(headings) + r" \\",
        r"\midrule",
    ]
    about = "% needs \\usepackage{booktabs}; results.md and results.csv have all columns"
    return "\n".join([about, *notes, *head, *rows, r"\bottomrule", r"\end{tabular}"]) + "\n"


def latex(text: str) -> str:
    """Escapes text for LaTeX."""
    return "".join(_TEX.get(character, character) for character in " ".join(text.split()))


def _latex_figure(text: str) -> str:
    """Formats a number for LaTeX, with a minus sign instead of a hyphen."""
    return "--" if text == "-" else re.sub(r"-(?=\d)", "$-$", latex(text))


def write_tables(path: Path, results: Results, title: str, picture: str | None) -> None:
    """Writes `results.md`, `results.tex`, `results.csv` and `runs.csv`."""
    write_text(path / "results.md", as_markdown(results, title, picture))
    write_text(path / "results.tex", as_latex(results))
    write_rows(path / "results.csv", COLUMNS, results.rows)
    write_rows(path / "runs.csv", run_columns(results.score), results.runs)
