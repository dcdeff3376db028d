"""Draws the figures of a page for a paper, as PNG and PDF in the width of a column, and the pictures of runs again."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Drawn

from lit_cfl.pictures import client_map, histogram, layer_scores, learning_curve, memberships, similarity
from lit_cfl.pictures.cells import Matrix, draw_grid, draw_matrix
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.options import Format
from lit_cfl.pictures.panels import COLUMN, Panel, draw_panels
from lit_cfl.report.blocks import Figure, Page
from lit_cfl.report.run_files import RunFiles, known
from lit_cfl.report.sources import Group

FORMATS: tuple[Format, ...] = ("png", "pdf")
_DPI = 300
_HEIGHT, _LINE = 2.1, 0.22  # of a panel, and of a named place on its upright axis, in inches


def slug(text: str) -> str:
    """Makes a name of a file of any text."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "run"


def draw(figure: Figure) -> Drawn:
    """Draws a figure in the width of a column."""
    drawing = figure.drawing
    if isinstance(drawing, Panel):
        height = max(_HEIGHT, _LINE * len(drawing.y_ticks) + 0.6)
        return draw_panels([[drawing]], figure.styles, COLUMN, height)
    return draw_matrix(drawing) if isinstance(drawing, Matrix) else draw_grid(drawing)


def write_figures(page: Page, folder: Path, drawn: Callable[[], object]) -> None:
    """Writes all figures of a page into a folder; `drawn` is called after each."""
    for figure in page.figures:
        write_figure(draw(figure), folder / figure.name, FORMATS, _DPI)
        drawn()


def redraw(groups: Sequence[Group], folder: Path) -> None:
    """Draws the pictures of each run of some groups again, each run's into a folder of its own."""
    for group in groups:
        for run in group.runs:
            seed = f"-seed-{run.seed}" if len(group.runs) > 1 else ""
            for name, picture in _pictures(run).items():
                write_figure(picture(), folder / f"{slug(group.name)}{seed}" / name, FORMATS)


def _pictures(run: RunFiles) -> dict[str, Callable[[], Drawn]]:
    """Returns the pictures that the files of a run allow, by name."""
    score, found = run.score, run.memberships
    drawn: dict[str, Callable[[], Drawn]] = {}
    if run.rows:
        drawn["curve"] = lambda: learning_curve({run.algorithm: run.rows}, score)
    snapshot = run.snapshot(run.snapshots[-1]) if run.snapshots else None
    if snapshot is not None:
        drawn["similarity"] = lambda: similarity(snapshot, run.snapshots[-1])
        drawn["clients"] = lambda: client_map(snapshot, run.snapshots[-1])
    if found is not None and found["cluster"].size:
        drawn["memberships"] = lambda: memberships(found["rounds"], found["cluster"], found["true_cluster"])
    if run.table("layers"):
        drawn["layers"] = lambda: layer_scores(run.table("layers"))
    rows = [row for row in run.table("clients") if known(row.get(score.name)) is not None]
    if rows:
        values = np.array([row[score.name] for row in rows], dtype=float)
        cluster, true = (
            np.array([-1 if row.get(key) is None else int(row[key]) for row in rows])
            for key in ("cluster", "true_cluster")
        )
        drawn["histogram"] = lambda: histogram(values, cluster, true, score, run.rows[-1]["round"] if run.rows else 0)
    return drawn
