"""What tables of figures and pages need from inside of the package: only this file knows how figures are made.

`drawn` describes a figure as matplotlib's axes have it, so that its answer does not depend on how the figure was made.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from digits_experiment import digits
from drawing import let_runs_draw
from golden_cases import study_files
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PolyCollection, QuadMesh
from matplotlib.colors import ListedColormap, to_hex
from matplotlib.figure import Figure as Drawn
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FuncFormatter
from rich.console import Console

from lit_cfl.algorithms import IFCA, FedAvg
from lit_cfl.algorithms.base import Assignment
from lit_cfl.client_scores import SplitScores
from lit_cfl.compare.command import write_picture
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.results import Results, collect
from lit_cfl.compare.tables import show_table, write_tables
from lit_cfl.data import FederatedData
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import Row
from lit_cfl.pictures import data as data_pictures
from lit_cfl.pictures import folder
from lit_cfl.pictures.figure import Figure, Table, draw
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.pictures.run_files import read_run
from lit_cfl.progress import summary_table, tables
from lit_cfl.progress.live import LogDisplay
from lit_cfl.report.assemble import make_page
from lit_cfl.report.blocks import Code, Page, Section, Text
from lit_cfl.report.page import as_html
from lit_cfl.runs.many import Job
from lit_cfl.runs.newcomers import PlacedNewcomers
from lit_cfl.runs.run import FinishedRun
from lit_cfl.scores import CLASSIFIER

Content = dict[str, Any]


# A figure in matplotlib's terms


def drawn(figure: Figure | Drawn) -> Content:
    """Describes a figure: its title, the entries of the legend, and the labels and marks of each pair of axes.

    Args:
        figure: Figure of the package, or of matplotlib.
    """
    found = figure if isinstance(figure, Drawn) else draw(figure, titled=True)
    legends = [*found.legends, *(own for axes in found.axes if (own := axes.get_legend()) is not None)]
    entries = [entry for legend in legends for entry in _describe_legend(legend)]
    axes = [_describe_axes(one, entries) for one in found.axes]
    return {"title": found.get_suptitle(), "legend": entries, "axes": axes}


def marks_of(found: Content, number: int = 0, kind: str = "") -> list[Content]:
    """Lists the marks of one kind in the axes with this number; empty = of any kind."""
    return [mark for mark in found["axes"][number]["marks"] if kind in ("", mark["kind"])]


def _describe_legend(legend: Legend) -> list[Content]:
    texts = [text.get_text() for text in legend.get_texts()]
    return [{"label": text} | _look(handle) for text, handle in zip(texts, legend.legend_handles, strict=True)]


def _describe_axes(axes: Any, entries: Sequence[Content]) -> Content:
    if axes.get_label() == "<colorbar>":
        return {"colour bar": axes.get_ylabel(), "marks": []}
    found: Content = {"title": axes.get_title()} if isinstance(axes, Axes) else {}  # a second axis has none
    found |= {"x": axes.get_xlabel(), "y": axes.get_ylabel()}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        found |= _describe_axis(name, axis)
    found["marks"] = [mark | _label_of(mark, entries) for mark in _list_marks(axes)]
    if axes.child_axes:
        found["inside"] = [_describe_axes(child, entries) for child in axes.child_axes]
    return {key: value for key, value in found.items() if value or key == "marks"}


def _describe_axis(name: str, axis: Axis) -> Content:
    """Describes the scale, the names of places, and the limits of an axis if they were chosen."""
    limits = list(map(float, axis.get_view_interval()))
    chosen = not axis._get_autoscale_on()
    formatter = axis.get_major_formatter()
    places = axis.get_majorticklocs() if isinstance(formatter, FixedFormatter | FuncFormatter) else []
    texts = formatter.format_ticks(places) if len(places) else []
    sides = ("labelbottom", "labeltop") if name == "x" else ("labelleft", "labelright")
    shown = any(axis.get_tick_params().get(side, side in ("labelbottom", "labelleft")) for side in sides)
    return {
        f"{name} scale": axis.get_scale() if "log" in axis.get_scale() else "",
        f"{name} limits": limits if chosen else [],
        f"{name} ticks": {f"{place:g}": text for place, text in zip(places, texts, strict=True) if text and shown},
    }


def _list_marks(axes: Axes) -> Iterator[Content]:
    """Yields lines, points, bands, bars, cells and texts, each with its coordinates and its look."""
    for line in axes.lines:
        marker = line.get_marker() not in ("None", "", None)
        kind = "line" if line.get_linestyle() != "None" else "points"
        place = {"x": _numbers(line.get_xdata()), "y": _numbers(line.get_ydata())}
        yield {"kind": kind} | place | _look(line, marker) | _own_label(line)
    for bars in axes.containers:
        boxes = list(bars.patches)
        place = {"left": [box.get_x() for box in boxes], "width": sorted({round(box.get_width(), 9) for box in boxes})}
        place |= {"base": [box.get_y() for box in boxes], "height": [box.get_height() for box in boxes]}
        yield {"kind": "bars"} | place | (_look(boxes[0]) if boxes else {}) | _own_label(bars)
    for group in axes.collections:
        yield _describe_collection(group) | _own_label(group)
    for image in axes.images:
        yield {"kind": "cells"} | _describe_values(image, np.ma.filled(image.get_array().astype(float), np.nan))
    for text in axes.texts:
        yield {"kind": "text", "text": text.get_text(), "at": [float(at) for at in text.xy]}


def _describe_collection(group: Any) -> Content:
    if isinstance(group, QuadMesh):
        edges = group.get_coordinates()
        values = np.ma.filled(np.ma.asarray(group.get_array(), dtype=float), np.nan)
        places = {"left": _numbers(edges[0, :, 0]), "rows": _numbers(edges[[0, -1], 0, 1])}
        return {"kind": "cells"} | places | _describe_values(group, values)
    if isinstance(group, LineCollection):
        return {"kind": "lines", "ends": [_numbers(np.ravel(line)) for line in group.get_segments()]}
    if isinstance(group, PolyCollection):
        corners = group.get_paths()[0].vertices
        edges = [(x, corners[corners[:, 0] == x, 1]) for x in np.unique(corners[:, 0])]
        place = {"x": [float(x) for x, _ in edges], "low": [float(y.min()) for _, y in edges]}
        place |= {"high": [float(y.max()) for _, y in edges]}
        return {"kind": "band"} | place | {"colour": to_hex(group.get_facecolor()[0])}
    raise TypeError(f"{type(group).__name__} is a mark that nobody describes yet")


def _describe_values(image: Any, values: np.ndarray) -> Content:
    """Describes cells by their colours if these are names of groups, else by their numbers and the colours' range."""
    if isinstance(image.get_cmap(), ListedColormap) and image.get_cmap().N < 256:
        return {"cells": [" ".join(to_hex(colour) for colour in row) for row in image.to_rgba(values)]}
    look = {"colours": image.get_cmap().name, "range": list(map(float, image.get_clim()))}
    return look | {"cells": [_numbers(np.ravel(row)) for row in values]}


def _look(artist: Artist, marker: bool = True) -> Content:
    if not isinstance(artist, Line2D):
        return {"colour": to_hex(artist.get_facecolor())}  # type: ignore[attr-defined]
    line = "" if artist.get_linestyle() == "None" else _dashes(artist)
    shape = artist.get_marker() if marker and artist.get_marker() != "None" else ""
    colour = to_hex(artist.get_color())
    parts = {to_hex(one) for one in (artist.get_markerfacecolor(), artist.get_markeredgecolor())} if shape else set()
    others = " ".join(sorted(parts - {colour}))  # colours of a marker that are not those of its line
    more = (("line", line), ("marker", shape), ("colours of the marker", others))
    return {"colour": colour} | {key: value for key, value in more if value}


def _dashes(line: Line2D) -> str:
    """Describes the dashes of a line by the lengths of strokes and gaps; a solid line has none."""
    pattern = line._unscaled_dash_pattern[1]
    return "solid" if pattern is None else "dashes " + "-".join(f"{length:g}" for length in pattern)


def _own_label(artist: Any) -> Content:
    label = str(artist.get_label())
    return {} if label.startswith("_") or not label else {"label": label}


def _label_of(mark: Content, entries: Sequence[Content]) -> Content:
    """Finds the entry of the legend that looks like a mark; a mark with a label keeps it."""
    keys = {"line": ("colour", "line"), "points": ("colour", "marker")}.get(mark["kind"], ("colour",))
    same = [entry for entry in entries if "colour" in mark and all(entry.get(key) == mark.get(key) for key in keys)]
    labels = list(dict.fromkeys(entry["label"] for entry in same))
    return {"label": mark["label"]} if "label" in mark else {"label": " or ".join(labels)} if labels else {}


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in values]


# Pages


def page_of(*paths: Path) -> Page:
    return make_page(paths, ["lit-cfl", "report", *map(str, paths)])


def shown(page: Page) -> Content:
    """Describes what a reader of a page sees."""
    sections = [_describe_section(section) for section in page.sections]
    return {"title": page.title, "lines": list(page.lines), "problems": list(page.problems), "sections": sections}


def _describe_section(section: Section) -> Content:
    parts = {"parts": [_describe_section(part) for part in section.parts]} if section.parts else {}
    return {"heading": section.title, "blocks": [_describe_block(block) for block in section.blocks]} | parts


def _describe_block(block: Any) -> Content:
    if isinstance(block, Text):
        return {"paragraph": block.text}
    if isinstance(block, Code):
        return {"code": block.title, "lines": block.text.splitlines()}
    if isinstance(block, Table):
        return {"table": block.title, **_cells_of(block)}
    return {"figure": block.name, "caption": block.caption, "alternative text": block.alt, **drawn(block)}


def _cells_of(table: Table) -> Content:
    rows = [" | ".join("" if cell is None else str(cell) for cell in row) for row in (table.head, *table.rows)]
    return {"rows": rows} | ({"note": table.note} if table.note else {})


def table_on(page: Page, title: str) -> list[list[str]]:
    """Returns the heads and the rows of the table with this title, as text."""
    (found,) = [b for section in page.sections for b in section.blocks if isinstance(b, Table) and b.title == title]
    return [["" if cell is None else str(cell) for cell in row] for row in (found.head, *found.rows)]


def figure_on(page: Page, name: str) -> Content:
    """Describes the figure whose name ends with these words, with its caption and its alternative text."""
    (found,) = [figure for figure in page.figures if figure.name == name or figure.name.endswith(f"-{name}")]
    return _describe_block(found)


def html_of(page: Page) -> str:
    return as_html(page).decode()


# Pictures in folders


@contextmanager
def _taking(target: Any, name: str = "write_figure") -> Iterator[Content]:
    """Collects the figures that would be written as files, by the name of the file."""
    taken: Content = {}

    def take(figure: Figure, path: Path, *_: Any, **options: Any) -> list[Path]:
        taken[path.name] = drawn(figure)
        return [path.with_suffix(".png")]

    with patch(f"{target}.{name}", take):
        yield taken


def pictures_of_run(path: Path) -> Content:
    """Describes the pictures that a run with these files draws at its end."""
    let_runs_draw(True)
    try:
        with _taking("lit_cfl.pictures.folder") as taken:
            folder.PictureFolder(path / "pictures", ["png"]).draw(view_of(path))
    finally:
        let_runs_draw(False)
    return taken


def view_of(path: Path) -> RoundView:
    run = read_run(path)
    values, cluster = run.final_scores
    return RoundView(path, run.score, True, lambda: dict(run.memberships or {}), cluster, values, [], {})


def picture_with_baseline(path: Path, baseline: Path) -> Content:
    """Describes the learning curve of a run and its baseline."""
    mine, others = (json.loads((one / "summary.json").read_text()) for one in (path, baseline))
    with _taking("lit_cfl.pictures.folder") as taken:
        folder.draw_both(path, baseline, mine, others, ["png"])
    return taken


def pictures_of_data(data: FederatedData) -> Content:
    """Describes the pictures of federated data."""
    kinds = (data_pictures.label_distribution, data_pictures.size_histogram, data_pictures.example_images)
    return {kind.__name__: None if (figure := kind(data)) is None else drawn(figure) for kind in kinds}


def pictures_of_search(path: Path) -> Content:
    """Describes the pictures of a study whose table lies in `path`."""
    from lit_cfl.report.study import read_study  # imports Optuna
    from lit_cfl.tune.pictures import list_figures

    study = read_study(path)
    made = {name: make() for name, make in list_figures(study.trained, study.parameters, study.objective).items()}
    return {name: drawn(figure) for name, figure in made.items() if figure is not None}


# Comparisons


def results_of(
    path: Path,
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    target: float | None = None,
    errors: Mapping[tuple[str, int], str] | None = None,
) -> Results:
    """Reads the results of a comparison whose runs lie in `path`, and writes its files.

    Args:
        path: Directory with a run in `<name>/seed-<seed>` for each experiment and seed.
        experiments: Experiment of each name.
        seeds: Seeds of the runs.
        target: Score for which costs are counted; None = found.
        errors: What went wrong, by name and seed.
    """
    failed = {Job(path, *key, 3): why for key, why in (errors or {}).items()}
    results = collect(Comparison("x", dict(experiments), list(seeds), target), path, failed)
    write_tables(path, results, f"x: {', '.join(experiments)}", None)
    about = f"name: x\nalgorithms: {list(experiments)}\nseeds: {list(seeds)}\ntarget: {json.dumps(target)}\n"
    (path / "compare.yaml").write_text(about)
    return results


def picture_of_comparison(path: Path, results: Results) -> Content:
    """Describes the picture of a comparison."""
    with _taking("lit_cfl.pictures.files") as taken:
        write_picture(path, results, ["png"])
    return taken


# What a terminal shows


def _printed(show: Callable[[Console], object]) -> str:
    show(Console(file=(out := StringIO()), width=200))
    return out.getvalue()


def end_of_run(finished: FinishedRun) -> str:
    """Returns the table and the notes at the end of a run."""
    return _printed(lambda console: summary_table.closing_table(console, finished))


def lines_of_rounds(rows: Sequence[Row], seconds: Sequence[float], rounds: int, completed: int = 0) -> str:
    """Returns the lines of a run, the rounds of which end at these times, when its output is not a terminal."""
    now = [0.0]

    def show(console: Console) -> None:
        display = LogDisplay(console, clock=lambda: now[0])
        display.started("CFL", completed, rounds)
        for row, now[0] in zip(rows, seconds, strict=True):
            display.row("CFL", row)
        display.ended("CFL")

    return _printed(show)


def scores_of_splits(splits: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Returns the table of scores; each split has the right answers, the examples and the losses of its clients."""
    found = {}
    for name, own in splits.items():
        sums, weights, loss = (torch.tensor([own[key]], dtype=torch.float64) for key in ("right", "count", "loss"))
        found[name] = SplitScores(CLASSIFIER, torch.tensor(own["count"]), loss[0], sums, weights)
    return _printed(lambda console: tables.score_table(console, found))


def table_of_newcomers(clusters: Sequence[int], new: Sequence[bool], closeness: Sequence[Sequence[float]]) -> str:
    """Returns the table of newcomers: the cluster of each, and its closeness to each cluster of the run."""
    models = torch.zeros(max(clusters) + 1, 1)
    placed = PlacedNewcomers(
        Assignment(models, torch.tensor(clusters)), torch.tensor(new), torch.tensor(closeness), None, None
    )
    return _printed(lambda console: tables.assignment_table(console, Path("run"), placed, "cosine"))


def end_of_comparison(results: Results) -> str:
    return _printed(lambda console: show_table(console, results))


def compare_on_new_seeds(path: Path) -> Results:
    """Compares the best setting of a study, 0003, with the default one, and writes the comparison's files."""
    experiments = {"default": digits(algorithm=FedAvg()), "0003": digits(algorithm=IFCA(2))}
    return results_of(path / "repeats", experiments, [0, 1, 2])


def end_of_search(path: Path) -> str:
    """Returns what the end of a study with these files prints."""
    from lit_cfl.tune.command import closing_table

    files = study_files(path)
    result = replace(files.write(), repeated=compare_on_new_seeds(path))
    return _printed(lambda console: closing_table(console, files.prepared.study, result))
