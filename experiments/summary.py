"""Plots the papers' numbers against ours, a dot per cell, and counts the verdicts: `summary.png`, `summary.md`."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from experiments.cells import DEFAULT, PaperTable
from experiments.claims import Found, write_claims
from experiments.figures import write_figures
from experiments.files import read_page_text, write_picture
from experiments.ledger import Ledger
from experiments.markdown import markdown_table
from experiments.numbers import write_numbers
from experiments.pages import Judged, write_pages
from experiments.results import RecordedResults
from experiments.verdicts import ACCURACY_POINTS, Verdict
from experiments.which_method import Protocol
from experiments.which_method_page import page_of, write_page
from lit_cfl.pictures.panels import BLUE, ORANGE, PAGE, VERMILLION, Panel, Points, Style, draw_panels
from lit_cfl.storage import write_text

_STYLES = {
    "matches": Style(BLUE, marker="o"),
    "explained": Style(ORANGE, marker="^"),
    "not reproduced": Style(VERMILLION, marker="x"),
}
_ACROSS = 4  # number of panels in a row
Tables = Sequence[tuple[PaperTable, Sequence[Judged]]]


def write_everything(folder: Path, results: RecordedResults, draw: bool = True) -> None:
    """Writes all tables, the numbers of the texts, the figures, the claims and the summary."""
    for table in results.tables:
        write_pages(folder, table, results.ledger, results.keys)
    write_numbers(folder, results.ledger)
    write_summary(folder, results, draw)


def check_pages(tables: Path, answer: Path, results: RecordedResults) -> list[str]:
    """Returns the names of recorded files, except pictures, that differ from what the recorded runs give.

    Args:
        tables: Folder of the papers' tables, from which the results were read.
        answer: Folder of `which-method`.
        results: Recorded results of the papers' tables.
    """
    with TemporaryDirectory() as folder:
        mine, theirs = Path(folder) / "tables", Path(folder) / answer.name
        write_everything(mine, results, draw=False)
        shutil.copytree(answer, theirs)
        write_page(theirs, Protocol.read(), Ledger.read(answer), draw=False)
        files = {file: tables / file.name for file in mine.iterdir() if file.is_file()}
        files |= {theirs / "results.csv": answer / "results.csv", page_of(theirs): page_of(answer)}
        different = [kept for new, kept in files.items() if not kept.exists() or new.read_bytes() != kept.read_bytes()]
        return sorted(map(str, different))


def write_summary(folder: Path, results: RecordedResults, draw: bool = True) -> None:
    """Writes the figures, the claims, and a summary of them and of all tables; without pictures unless `draw`."""
    judged = [(table, results.judged(table)) for table in results.tables]
    names, found = write_figures(folder, results, draw), write_claims(folder, results)
    grid = _grid(judged)
    if grid and draw:
        write_picture(draw_panels(grid, _STYLES, PAGE, 1.95), folder / "figures" / "summary")
    write_text(folder / "summary.md", "\n".join(_page(judged, names, found, drawn=bool(grid))))


def _grid(judged: Tables) -> list[list[Panel | None]]:
    panels: list[Panel | None] = list(_panels(judged))
    across = min(_ACROSS, len(panels)) or 1
    panels += [None] * (-len(panels) % across)
    return [panels[start : start + across] for start in range(0, len(panels), across)]


def _panels(judged: Tables) -> Iterator[Panel]:
    """Yields a panel of accuracies for each table that has some, and one panel of all other numbers."""
    others: list[Judged] = []
    for table, cells in judged:
        known = [cell for cell in cells if cell.mean() is not None and cell.verdict in _STYLES]
        accuracies = [cell for cell in known if "accuracy" in cell.cell.metric]
        others += [cell for cell in known if "accuracy" not in cell.cell.metric]
        if accuracies:
            title = f"{table.paper}, Table {table.number}, %"
            yield Panel(title, "paper", "ours", points=_points(accuracies), diagonal=ACCURACY_POINTS)
    if others:
        points = _points(others)
        yield Panel("discrepancies, rounds", "paper", "ours", points=points, diagonal=0.0, log_x=True, log_y=True)


def _points(cells: Sequence[Judged]) -> list[Points]:
    found = []
    for verdict in _STYLES:
        pairs = [(cell.cell.value, cell.mean()) for cell in cells if cell.verdict == verdict]
        known = [(paper, ours) for paper, ours in pairs if paper is not None and ours is not None]
        if known:
            found.append(Points(verdict, *map(list, zip(*known, strict=True))))
    return found


def _page(judged: Tables, figures: Sequence[str], claims: Sequence[Found], drawn: bool) -> Iterator[str]:
    yield f"{read_page_text('summary')}\n"
    if drawn:
        yield "![The papers' numbers against ours, a dot per cell](figures/summary.png)\n"
        yield f"Each dot is a cell under our default options; the grey band is {ACCURACY_POINTS} points to either side."
        yield "Cells of Synthetic(1,1) are judged by how much its populations differ instead. This rule was made after"
        yield "27 of its runs had been seen ([how a cell is judged](README.md#how-a-cell-is-judged)).\n"
    names: tuple[Verdict, ...] = get_args(Verdict)
    everything = [cell for _, cells in judged for cell in cells]
    rows = [[f"[{table.name}]({table.name}.md)", *_counts(cells, names)] for table, cells in judged]
    yield from markdown_table(["table", "cells", *names], [*rows, ["all", *_counts(everything, names)]])
    one = sum(cell.verdict in _STYLES and len(cell.found[DEFAULT].values) == 1 for cell in everything)
    yield f"Of the cells that ran, {one} ran with one seed only under our defaults.\n"
    counts = ", ".join(f"`{name}` {claims.count(name)}" for name in get_args(Found) if name in claims)
    yield f"Verdicts on the papers' [claims](claims.md): {counts}.\n"
    yield f"These [figures](figures.md) are drawn: {', '.join(figures) or 'none'}.\n"


def _counts(cells: Sequence[Judged], names: Sequence[Verdict]) -> list[str]:
    found = [cell.verdict for cell in cells]
    return [str(len(cells)), *(str(found.count(name) or "") for name in names)]
