"""What tests of figures, pages and printed tables need from inside of the package."""

import json
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from digits_experiment import digits
from rich.console import Console

from lit_cfl.algorithms import IFCA, FedAvg
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.results import Results, collect
from lit_cfl.compare.tables import write_tables
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import Row
from lit_cfl.pictures.figure import Figure, Table
from lit_cfl.progress.live import LogDisplay
from lit_cfl.report.assemble import make_page
from lit_cfl.report.blocks import Page
from lit_cfl.report.page import as_html
from lit_cfl.runs.many import Job


def page_of(*paths: Path) -> Page:
    return make_page(paths, ["lit-cfl", "report", *map(str, paths)])


def table_on(page: Page, title: str) -> list[list[str]]:
    """Returns the heads and the rows of the table with this title, as text."""
    (found,) = [b for section in page.sections for b in section.blocks if isinstance(b, Table) and b.title == title]
    return [["" if cell is None else str(cell) for cell in row] for row in (found.head, *found.rows)]


def figure_on(page: Page, name: str) -> Figure:
    (found,) = [figure for figure in page.figures if f"-{figure.name}".endswith(f"-{name}")]
    return found


def lines_of(figure: Figure) -> dict[str, tuple[list[float], list[float]]]:
    return {curve.name: (list(curve.x), list(curve.y)) for curve in figure.first_panel.curves}


def html_of(page: Page) -> str:
    return as_html(page).decode()


def results_of(
    path: Path,
    experiments: Mapping[str, Experiment],
    target: float | None = None,
    errors: Mapping[tuple[str, int], str] | None = None,
) -> Results:
    """Reads the runs `<name>/seed-<seed>` of a comparison under the seeds 0 to 2, and writes its files.

    `target` is the score for which costs are counted (None = found), and `errors` what went wrong by name and seed.
    """
    failed = {Job(path, *key, 3): why for key, why in (errors or {}).items()}
    results = collect(Comparison("x", dict(experiments), [0, 1, 2], target), path, failed)
    write_tables(path, results, f"x: {', '.join(experiments)}", None)
    about = f"name: x\nalgorithms: {list(experiments)}\nseeds: [0, 1, 2]\ntarget: {json.dumps(target)}\n"
    (path / "compare.yaml").write_text(about)
    return results


def compare_on_new_seeds(path: Path) -> Results:
    """Compares the best setting of a study, 0003, with the default one, and writes the comparison's files."""
    return results_of(path / "repeats", {"default": digits(algorithm=FedAvg()), "0003": digits(algorithm=IFCA(2))})


def printed(show: Callable[..., object], *values: Any) -> str:
    """Returns what a function prints whose first argument is a console."""
    show(Console(file=(out := StringIO()), width=200), *values)
    return out.getvalue()


def lines_of_rounds(rows: Sequence[Row], seconds: Sequence[float], rounds: int, completed: int = 0) -> str:
    """Returns the lines of a run, the rounds of which end at these times, when its output is not a terminal."""
    now = [0.0]

    def show(console: Console) -> None:
        display = LogDisplay(console, clock=lambda: now[0])
        display.started("CFL", completed, rounds)
        for row, now[0] in zip(rows, seconds, strict=True):
            display.row("CFL", row)
        display.ended("CFL")

    return printed(show)
