"""Figures of a run's clusters: memberships over the rounds, scores of the clients, and sizes."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from matplotlib.colors import to_hex

from lit_cfl.pictures.cells import CellGrid
from lit_cfl.pictures.colours import MAX_COLOURS, colours_of, matched
from lit_cfl.pictures.panels import Bars, Panel, Style
from lit_cfl.report.blocks import Cell, Figure, Table
from lit_cfl.report.over_rounds import cut_note, thin
from lit_cfl.report.run_files import RunFiles, known
from lit_cfl.report.sample import said, sample
from lit_cfl.scores import Score

_MARKERS = ("o", "^", "s", "D", "v", "P", "X")
_MOST_COLUMNS = 400  # rounds in the figures of memberships, all runs of a page together; 40 at least in each
_MOST_VALUES = 250  # different values in it: a cell is a byte
_MOST_BINS = 30
_MOST_ROWS = 500
_NONE = "not assigned"


def hex_of(cluster: int) -> str:
    """Returns the colour of a cluster's number as #rrggbb; grey for -1."""
    return to_hex(colours_of(np.array(cluster)).tolist())


def cluster_styles(match: Mapping[int, int]) -> dict[str, Style]:
    """Returns the looks of clusters by their names: colours of the true clusters that they match, and markers.

    Args:
        match: the number whose colour each cluster takes; see `matched`.
    """
    looks = {
        f"cluster {k}": Style(hex_of(taken), marker=_MARKERS[taken % len(_MARKERS)], size=4.2)
        for k, taken in sorted(match.items())
    }
    return looks | {_NONE: Style(hex_of(-1), marker="o")}


def name_of(cluster: object) -> str:
    """Names a cluster by its number."""
    number = known(cluster)
    return _NONE if number is None or number < 0 else f"cluster {number:g}"


def match_of(run: RunFiles, found: np.ndarray, true: np.ndarray) -> dict[int, int]:
    """Matches clusters of a run with the true clusters whose colours they take, the same in all of its figures.

    Args:
        found: clusters of some clients.
        true: theirs, which count where the memberships of all rounds are not known yet.
    """
    known_rounds = run.memberships
    if known_rounds is None:
        return matched(found, true)
    match = matched(known_rounds["cluster"], known_rounds["true_cluster"])
    return {int(cluster): match.get(int(cluster), int(cluster)) for cluster in np.unique(found[found >= 0])}


def memberships(run: RunFiles, name: str, runs: int) -> Figure | None:
    """Draws the cluster of each client over the rounds, beside its true cluster; None where it is not known.

    Args:
        runs: that share the page.
    """
    found = run.memberships
    if found is None or not found["cluster"].size or (found["cluster"] < 0).all():
        return None
    cluster, true = found["cluster"], found["true_cluster"]
    match = matched(cluster, true)
    if not 1 < len(np.unique(cluster)) <= _MOST_VALUES - len(np.unique(true)):
        return None  # one model for all, or one for each
    shown = sample(true if (true >= 0).any() else cluster[-1], run.seed or 0)
    order = shown[np.lexsort((cluster[-1, shown], true[shown]))]
    kept = thin(len(cluster), max(40, _MOST_COLUMNS // runs))
    cells = cluster[kept][:, order].T
    numbers = [int(number) for number in np.unique(cluster[kept])]
    truths = [int(number) for number in np.unique(true)] if (true >= 0).any() else []
    names = [name_of(number) for number in numbers]
    colours = [hex_of(match.get(number, -1)) for number in numbers]
    marks = ["-" if number < 0 else str(number) for number in (*numbers, *truths)]
    names += ["unknown" if number < 0 else f"true cluster {number}" for number in truths]
    colours += [hex_of(number) for number in truths]
    side = np.searchsorted(truths, true[order]) + len(numbers) if truths else None
    grid = CellGrid(
        np.searchsorted(numbers, cells).astype(np.uint8),
        None if side is None else side.astype(np.uint8),
        names,
        colours,
        marks,
        [f"client {client}" for client in order],
        [str(found["rounds"][k]) for k in kept],
        "round",
        "clients, by true cluster" if truths else "clients",
    )
    rounds = found["rounds"]
    fewer = f" {len(kept)} of {len(rounds)} rounds." if len(kept) < len(rounds) else ""
    beside = " The narrow column shows the true clusters." if truths else ""
    changed = (cluster[1:] != cluster[:-1]) & (cluster[1:] >= 0) & (cluster[:-1] >= 0)
    moved = int(changed.any(0).sum())
    return Figure(
        f"{name}-memberships",
        "Clusters of the clients over the rounds",
        grid,
        f"A row is a client, a colour a cluster: that of the true cluster it matches best.{beside} On the "
        f"right: the numbers of the clusters at the end.{said(len(order), len(true))}{fewer}",
        f"Coloured cells, a row a client and a column a round, {rounds[0]} to {rounds[-1]}: {len(true)} clients in "
        f"{len(np.unique(cluster[-1][cluster[-1] >= 0]))} clusters at the end; {moved} changed cluster on the way.",
        table=_moves(cluster, rounds, true, order),
        height=440,
    )


def _moves(cluster: np.ndarray, rounds: np.ndarray, true: np.ndarray, order: np.ndarray) -> Table:
    rows = []
    for client in order:
        own = cluster[:, client]
        changes = [0, *(np.flatnonzero(own[1:] != own[:-1]) + 1)]
        path = ", ".join(f"{'-' if own[k] < 0 else own[k]} from round {rounds[k]}" for k in changes)
        rows.append([int(client), None if true[client] < 0 else int(true[client]), path])
    return Table("Clusters over the rounds: values", ["client", "true cluster", "found cluster"], rows, folded=True)


def histogram(run: RunFiles, name: str, score: Score) -> Figure | None:
    """Draws how many clients have which score, stacked by cluster; None where nobody has one."""
    found = [
        (value, -1 if (own := known(row.get("cluster"))) is None else int(own), row.get("true_cluster"))
        for row in run.table("clients")
        if (value := known(row.get(score.name))) is not None
    ]
    if not found:
        return None
    values, cluster = np.array([one[0] for one in found]), np.array([one[1] for one in found])
    true = np.array([-1 if (truth := known(one[2])) is None else int(truth) for one in found])
    few = len(np.unique(cluster)) <= MAX_COLOURS
    stacks = cluster if few else np.zeros_like(cluster)
    match = match_of(run, stacks, true)
    low, high = (0.0, 1.0) if score.name == "accuracy" else (float(values.min()), float(values.max()) + 1e-9)
    bins = min(_MOST_BINS, max(10, len(values) // 4))
    edges, base, bars = np.linspace(low, high, bins + 1), np.zeros(bins), []
    for number in np.unique(stacks):
        height = np.histogram(values[stacks == number], edges)[0]
        label = name_of(number) if few else "clients"
        bars.append(Bars(label, edges[:-1].tolist(), (high - low) / bins, height.tolist(), base.tolist()))
        base = base + height
    stacked = ", stacked by cluster" if len(bars) > 1 else ""
    rows = [_spread(name_of(number), values[cluster == number]) for number in np.unique(cluster)[:_MOST_ROWS]]
    styles = cluster_styles(match) if few else {"clients": Style(hex_of(0))}
    return Figure(
        f"{name}-histogram",
        f"Test {score.title} of the clients",
        Panel("", f"test {score.title} of a client", "clients", bars=bars),
        f"How many clients have which test {score.title} after the last round{stacked}.",
        f"Histogram of the test {score.title} of {len(values)} clients: from {values.min():.3f} to "
        f"{values.max():.3f}, median {np.median(values):.3f}.",
        styles,
        Table(
            "Scores by cluster: values",
            ["", "clients", "mean", "least", "median", "greatest"],
            rows,
            folded=True,
            note=cut_note(len(rows), len(np.unique(cluster)), "clusters"),
        ),
    )


def _spread(name: str, values: np.ndarray) -> list[Cell]:
    figures = (values.mean(), values.min(), np.median(values), values.max())
    return [name, len(values), *(f"{figure:.3f}" for figure in figures)]


def sizes(run: RunFiles, name: str) -> Figure | None:
    """Draws how many clients each cluster has over the rounds; None with one cluster, or where it is not known."""
    rows = [row for row in run.table("clusters") if known(row.get("size")) is not None]
    rounds = sorted({int(row["round"]) for row in rows})
    clusters = sorted({int(row["cluster"]) for row in rows if known(row.get("cluster")) is not None})
    if not 1 < len(clusters) <= MAX_COLOURS or not rounds:
        return None
    kept = [rounds[k] for k in thin(len(rounds), 100)]
    by_cell = {(int(row["round"]), int(row["cluster"])): float(row["size"]) for row in rows}
    step = min((b - a for a, b in pairwise(kept)), default=1)
    base, bars = np.zeros(len(kept)), []
    for cluster in clusters:
        height = np.array([by_cell.get((number, cluster), 0.0) for number in kept])
        left = [number - step / 2 for number in kept]
        bars.append(Bars(name_of(cluster), left, step, height.tolist(), base.tolist()))
        base = base + height
    numbers = np.array(clusters)
    match = match_of(run, numbers, np.full_like(numbers, -1))
    table_rows: list[list[Cell]] = [
        [n, *(f"{by_cell.get((n, k), 0):g}" for k in clusters)] for n in (kept[k] for k in thin(len(kept), 60))
    ]
    last = ", ".join(f"{name_of(k)} {by_cell.get((kept[-1], k), 0):g}" for k in clusters)
    return Figure(
        f"{name}-sizes",
        "Sizes of the clusters",
        Panel("", "round", "clients that were scored", bars=bars),
        "How many clients were scored in each cluster.",
        f"Stacked bars over {len(kept)} rounds; in round {kept[-1]}: {last}.",
        cluster_styles(match),
        Table(
            "Sizes: values",
            ["round", *map(name_of, clusters)],
            table_rows,
            folded=True,
            note=cut_note(len(table_rows), len(rounds), "rounds"),
        ),
    )
