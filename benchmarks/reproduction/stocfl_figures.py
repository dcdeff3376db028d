"""Draws StoCFL's Figures 2, 6 and 7 from measurements of `benchmarks/stocfl_figures.py` and `benchmarks/stocfl.py`."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.reproduction.files import Row
from benchmarks.reproduction.measured_figure import Grid, MeasuredFigure
from lit_cfl.pictures.panels import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Curve,
    HeatMap,
    Panel,
    Points,
    Style,
)
from lit_cfl.storage import read_table

FOLDER = "stocfl"
_MEASURE = "python benchmarks/stocfl_figures.py"
_OF_ROUNDS = f"python benchmarks/stocfl.py --out docs/reproduction/{FOLDER}/rounds.csv"
_COLOURS = (VERMILLION, BLUE, GREEN, ORANGE, SKY, PURPLE, BLACK, YELLOW)
_TRUE_CLUSTERS = [f"cluster {number}" for number in range(1, len(_COLOURS) + 1)]
_SMALLER, _UNSEEN, _CLIENT = "smaller clusters", "not sampled yet", "a client"
_STYLES = {
    **{name: Style(colour, marker=".", size=2.5) for name, colour in zip(_TRUE_CLUSTERS, _COLOURS, strict=True)},
    _SMALLER: Style("#555555", marker="x", size=2.5),
    _UNSEEN: Style("#bbbbbb", marker=".", size=2),
    _CLIENT: Style("#777777", marker=".", size=2),
    "clusters": Style(BLUE),
    "Eq. 2": Style(VERMILLION),
    "gradient": Style(BLUE),
    "update": Style(VERMILLION),
}
_OVER_ROUNDS: Mapping[str, Callable[[Row], float]] = {
    "clusters": lambda row: row["clusters"] + row["unobserved"],
    "Eq. 2": lambda row: row["objective"],
}
_figure = partial(MeasuredFigure, "StoCFL", styles=_STYLES, measurements=f"{FOLDER}/", command=_MEASURE)


def stocfl_figures(folder: Path) -> list[MeasuredFigure]:
    """Makes StoCFL's figures from the measurements in a folder of reproductions."""
    return [_cosines(folder / FOLDER), _clients(folder / FOLDER), _rounds(folder / FOLDER), _taus(folder / FOLDER)]


def _cosines(folder: Path) -> MeasuredFigure:
    rows = _read(folder / "cosines.csv")
    low = min((row["cosine"] for row in rows), default=0.0)
    names = {"labels": "(a) labels 0 to s", "rotation": "(b) rotated by 36 s", "label shift": "(c) labels + s"}
    names |= {"domain": "(d) MNIST, Fashion-MNIST"}
    grid: Grid = [
        [
            Panel(title, "s", f"Psi: {psi}\ns", matrix=HeatMap(_square(rows, panel, psi), low, 1.0, "cosine"))
            for panel, title in names.items()
        ]
        for psi in dict.fromkeys(row["psi"] for row in rows)
    ]
    kinds = list(dict.fromkeys(row["psi"] for row in rows))
    ranges = {psi: [pair for panel in names for pair in _ranges(rows, panel, psi)] for psi in kinds}
    lines = [
        ["range of the cosines of two sets", *(f"by {psi}" for psi in kinds)],
        ["---"] * (1 + len(kinds)),
        *([pair[0], *(ranges[psi][k][1] for psi in kinds)] for k, pair in enumerate(ranges[kinds[0]] if kinds else ())),
    ]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return _figure(
        "stocfl-2",
        "Figure 2: cosines of Psi of ten sets of images",
        "the cosine of two sets is larger the more labels they share, and the more similar their rotations, label "
        "shifts and domains are.",
        grid,
        f"{table}\n\nEach set has 600 images; the net is linear and untrained. We assume that in (a) set s has the "
        "labels 0 to s. In the upper row Psi is a gradient, as in the paper; in the lower row it is an update of 10 "
        "full-batch steps, as in the published code (C20).",
    )


def _square(rows: Sequence[Row], panel: str, psi: str) -> np.ndarray:
    """Returns the cosines of a panel as a symmetric matrix."""
    own = [row for row in rows if (row["panel"], row["psi"]) == (panel, psi)]
    size = 1 + max(row["j"] for row in own)
    values = np.full((size, size), np.nan)
    for row in own:
        values[row["i"], row["j"]] = values[row["j"], row["i"]] = row["cosine"]
    return values


def _ranges(rows: Sequence[Row], panel: str, psi: str) -> list[tuple[str, str]]:
    """Formats the range of the cosines for each kind of pair of image sets."""
    own = [row for row in rows if (row["panel"], row["psi"]) == (panel, psi) and row["i"] != row["j"]]
    kinds: dict[str, list[float]] = {}
    for row in own:
        kinds.setdefault(_kind(panel, row["i"], row["j"]), []).append(row["cosine"])
    return [(f"{panel}: {kind}", f"{min(values):.2f} to {max(values):.2f}") for kind, values in sorted(kinds.items())]


def _kind(panel: str, i: int, j: int) -> str:
    """Describes how two of the ten image sets are related."""
    if panel == "domain":
        return "one domain" if (i < 5) == (j < 5) else "two domains"
    if panel == "rotation":
        return "36 degrees" if min(j - i, 10 - (j - i)) == 1 else "72 to 180 degrees"
    if panel == "labels":
        return "one label more" if j - i == 1 else "several more"
    return "two shifts"


def _clients(folder: Path) -> MeasuredFigure:
    rows = _read(folder / "clients.csv")
    columns = [column for column in (rows[0] if rows else ()) if column.startswith("cluster_")]
    names = list(dict.fromkeys(row["data"] for row in rows))
    grid: Grid = (
        [[_map(name.capitalize(), "Psi", _select_rows(rows, "data", name), None) for name in names]] if rows else []
    )
    for column in columns:
        label = f"round {column.removeprefix('cluster_')}"
        grid.append([_map(name.capitalize(), label, _select_rows(rows, "data", name), column) for name in names])
    return _figure(
        "stocfl-6a",
        "Figure 6(a): clients and their clusters",
        "the groups of points in t-SNE maps of Psi are the true clusters, and so are the clusters that StoCFL finds "
        "within 40 rounds.",
        grid,
        "There are 400 clients (hybrid: 200), of which 10 % train per round; tau is 0.5, Psi is an update, the net is "
        "linear (seed 0). A cluster has the colour of the true cluster of most of its clients. If several clusters "
        "belong to the same true cluster, crosses mark the smaller ones.",
    )


def _map(title: str, label: str, rows: Sequence[Row], column: str | None) -> Panel:
    """Draws a map of clients, coloured by cluster if a column of clusters is given."""
    if column is None:
        return Panel(title, "", label, points=[_points(_CLIENT, rows)], bare=True)
    seen = [row for row in rows if row[column] >= 0]
    parts = [(_UNSEEN, [row for row in rows if row[column] < 0])]
    for name, clusters in _name_clusters(seen, column).items():
        parts.append((name, [row for row in seen if row[column] in clusters]))
    return Panel(title, "", label, points=[_points(name, part) for name, part in parts if part], bare=True)


def _name_clusters(rows: Sequence[Row], column: str) -> dict[str, list[int]]:
    """Names each cluster after the true cluster of most of its clients, so that its colour is the same in all rounds.

    If several have the same true cluster, the largest is named after it; the others are "smaller clusters".
    """
    pairs = Counter((row[column], row["truth"]) for row in rows)
    sizes = Counter(row[column] for row in rows)
    kind = {cluster: truth for (cluster, truth), _ in reversed(pairs.most_common())}
    named: dict[str, list[int]] = {}
    for cluster in sorted(sizes, key=lambda cluster: (-sizes[cluster], cluster)):
        name = _TRUE_CLUSTERS[kind[cluster]] if kind[cluster] < len(_TRUE_CLUSTERS) else _SMALLER
        named.setdefault(_SMALLER if name in named else name, []).append(cluster)
    return dict(sorted(named.items()))


def _points(name: str, rows: Sequence[Row]) -> Points:
    return Points(name, [row["x"] for row in rows], [row["y"] for row in rows])


def _rounds(folder: Path) -> MeasuredFigure:
    rows = [row for row in _read(folder / "rounds.csv") if row["psi"] == "update"]
    names = list(dict.fromkeys(row["data"] for row in rows))
    grid: Grid = []
    for label, value in _OVER_ROUNDS.items() if rows else ():
        grid.append([_over_rounds(name, label, value, _select_rows(rows, "data", name)) for name in names])
    ends = [row for row in rows if row["round"] == max(row["round"] for row in rows)]
    last = ", ".join(f"{name} {_least_and_greatest(_select_rows(ends, 'data', name), 'clusters')}" for name in names)
    return _figure(
        "stocfl-6b",
        "Figure 6(b): number of clusters and objective",
        "the number of clusters, and the value of Eq. 2, over the rounds.",
        grid,
        f"Lines are means over {len({row['seed'] for row in rows})} seeds; bands reach from minimum to maximum. As "
        "in the paper, each client that has not been sampled counts as a cluster; Eq. 2 covers only sampled clients. "
        f"After the last round {_least_and_greatest(ends, 'unobserved')} clients have not been sampled, and the others "
        f"form these numbers of clusters: {last}.",
        command=_OF_ROUNDS,
    )


def _least_and_greatest(rows: Sequence[Row], column: str) -> str:
    values = [row[column] for row in rows]
    return " to ".join(str(value) for value in dict.fromkeys((min(values, default=0), max(values, default=0))))


def _over_rounds(title: str, label: str, value: Callable[[Row], float], rows: Sequence[Row]) -> Panel:
    by_round: dict[int, list[float]] = {}
    for row in rows:
        by_round.setdefault(row["round"], []).append(value(row))
    values = list(by_round.values())
    line = Curve(label, list(by_round), list(map(fmean, values)), list(map(min, values)), list(map(max, values)))
    return Panel(title.capitalize(), "round", label, curves=[line])


def _taus(folder: Path) -> MeasuredFigure:
    clients, ends = _read(folder / "tau_clients.csv"), _read(folder / "taus.csv")
    columns = [column for column in (clients[0] if clients else ()) if column.startswith("cluster_")]
    grid: Grid = []
    for psi in dict.fromkeys(row["psi"] for row in ends):
        own = _select_rows(ends, "psi", psi)
        line = Curve(psi, [row["tau"] for row in own], [row["clusters"] for row in own])
        mapped = _select_rows(clients, "psi", psi)
        maps = [_map(f"tau {column.removeprefix('cluster_')}", f"Psi: {psi}", mapped, column) for column in columns]
        grid.append([*maps, Panel("clusters after 50 rounds", "tau", "clusters", curves=[line], limits=(0, 12))])
    found = ". ".join(
        f"With Psi a{'n' if psi == 'update' else ''} {psi}: {_describe_taus(_select_rows(ends, 'psi', psi))}"
        for psi in dict.fromkeys(r["psi"] for r in ends)
    )
    return _figure(
        "stocfl-7",
        "Figure 7: tau determines which clusters are separated",
        "clients have four groups of labels under two rotations. With tau above 0.76 StoCFL finds the eight clusters, "
        "and with tau below 0.67 the four groups of labels.",
        grid,
        "There are 400 clients, of which 10 % train in each of 50 rounds; the net is linear (seed 0). The two values "
        f"of tau in the maps were fixed before any run. {found}. The paper does not name the net; [claims](claims.md) "
        "has results with the net of 2,048 units of its tables.",
    )


def _describe_taus(rows: Sequence[Row]) -> str:
    """Describes the values of tau that give exactly the true clusters, and those that give the groups of labels."""
    return ", ".join(
        f"{what} with tau {_list_values([row['tau'] for row in rows], [row[column] == 1 for row in rows])}"
        for what, column in (("eight clusters", "ari"), ("four", "ari_labels"))
    )


def _list_values(taus: Sequence[float], chosen: Sequence[bool]) -> str:
    """Formats the chosen values; adjacent values become a range."""
    stretches = [
        [tau for tau, _ in run] for fits, run in groupby(zip(taus, chosen, strict=True), itemgetter(1)) if fits
    ]
    return ", ".join(f"{run[0]:g} to {run[-1]:g}" for run in stretches) or "none of the values tried"


def _select_rows(rows: Sequence[Row], column: str, value: object) -> list[Row]:
    return [row for row in rows if row[column] == value]


def _read(file: Path) -> list[Row]:
    return read_table(file) if file.exists() else []
