"""The table of a comparison: on the screen, and as Markdown, LaTeX and CSV."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from lit_cfl.compare.arguments import TABLE
from lit_cfl.compare.gains import FILE
from lit_cfl.compare.results import COLUMNS, NOTE_ON_COSTS, Results, run_columns
from lit_cfl.metric_names import Row
from lit_cfl.progress.console import new_console
from lit_cfl.progress.tables import mebibytes, new_table, number
from lit_cfl.statistics import LEVEL, holm, p_value, paired_difference
from lit_cfl.storage.atomic_writes import write_atomically, write_text
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
    """A column: its name for `--table`, and a value of a row without which nothing shows it."""

    name: str
    heading: str
    show: Callable[[Row], str]
    screen: bool = True  # whether a narrow terminal shows it
    needs: str | None = "algorithm"


def _columns(results: Results, percent: bool = False) -> list[_Column]:
    """Lists the known columns; `percent` formats scores that are shares in percent."""
    rows, first = results.rows, results.rows[0]
    factor, digits, unit = (100, 1, " (%)") if percent and results.score.is_share else (1, 3, "")
    score = results.score.title + unit
    at = "target" if first["target"] is None else f"{first['target']:g}"
    known = {name for row in rows for name, value in row.items() if value is not None}
    count = None if "ari_mean" in known else "clusters_mean"  # agreement says more than the number of clusters

    def spread(name: str) -> Callable[[Row], str]:
        return partial(_spread, name=name, digits=digits, factor=factor)

    def between(name: str, sign: str = "") -> Callable[[Row], str]:
        return partial(_interval, name=name, form=f"{sign}.{digits}f", factor=factor)

    def difference(row: Row) -> str:
        return "" if row is first else between("difference", "+")(row)

    columns = [
        _Column(
            "algorithm", "algorithm", lambda row: row["algorithm"] + ("†" if row["rounds_with_all_clients"] else "")
        ),
        _Column("seeds", "seeds", lambda row: str(row["runs"]), screen=False),
        _Column("test", f"test {score}", spread("test")),
        _Column("val", f"val {score}", spread("val"), screen=False, needs="val_mean"),
        _Column("tuned", f"tuned {score}", spread("tuned"), needs="tuned_mean"),
        _Column("newcomers", f"newcomers{unit}", spread("newcomers"), needs="newcomers_mean"),
        _Column("worst10", f"worst tenth{unit}", between("worst10"), screen=False, needs="worst10_mean"),
        _Column("difference", f"difference to {first['algorithm']}", difference),
        _Column(
            "seeds_needed",
            "seeds needed",
            lambda row: number(row.get("seeds_needed"), 0),
            screen=False,
            needs="seeds_needed",
        ),
        _Column(
            "losing",
            "clients that lose",
            lambda row: _share(row.get("clients_losing")),
            screen=False,
            needs="clients_losing",
        ),
        _Column("gap_closed", "gap closed", lambda row: _interval(row, "gap_closed", ".2f"), needs="gap_closed"),
        _Column("ari", "ARI", lambda row: _spread(row, "ari", 2), needs="ari_mean"),
        _Column("clusters", "clusters", lambda row: _spread(row, "clusters", 1), needs=count),
        _Column("rounds_to", f"rounds to {at}", lambda row: _cost(row, "rounds_to_target")),
        _Column("mib_to", f"MiB to {at}", lambda row: _cost(row, "mib_to_target", mebibytes)),
        _Column(
            "local_steps_to", f"local steps to {at}", lambda row: _cost(row, "local_steps_to_target", "{:.0f}".format)
        ),
        _Column("mib", "traffic MiB", lambda row: "-" if row["mib"] is None else mebibytes(row["mib"]), screen=False),
        _Column("local_steps", "local steps", lambda row: number(row["local_steps"], 0), screen=False),
        _Column("seconds", "time s", lambda row: number(row["seconds"], 1), screen=False),
    ]
    return [column for column in columns if column.needs in known]


def cells(results: Results, shown: Callable[[_Column], bool] = lambda column: True) -> list[list[str]]:
    """Formats the headings and one line per algorithm as plain text; a dash means unknown."""
    return _cells(results, [column for column in _columns(results) if shown(column)])


def _cells(results: Results, columns: Sequence[_Column]) -> list[list[str]]:
    return [[column.heading for column in columns], *([column.show(row) for column in columns] for row in results.rows)]


def _spread(row: Row, name: str, digits: int = 3, factor: int = 1) -> str:
    mean, deviation = (
        None if row[f"{name}_{end}"] is None else factor * row[f"{name}_{end}"] for end in ("mean", "sd")
    )
    return number(mean, digits) + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def _interval(row: Row, name: str, form: str, factor: int = 1) -> str:
    found = (row.get(f"{name}{end}") for end in ("" if name in row else "_mean", "_low", "_high"))
    value, low, high = (None if one is None else factor * one for one in found)
    if value is None:
        return "-"
    return f"{value:{form}}" + ("" if low is None else f" [{low:{form}}, {high:{form}}]")


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


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
    table = new_table(*(heading.replace(" to ", " to\n") for heading in headings))
    for column in table.columns:
        column.no_wrap = True
    for line in lines:
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


def as_latex(results: Results, shown: Sequence[str] = TABLE) -> str:
    r"""Formats some columns for LaTeX with booktabs, scores that are shares in percent; the notes are comments.

    The default columns fit a column of 3.3 inches in `\small`. The best test score is bold, and so are those that
    paired t tests at 5 % with Holm's correction do not tell from it.

    Args:
        results: Results of a comparison.
        shown: Names of columns in their order, of `ALL_COLUMNS`; unknown ones are left out.
    """
    known, best = {column.name: column for column in _columns(results, percent=True)}, _best(results)
    columns = [known[name] for name in ("algorithm", *shown) if name in known]
    headings, *lines = [list(map(_latex_figure, line)) for line in _cells(results, columns)]
    for row, line in zip(results.rows, lines, strict=True):
        for k, column in enumerate(columns):
            if column.name == "test" and row["algorithm"] in best:
                line[k] = re.sub(r"^\S+", r"\\textbf{\g<0>}", line[k])
    # LaTeX would take a [ or * at the start of a line as an argument of the \\ before it
    rows = ["{}" * line[0].startswith(("[", "*")) + " & ".join(line) + r" \\" for line in lines]
    notes = ["% " + " ".join(note.split()) for note in results.notes if not note.startswith(NOTE_ON_COSTS)]
    head = [
        rf"\begin{{tabular}}{{@{{}}l{'r' * (len(headings) - 1)}@{{}}}}",
        r"\toprule",
        " & ".join(headings) + r" \\",
        r"\midrule",
    ]
    about = (
        "% needs \\usepackage{booktabs}; --table chooses the columns, which results.md and results.csv have all",
        "% bold: the best, and those that paired t tests at 5 % with Holm's correction do not tell from it",
    )
    return "\n".join([*about, *notes, *head, *rows, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _best(results: Results) -> set[str]:
    """Names the algorithm with the best mean test score, and those that cannot be told from it."""
    means = {row["algorithm"]: row["test_mean"] for row in results.rows if row["test_mean"] is not None}
    if len(means) < 2:
        return set()
    score = results.score
    top = (max if score.higher_is_better else min)(means, key=means.__getitem__)
    values: dict[str, dict[int, float | None]] = {name: {} for name in (row["algorithm"] for row in results.rows)}
    for run in results.runs:
        values[run["algorithm"]][run["seed"]] = run.get(f"test_{score.name}")
    gaps = {name: paired_difference(values[name], values[top]) for name in means if name != top}
    tested = {name: p_value(gap) for name, gap in gaps.items() if gap.margin is not None}
    corrected = zip(tested, holm(list(tested.values())), strict=True)
    return {top, *(name for name, p in corrected if p >= 1 - LEVEL)}


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
        write_atomically(path / FILE, lambda file: gains.to_csv(file, index=False, lineterminator="\n"))
