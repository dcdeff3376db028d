"""The table of a comparison: on the screen, and as Markdown, LaTeX and CSV."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from lit_cfl.compare.arguments import CLIENT_GAINS, TABLE
from lit_cfl.compare.results import COLUMNS, NOTE_ON_COSTS, Results, run_columns
from lit_cfl.metric_names import Row
from lit_cfl.progress.console import new_console
from lit_cfl.progress.tables import mebibytes, new_table, number
from lit_cfl.storage.atomic_writes import write_atomically, write_text
from lit_cfl.storage.csv_log import write_rows

_SHARE = re.compile("(test|val|tuned|newcomers)_|worst10|difference")  # values of a row that are scores
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
    """A column: whether a narrow terminal shows it, and a value of a row without which nothing shows it."""

    heading: str
    show: Callable[[Row], str]
    screen: bool = True
    needs: str | None = "algorithm"


def _columns(results: Results, digits: int = 3, unit: str = "") -> dict[str, _Column]:
    """Lists the known columns by their names in `ALL_COLUMNS`; scores have these digits and this unit."""
    rows, score, first = results.rows, results.score.title, results.rows[0]
    at, form = "target" if first["target"] is None else f"{first['target']:g}", f"z.{digits}f"
    known = {name for row in rows for name, value in row.items() if value is not None}
    count = None if "ari_mean" in known else "clusters_mean"  # agreement says more than the number of clusters

    def difference(row: Row) -> str:
        return "" if row is first else _interval(row, "difference", f"+{form}")

    columns = {
        "algorithm": _Column("algorithm", lambda row: row["algorithm"] + "†" * bool(row["rounds_with_all_clients"])),
        "seeds": _Column("seeds", lambda row: str(row["runs"]), False),
        "test": _Column(f"{score}{unit}" if unit else f"test {score}", lambda row: _spread(row, "test", digits)),
        "val": _Column(f"val {score}{unit}", lambda row: _spread(row, "val", digits), False, "val_mean"),
        "tuned": _Column(f"tuned {score}{unit}", lambda row: _spread(row, "tuned", digits), needs="tuned_mean"),
        "newcomers": _Column(f"newcomers{unit}", lambda row: _spread(row, "newcomers", digits), needs="newcomers_mean"),
        "worst10": _Column(f"worst tenth{unit}", lambda row: _interval(row, "worst10", form), False, "worst10"),
        "losing": _Column("clients that lose", lambda row: _interval(row, "losing", ".1%"), False, "losing"),
        "difference": _Column(f"difference to {first['algorithm']}", difference),
        "needed": _Column("seeds needed", lambda row: number(row.get("seeds_needed"), 0), False, "seeds_needed"),
        "gap": _Column("gap closed", lambda row: _interval(row, "gap_closed", "z.2f"), needs="gap_closed"),
        "ari": _Column("ARI", lambda row: _spread(row, "ari", 2), needs="ari_mean"),
        "clusters": _Column("clusters", lambda row: _spread(row, "clusters", 1), needs=count),
        "rounds_to": _Column(f"rounds to {at}", lambda row: _cost(row, "rounds_to_target")),
        "mib_to": _Column(f"MiB to {at}", lambda row: _cost(row, "mib_to_target", mebibytes)),
        "steps_to": _Column(f"local steps to {at}", lambda row: _cost(row, "local_steps_to_target", "{:.0f}".format)),
        "mib": _Column("traffic MiB", lambda row: "-" if row["mib"] is None else mebibytes(row["mib"]), False),
        "steps": _Column("local steps", lambda row: number(row["local_steps"], 0), False),
        "seconds": _Column("time s", lambda row: number(row["seconds"], 1), False),
    }
    return {name: column for name, column in columns.items() if column.needs in known}


def cells(results: Results, columns: Sequence[_Column] | None = None) -> list[list[str]]:
    """Formats the headings and one line per algorithm as plain text; a dash means unknown."""
    columns = list(_columns(results).values()) if columns is None else columns
    return [[column.heading for column in columns], *([column.show(row) for column in columns] for row in results.rows)]


def _spread(row: Row, name: str, digits: int) -> str:
    mean, deviation = row[f"{name}_mean"], row[f"{name}_sd"]
    return number(mean, digits) + ("" if deviation is None else f" ± {deviation:.{digits}f}")


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
    columns = [column for column in _columns(results).values() if column.screen or not narrow]
    headings, *lines = cells(results, columns)
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


def as_latex(results: Results, shown: Sequence[str] = TABLE) -> str:
    r"""Formats some columns for LaTeX with booktabs, scores that are shares in percent; the notes are comments.

    The default columns fit a column of 3.3 inches in `\small`; a comment names those not known. The best test score
    is bold, and so are those that a paired t test at 5 % does not tell from it.
    """
    digits, unit = 3, ""
    if results.score.is_share:
        results, digits, unit = replace(results, rows=list(map(_in_percent, results.rows))), 1, " (%)"
    known = _columns(results, digits, unit)
    names = [name for name in ("algorithm", *shown) if name in known]
    first, *figures = cells(results, [known[name] for name in names])
    headings, lines = list(map(latex, first)), [[latex(name), *map(_latex_figure, rest)] for name, *rest in figures]
    for row, line in zip(results.rows, lines, strict=True):
        if row.get("is_best") and "test" in names:
            line[names.index("test")] = re.sub(r"^\S+", r"\\textbf{\g<0>}", line[names.index("test")])
    # LaTeX would take a [ or * at the start of a line as an argument of the \\ before it
    rows = ["{}" * line[0].startswith(("[", "*")) + " & ".join(line) + r" \\" for line in lines]
    notes = ["% " + " ".join(note.split()) for note in results.notes if not note.startswith(NOTE_ON_COSTS)]
    if unknown := [name for name in shown if name not in known]:
        notes.append(f"% without columns that are not known here: {', '.join(unknown)}")
    head = [
        rf"\begin{{tabular}}{{@{{}}l{'r' * (len(headings) - 1)}@{{}}}}",
        r"\toprule",
        " & ".join(headings) + r" \\",
        r"\midrule",
    ]
    about = (
        "% needs \\usepackage{booktabs}; bold: the best, and those that a paired t test at 5 % over three or more "
        "seeds does not tell from it"
    )
    return "\n".join([about, *notes, *head, *rows, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _in_percent(row: Row) -> Row:
    return {name: 100 * row[name] if _SHARE.match(name) and row[name] is not None else row[name] for name in row}


def latex(text: str) -> str:
    """Escapes text for LaTeX."""
    return "".join(_TEX.get(character, character) for character in " ".join(text.split()))


def _latex_figure(text: str) -> str:
    """Formats a number for LaTeX, with a minus sign instead of a hyphen."""
    return "--" if text == "-" else re.sub(r"-(?=\d)", "$-$", latex(text))


def write_tables(path: Path, results: Results, title: str, picture: str | None, shown: Sequence[str] = TABLE) -> None:
    """Writes `results.md`, `results.tex` with these columns, `results.csv`, `runs.csv` and `client_gains.csv`."""
    write_text(path / "results.md", as_markdown(results, title, picture))
    write_text(path / "results.tex", as_latex(results, shown))
    write_rows(path / "results.csv", COLUMNS, results.rows)
    write_rows(path / "runs.csv", run_columns(results.score), results.runs)
    if (gains := results.gains) is not None:
        write_atomically(path / CLIENT_GAINS, lambda file: gains.to_csv(file, index=False, lineterminator="\n"))
