"""Draws StoCFL's Figures 2, 6 and 7 from what `benchmarks/stocfl_figures.py` measures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from lit_cfl.metric_names import Row
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
from lit_cfl.storage.csv_log import read_table

FOLDER = "stocfl"
COMMAND = "python benchmarks/stocfl_figures.py"
_COLOURS = (VERMILLION, BLUE, GREEN, ORANGE, SKY, PURPLE, BLACK, YELLOW)
_RANKED = [f"cluster {rank}" for rank in range(1, len(_COLOURS) + 1)]
_SMALLER, _UNSEEN, _CLIENT = "smaller clusters", "not sampled yet", "a client"
_STYLES = {
    **{name: Style(colour, marker=".", size=2.5) for name, colour in zip(_RANKED, _COLOURS, strict=True)},
    _SMALLER: Style("#555555", marker="x", size=2.5),
    _UNSEEN: Style("#bbbbbb", marker=".", size=2),
    _CLIENT: Style("#777777", marker=".", size=2),
    "clusters": Style(BLUE),
    "objective": Style(VERMILLION),
    "gradient": Style(BLUE),
    "update": Style(VERMILLION),
}
Grid = list[list[Panel | None]]


@dataclass(frozen=True)
class MeasuredFigure:
    """A figure from measurements.

    Args:
        name: of its file.
        title, shows: what it is about, and what the paper's shows.
        grid: its panels; empty without the measurements.
        notes: below the picture.
        styles: of what it shows.
    """

    name: str
    title: str
    shows: str
    grid: Grid
    notes: str
    styles: Mapping[str, Style]


def stocfl_figures(folder: Path) -> list[MeasuredFigure]:
    """Reads the measurements in a folder of reproductions."""
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
    ranges = "; ".join(_range(rows, panel, "update") for panel in names)
    return MeasuredFigure(
        "stocfl-2",
        "Figure 2: cosines of Psi of ten sets of images",
        "sets whose distributions are alike have a larger cosine: with more labels in common, a smaller rotation, the "
        "same shift of the labels, the same domain.",
        grid,
        "600 images a set, a linear net at its start. Psi is the paper's gradient above, the published code's update "
        f"(10 full-batch steps) below (C20). Cosines of two sets by updates: {ranges}.",
        _STYLES,
    )


def _square(rows: Sequence[Row], panel: str, psi: str) -> np.ndarray:
    own = [row for row in rows if (row["panel"], row["psi"]) == (panel, psi)]
    size = 1 + max(row["j"] for row in own)
    values = np.full((size, size), np.nan)
    for row in own:
        values[row["i"], row["j"]] = values[row["j"], row["i"]] = row["cosine"]
    return values


def _range(rows: Sequence[Row], panel: str, psi: str) -> str:
    """Says between which values the cosines of two sets lie, by what they have in common where that is clear."""
    own = [row for row in rows if (row["panel"], row["psi"]) == (panel, psi) and row["i"] != row["j"]]
    kinds: dict[str, list[float]] = {}
    for row in own:
        kinds.setdefault(_kind(panel, row["i"], row["j"]), []).append(row["cosine"])
    told = [f"{kind} {min(values):.2f} to {max(values):.2f}" for kind, values in sorted(kinds.items())]
    return f"{panel}: {', '.join(told)}"


def _kind(panel: str, i: int, j: int) -> str:
    """What two sets have in common."""
    apart = min(j - i, 10 - (j - i))
    if panel == "domain":
        return "of one domain" if (i < 5) == (j < 5) else "of two"
    if panel == "rotation":
        return "36 degrees apart" if apart == 1 else "more"
    if panel == "labels":
        return "one label more" if j - i == 1 else "several more"
    return "any two shifts"


def _clients(folder: Path) -> MeasuredFigure:
    rows = _read(folder / "clients.csv")
    columns = [column for column in (rows[0] if rows else ()) if column.startswith("cluster_")]
    names = list(dict.fromkeys(row["data"] for row in rows))
    grid: Grid = [[_map(name.capitalize(), "Psi", _of(rows, "data", name), None) for name in names]] if rows else []
    for column in columns:
        label = f"round {column.removeprefix('cluster_')}"
        grid.append([_map(name.capitalize(), label, _of(rows, "data", name), column) for name in names])
    return MeasuredFigure(
        "stocfl-6a",
        "Figure 6(a): clients and their clusters",
        "t-SNE maps of Psi fall into the true clusters, and so do the clusters that StoCFL finds within 40 rounds.",
        grid,
        "400 clients (hybrid: 200), 10 % a round, tau 0.5, seed 0. A colour is the largest cluster of a true one.",
        _STYLES,
    )


def _map(title: str, label: str, rows: Sequence[Row], column: str | None) -> Panel:
    """A map of clients; with a column, coloured by its clusters."""
    if column is None:
        return Panel(title, "", label, points=[_points(_CLIENT, rows)], bare=True)
    seen = [row for row in rows if row[column] >= 0]
    ranked = _ranked(seen, column)
    parts = [(_UNSEEN, [row for row in rows if row[column] < 0])]
    parts += [(name, _of(rows, column, cluster)) for name, cluster in zip(_RANKED, ranked, strict=False)]
    parts += [(_SMALLER, [row for row in seen if row[column] in ranked[len(_RANKED) :]])]
    return Panel(title, "", label, points=[_points(name, part) for name, part in parts if part], bare=True)


def _ranked(rows: Sequence[Row], column: str) -> list[int]:
    """Orders clusters: the largest of each true one, which so has one colour in all rounds, then the others by size."""
    pairs = Counter((row[column], row["truth"]) for row in rows)
    sizes = Counter(row[column] for row in rows)
    kind = {
        cluster: max((truth for c, truth in pairs if c == cluster), key=lambda t: pairs[cluster, t])
        for cluster in sizes
    }
    by_size = sorted(sizes, key=lambda cluster: (-sizes[cluster], cluster))
    leading = {kind[cluster]: cluster for cluster in reversed(by_size)}
    first = [leading[truth] for truth in sorted(leading)]
    return first + [cluster for cluster in by_size if cluster not in first]


def _points(name: str, rows: Sequence[Row]) -> Points:
    return Points(name, [row["x"] for row in rows], [row["y"] for row in rows])


def _rounds(folder: Path) -> MeasuredFigure:
    rows = _read(folder / "rounds.csv")
    names = list(dict.fromkeys(row["data"] for row in rows))
    grid: Grid = []
    for column, label in (("clusters", "clusters"), ("objective", "Eq. 2")) if rows else ():
        grid.append([_over_rounds(name, column, label, _of(rows, "data", name)) for name in names])
    seeds = len({row["seed"] for row in rows})
    return MeasuredFigure(
        "stocfl-6b",
        "Figure 6(b): number of clusters and objective",
        "the number of clusters falls to the true one (4, hybrid 2), and Eq. 2 falls with it.",
        grid,
        f"Means over {seeds} seeds; bands reach from the least to the greatest. Clients not sampled yet, each "
        "a cluster of its own in the paper's count, are left out of both.",
        _STYLES,
    )


def _over_rounds(title: str, column: str, label: str, rows: Sequence[Row]) -> Panel:
    by_round: dict[int, list[float]] = {}
    for row in rows:
        by_round.setdefault(row["round"], []).append(row[column])
    values = list(by_round.values())
    line = Curve(column, list(by_round), list(map(fmean, values)), list(map(min, values)), list(map(max, values)))
    return Panel(title.capitalize(), "round", label, curves=[line])


def _taus(folder: Path) -> MeasuredFigure:
    clients, ends = _read(folder / "tau_clients.csv"), _read(folder / "taus.csv")
    columns = [column for column in (clients[0] if clients else ()) if column.startswith("cluster_")]
    grid: Grid = []
    for psi in dict.fromkeys(row["psi"] for row in ends):
        own = _of(ends, "psi", psi)
        line = Curve(psi, [row["tau"] for row in own], [row["clusters"] for row in own])
        mapped = _of(clients, "psi", psi)
        maps = [_map(f"tau {column.removeprefix('cluster_')}", f"Psi: {psi}", mapped, column) for column in columns]
        grid.append([*maps, Panel("clusters after 50 rounds", "tau", "clusters", curves=[line], limits=(0, 12))])
    found = ". ".join(f"By {psi}: {_told(_of(ends, 'psi', psi))}" for psi in dict.fromkeys(r["psi"] for r in ends))
    return MeasuredFigure(
        "stocfl-7",
        "Figure 7: tau decides what is told apart",
        "two rotations of four groups of labels: tau above 0.76 gives the eight clusters, below 0.67 the four groups.",
        grid,
        f"400 clients, 10 % a round, 50 rounds, seed 0; both values of tau were fixed before any run. {found}.",
        _STYLES,
    )


def _told(rows: Sequence[Row]) -> str:
    """Says which values of tau give exactly the true clusters, and which the groups of labels."""
    exact, labels = ([row["tau"] for row in rows if row[column] == 1] for column in ("ari", "ari_labels"))
    parts = [f"{what} with tau {_values(taus)}" for what, taus in (("eight clusters", exact), ("four", labels))]
    return ", ".join(parts)


def _values(taus: Sequence[float]) -> str:
    return f"{min(taus):g} to {max(taus):g}" if taus else "none of the values tried"


def _of(rows: Sequence[Row], column: str, value: object) -> list[Row]:
    return [row for row in rows if row[column] == value]


def _read(file: Path) -> list[Row]:
    return read_table(file) if file.exists() else []
