"""Draws the papers' figures from recorded curves, and lists the runs behind them in `figures.csv` and `figures.md`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.cells import PaperTable
from experiments.files import Row, read_page_text, read_yaml, write_picture
from experiments.results import RecordedResults
from lit_cfl.pictures.panels import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Curve,
    Panel,
    Points,
    Style,
    draw_panels,
)
from lit_cfl.storage import write_rows, write_text

STYLES = {
    "FedAvg": Style(BLACK, "-", "s", 4.5),
    "FedProx": Style(GREEN, "-", "P", 4.5),
    "IFCA": Style(BLUE, "-", "o", 4.5),
    "IFCA-M4": Style(BLUE, "-", "o", 4.5, label="IFCA, four models"),
    "IFCA-MIG": Style(BLUE, "--", "D", 4.5),
    "FeSEM": Style(ORANGE, "-", "^", 4.5),
    "FeSEM-MIG": Style(ORANGE, "--", "v", 4.5),
    "FedGroup": Style(SKY, "-", "X", 4.5),
    "CFL": Style(GREEN, "-", "^", 4.5),
    "StoCFL": Style(VERMILLION, "-", "*", 4.5),
    "FlexCFL": Style(VERMILLION, "-", "*", 4.5),
    "FlexCFL-eta_g0.01": Style(SKY, "--", label=r"FlexCFL, $\eta_g$ = 0.01"),
    "FlexCFL-eta_g0.1": Style(PURPLE, "-", label=r"FlexCFL, $\eta_g$ = 0.1"),
    "FlexCFL-eta_g1.0": Style(BLUE, "-.", label=r"FlexCFL, $\eta_g$ = 1"),
    "FlexCFL-eta_g5.0": Style(PURPLE, "--", "h", 4.5, label=r"FlexCFL, $\eta_g$ = 5"),
    "FlexCFL-eta_g10.0": Style(BLACK, ":", label=r"FlexCFL, $\eta_g$ = 10"),
}
_CURVES = {  # column of a curve, factor, label of the axis
    "accuracy": ("test/weighted_accuracy", 100.0, "test accuracy, %"),
    "loss": ("train/loss", 1.0, "training loss"),
    "discrepancy": ("train/discrepancy", 1.0, "discrepancy"),
}
Curves = Mapping[str, Sequence[Row]]  # curves of one method by the keys of its runs
COLUMNS = ("figure", "panel", "experiment", "method", "seed", "run")
_FILE = Path(__file__).parent / "figures.yaml"


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper, and the grid of panels drawn for it.

    Args:
        name: Name of our file.
        paper, title, shows: The paper, our title, and what the paper's figure shows.
        table: Table that contains the experiments.
        rows: `shows` (accuracy, loss, discrepancy or traffic), `suffix` of the experiment's name, and `window`, an odd
            number of rounds for a running mean (default: 1).
        columns: `experiment`, `title` and `methods`.
        same_scale: True if the panels of a row share the scale of the vertical axis.
    """

    name: str
    paper: str
    title: str
    shows: str
    table: str
    rows: tuple[Mapping[str, Any], ...]
    columns: tuple[Mapping[str, Any], ...]
    same_scale: bool = True


@dataclass(frozen=True)
class Drawn:
    """The panels drawn for a figure, the runs behind them, and what is missing.

    Args:
        grid: Grid of panels, without empty rows and columns.
        runs: Rows of `figures.csv`.
        missing: Descriptions of panels and methods without a run.
    """

    grid: list[list[Panel | None]]
    runs: list[Row]
    missing: list[str]


def read_figures() -> list[PaperFigure]:
    """Reads the list of figures."""
    content = read_yaml(_FILE)
    return [PaperFigure(**(entry | {key: tuple(entry[key]) for key in ("rows", "columns")})) for entry in content]


def draw_figure(figure: PaperFigure, results: RecordedResults) -> Drawn:
    """Makes the panels of a figure, and lists the runs behind them."""
    (table,) = (table for table in results.tables if table.name == figure.table)
    runs: list[Row] = []
    missing: list[str] = []
    grid: list[list[Panel | None]] = []
    for row in figure.rows:
        panels: list[Panel | None] = []
        for column in figure.columns:
            experiment = column["experiment"] + row.get("suffix", "")
            found = dict(_collect_runs(results, table, experiment, column["methods"]))
            title = column["title"] + row.get("suffix", "")
            panels.append(_panel(row, column["title"], found, results.ledger.rows) if found else None)
            absent = [method for method in column["methods"] if method not in found]
            missing += [f"{title} ({'all methods' if not found else ', '.join(absent)})"] if absent else []
            entry = {"figure": figure.name, "panel": title, "experiment": experiment}
            runs += [
                entry | {"method": method, "seed": results.ledger.rows[key]["seed"], "run": key}
                for method, curves in found.items()
                for key in curves
            ]
        grid.append(_limit_axes(panels, figure.same_scale))
    kept = [place for place in range(len(figure.columns)) if any(row[place] for row in grid)]
    rows = [[row[place] for place in kept] for row in grid if any(row)]
    return Drawn(rows, _drop_repeats(runs), list(dict.fromkeys(missing)))


def _collect_runs(
    results: RecordedResults, table: PaperTable, experiment: str, methods: Sequence[str]
) -> Iterator[tuple[str, Curves]]:
    for method in methods:
        known = (*table.cells, *table.extras)
        cell = next((c for c in known if (c.experiment, c.method) == (experiment, method)), None)
        curves = {} if cell is None else results.curves(table, cell)
        if curves:
            yield method, curves


def _panel(
    row: Mapping[str, Any], title: str, found: Mapping[str, Curves], recorded: Mapping[str, Mapping[str, Any]]
) -> Panel:
    if row["shows"] == "traffic":
        return _traffic_panel(title, {method: [recorded[key] for key in curves] for method, curves in found.items()})
    column, factor, name = _CURVES[row["shows"]]
    window = row.get("window", 1)
    curves = [_curve(method, list(runs.values()), column, factor, window) for method, runs in found.items()]
    shift = row.get("suffix", "").removeprefix(", ")
    return Panel(title, "round", f"{shift}\n{name}" if shift else name, curves=curves)


def _curve(name: str, runs: Sequence[Sequence[Row]], column: str, factor: float, window: int) -> Curve:
    """Averages the runs' values in their common rounds, with a band from minimum to maximum."""
    by_round = [{row["round"]: factor * row[column] for row in run if row[column] is not None} for run in runs]
    rounds = sorted(set.intersection(*map(set, by_round)))
    values = list(zip(*(_running_mean([run[number] for number in rounds], window) for run in by_round), strict=True))
    band = (list(map(min, values)), list(map(max, values))) if len(runs) > 1 else ((), ())
    return Curve(name, rounds, list(map(fmean, values)), *band)


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    """Computes a centred running mean over rounds, with a shorter window at both ends."""
    half = window // 2
    return [fmean(values[max(0, place - half) : place + half + 1]) for place in range(len(values))]


def _limit_axes(panels: Sequence[Panel | None], same_scale: bool) -> list[Panel | None]:
    """Limits the vertical axes to the curves' range after the steep first tenth of the rounds.

    The lowest and highest 1 % of these values are cut as well: single rounds would flatten the rest.
    """
    everything = [panel.curves for panel in panels if panel is not None]
    limited: list[Panel | None] = []
    for panel in panels:
        shown = [curve for curves in everything for curve in curves] if same_scale or panel is None else panel.curves
        later = sorted(value for curve in shown for value in curve.y[len(curve.y) // 10 :])
        if panel is None or not later:
            limited.append(panel)
            continue
        cut = len(later) // 100
        low, high = later[cut], later[-1 - cut]
        margin = 0.06 * (high - low) or 1.0
        limited.append(replace(panel, limits=(low - margin, high + margin)))
    return limited


def _traffic_panel(title: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Panel:
    """Plots the papers' score against the traffic relative to FedAvg's, with one point per method."""
    sent = {method: fmean(row["traffic"] for row in runs) for method, runs in found.items()}
    unit = sent.get("FedAvg", 1.0)
    points = [
        Points(method, [sent[method] / unit], [fmean(row["max_weighted_test_accuracy"] for row in runs)])
        for method, runs in found.items()
    ]
    name = "traffic, multiple of FedAvg's" if "FedAvg" in sent else "traffic, models"
    return Panel(title, name, "best accuracy, %", points=points)


def write_figures(folder: Path, results: RecordedResults, draw: bool = True) -> list[str]:
    """Draws every figure that has a run, and writes their page and the list of their runs.

    Args:
        draw: False to write the page and the list only.

    Returns:
        Names of the figures that have a run, and of those on the page that were drawn from other measurements.
    """
    pages, runs, names = [read_page_text("figures"), ""], [], []
    for figure in read_figures():
        found = draw_figure(figure, results)
        pages += _section(figure, found)
        runs += found.runs
        if found.grid:
            names.append(figure.name)
        if found.grid and draw:
            write_picture(draw_panels(found.grid, STYLES), folder / "figures" / figure.name)
    measured = read_page_text("figures_measured")
    write_rows(folder / "figures.csv", COLUMNS, runs)
    write_text(folder / "figures.md", "\n".join([*pages, measured, ""]))
    return names + re.findall(r"\(figures/([\w-]+)\.png\)", measured)


def _section(figure: PaperFigure, found: Drawn) -> list[str]:
    lines = [f"## {figure.paper}: {figure.title}", "", f"What the paper shows: {figure.shows.strip()}", ""]
    if found.grid:
        lines += [
            f"![{figure.title}](figures/{figure.name}.png)",
            "",
            f"Drawn from {len({r['run'] for r in found.runs})} runs.{_describe_windows(figure)}",
        ]
    if found.grid and found.missing:
        lines += [f"Some methods have not been run yet in these panels: {'; '.join(found.missing)}."]
    elif found.missing:
        lines += ["Not run yet."]
    return [*lines, ""]


def _describe_windows(figure: PaperFigure) -> str:
    names: dict[int, list[str]] = {}
    for row in figure.rows:
        if "window" in row:
            names.setdefault(row["window"], []).append(row["shows"])
    return "".join(
        f" The curves of the {' and the '.join(shown)} are running means over {window} rounds."
        for window, shown in names.items()
    )


def _drop_repeats(rows: Sequence[Row]) -> list[Row]:
    return list({tuple(row.values()): row for row in rows}.values())
