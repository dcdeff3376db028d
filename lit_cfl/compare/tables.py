"""The table of a comparison: on the screen, and as Markdown, LaTeX and CSV."""

import re
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from lit_cfl.compare.results import COLUMNS, NOTE_ON_COSTS, Results, run_columns
from lit_cfl.metric_names import Row
from lit_cfl.progress.console import new_console
from lit_cfl.progress.tables import mebibytes, new_table, number
from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.csv_log import write_rows

_WIDE, _NO_LIMIT = 130, 1000  # widths in characters
_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
}


def cells(results: Results) -> list[list[str]]:
    """Formats the headings and one line per algorithm as plain text; a dash means unknown."""
    rows, score = results.rows, results.score.title
    target = rows[0]["target"]
    at = "target" if target is None else f"{target:g}"
    columns: dict[str, Callable[[Row], str]] = {
        "algorithm": lambda row: row["algorithm"] + ("†" if row["rounds_with_all_clients"] else ""),
        "seeds": lambda row: str(row["runs"]),
        f"test {score}": lambda row: _spread(row, "test"),
        f"val {score}": lambda row: _spread(row, "val"),
        f"tuned {score}": lambda row: _spread(row, "tuned"),
        "newcomers": lambda row: _spread(row, "newcomers"),
        f"difference to {rows[0]['algorithm']}": lambda row: "" if row is rows[0] else _difference(row),
        "gap closed": lambda row: number(row["gap_closed"], 2),
        "ARI": lambda row: _spread(row, "ari", 2),
        "clusters": lambda row: _spread(row, "clusters", 1),
        f"rounds to {at}": lambda row: _cost(row, "rounds_to_target"),
        f"MiB to {at}": lambda row: _cost(row, "mib_to_target", mebibytes),
        f"local steps to {at}": lambda row: _cost(row, "local_steps_to_target", "{:.0f}".format),
        "traffic MiB": lambda row: "-" if row["mib"] is None else mebibytes(row["mib"]),
        "local steps": lambda row: number(row["local_steps"], 0),
        "time s": lambda row: number(row["seconds"], 1),
    }
    optional = {f"val {score}": "val_mean", f"tuned {score}": "tuned_mean"}
    optional |= {"newcomers": "newcomers_mean", "gap closed": "gap_closed"}
    optional |= {"ARI": "ari_mean", "clusters": "clusters_mean"}
    for heading, name in optional.items():
        if all(row[name] is None for row in rows):
            del columns[heading]
    if "ARI" in columns:  # where true clusters are known, agreement with them says more than the number of clusters
        columns.pop("clusters", None)
    return [list(columns), *([text(row) for text in columns.values()] for row in rows)]


def _spread(row: Row, name: str, digits: int = 3) -> str:
    mean, deviation = row[f"{name}_mean"], row[f"{name}_sd"]
    return number(mean, digits) + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def _difference(row: Row) -> str:
    mean, low, high = (row[name] for name in ("difference", "difference_low", "difference_high"))
    if mean is None:
        return "-"
    return f"{mean:+.3f}" + ("" if low is None else f" [{low:+.3f}, {high:+.3f}]")


def _cost(row: Row, name: str, show: Callable[[float], str] = "{:.1f}".format) -> str:
    if row[name] is not None:
        return show(row[name])
    if row["target"] is None or not row["runs"]:
        return "-"
    return f"{row['reached']} of {row['runs']} runs"


def show_table(console: Console, results: Results) -> None:
    """Prints the table: fewer columns in a narrow terminal, all of them in a file or pipe."""
    lines = cells(results)
    if console.is_terminal and console.width < _WIDE:
        dropped = ("seeds", f"val {results.score.title}", "traffic MiB", "local steps", "time s")
        kept = [k for k, heading in enumerate(lines[0]) if heading not in dropped]
        lines = [[line[k] for k in kept] for line in lines]
    table = new_table(*(heading.replace(" to ", " to\n") for heading in lines[0]))
    for column in table.columns:
        column.no_wrap = True
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    # wide enough that no cell is cut off
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
    first, *figures = _columns_of_a_paper(results)
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


def _columns_of_a_paper(results: Results) -> list[list[str]]:
    lines = cells(results)
    dropped = {f"val {results.score.title}", "local steps", "time s"}
    if len({row["runs"] for row in results.rows}) == 1:
        dropped.add("seeds")
    dropped.update(heading for heading in lines[0] if heading.startswith(("rounds to ", "MiB to ", "local steps to ")))
    known = [any(value not in ("", "-") for value in column) for column in zip(*lines[1:], strict=True)]
    kept = [k for k, heading in enumerate(lines[0]) if known[k] and heading not in dropped]
    return [[line[k] for k in kept] for line in lines]


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
