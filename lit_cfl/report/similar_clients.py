"""Figures of how alike clients are: the matrix of their similarity, and their map."""

from collections.abc import Mapping, Sequence

import numpy as np

from lit_cfl.pictures.cells import Frame, Matrix, in_8_bits
from lit_cfl.pictures.panels import Panel, Points
from lit_cfl.report.blocks import Cell, Figure, Table
from lit_cfl.report.clusters import cluster_styles, match_of, name_of
from lit_cfl.report.data_at_hand import DataAtHand
from lit_cfl.report.over_rounds import cut_note, thin
from lit_cfl.report.run_files import RunFiles, known
from lit_cfl.report.sample import said, sample
from lit_cfl.scores import Score

_MOST_FRAMES = 20  # matrices, all runs of a page together; one at least of each

_MOST_BLOCKS = 30  # clusters in the table of their mean similarity


def similarity(run: RunFiles, name: str, runs: int) -> Figure | None:
    """Draws the similarity of pairs of clients, in the rounds that compared them; None where there is no snapshot.

    Args:
        runs: that share the page.
    """
    numbers = run.snapshots
    kept = [numbers[k] for k in thin(len(numbers), max(1, _MOST_FRAMES // runs))]
    snapshots = {number: found for number in kept if (found := run.snapshot(number)) is not None}
    if not snapshots:
        return None
    chosen = {number: sample(one["cluster"], run.seed or 0) for number, one in snapshots.items()}
    values = {
        number: one["similarity"][np.ix_(chosen[number], chosen[number])].astype(np.float32)
        for number, one in snapshots.items()
    }
    others = np.concatenate([matrix[~np.eye(len(matrix), dtype=bool)] for matrix in values.values()])
    others = others[np.isfinite(others)]
    if not len(others):
        return None
    low, high = float(others.min()), float(others.max())
    shown = tuple(float(edge) for edge in np.quantile(others, [0.01, 0.99]))
    frames = [_frame(number, one, chosen[number], values[number], (low, high)) for number, one in snapshots.items()]
    counts = sorted({(len(chosen[number]), int(one["compared"])) for number, one in snapshots.items()})
    some = next((said(few, all_) for few, all_ in reversed(counts) if few < all_), "")
    fewer = f" {len(kept)} of {len(numbers)} rounds." if len(kept) < len(numbers) else ""
    rounds = ", ".join(map(str, snapshots))
    said_rounds = f"round {rounds}" if len(snapshots) == 1 else f"rounds {rounds}"
    within, between = _means(snapshots)
    apart = ""
    if between is not None:
        both = "" if within is None else f"within clusters {within:.2f}, "
        apart = f" Mean cosine {both}between them {between:.2f}."
    return Figure(
        f"{name}-similarity",
        "How alike clients are",
        Matrix(frames, low, high, (shown[0], shown[1]), "cosine similarity", "clients, by cluster"),
        f"Cosine similarity of what the algorithm compares, a cell a pair of clients, ordered by found and then by "
        f"true cluster.{some}{fewer}",
        f"Matrix of similarities between {len(frames[-1].labels)} clients, {said_rounds}.{apart}",
        table=_blocks(snapshots),
        height=460,
    )


def _frame(
    number: int, one: Mapping[str, np.ndarray], places: np.ndarray, values: np.ndarray, edges: tuple[float, float]
) -> Frame:
    cluster, true = one["cluster"][places], one["true_cluster"][places]
    order = np.lexsort((true, cluster))
    return Frame(
        f"round {number}",
        in_8_bits(values[np.ix_(order, order)], *edges),
        [f"client {client}" for client in one["clients"][places][order]],
        ["?" if number < 0 else str(number) for number in cluster[order]],
    )


def _means(snapshots: Mapping[int, Mapping[str, np.ndarray]]) -> tuple[float | None, float | None]:
    """Computes the mean similarity within clusters and between them, in the last snapshot."""
    last = list(snapshots.values())[-1]
    same = last["cluster"][:, None] == last["cluster"][None]
    apart, matrix = ~np.eye(len(same), dtype=bool), last["similarity"].astype(np.float32)
    parts = [matrix[where & apart & np.isfinite(matrix)] for where in (same, ~same)]
    within, between = (float(part.mean()) if part.size else None for part in parts)
    return within, between


def _blocks(snapshots: Mapping[int, Mapping[str, np.ndarray]]) -> Table:
    """Lists the mean similarity of each pair of clusters in the last snapshot."""
    number, last = list(snapshots.items())[-1]
    everyone = np.unique(last["cluster"])
    clusters = everyone[:_MOST_BLOCKS]
    matrix = last["similarity"].astype(np.float32)
    matrix[np.eye(len(matrix), dtype=bool)] = np.nan
    rows = []
    for one in clusters:
        cells = (matrix[np.ix_(last["cluster"] == one, last["cluster"] == other)] for other in clusters)
        means = [float(np.nanmean(cell)) if np.isfinite(cell).any() else None for cell in cells]
        rows.append([name_of(one), *(None if mean is None else f"{mean:.3f}" for mean in means)])
    head = ["", *map(name_of, clusters)]
    title, note = (
        f"Mean similarity of clusters in round {number}: values",
        cut_note(len(rows), len(everyone), "clusters"),
    )
    return Table(title, head, rows, folded=True, note=note)


def client_map(run: RunFiles, name: str, score: Score, data: DataAtHand) -> Figure | None:
    """Draws the compared clients in two dimensions by their clusters; None where there is no snapshot."""
    for number in reversed(run.snapshots):
        snapshot = run.snapshot(number)
        if snapshot is not None:
            break
    else:
        return None
    cluster, true = snapshot["cluster"], snapshot["true_cluster"]
    match = match_of(run, cluster, true)
    shown = sample(cluster, run.seed or 0)
    about = {int(row["client"]): row for row in run.table("clients") if known(row.get("client")) is not None}
    plane = snapshot["projection"].astype(float)
    shown = shown[np.isfinite(plane[shown]).all(1)]
    if not len(shown):
        return None
    points, rows = [], []
    for value in np.unique(cluster[shown]):
        places = shown[cluster[shown] == value]
        lines = [_about(snapshot, place, about, score, data) for place in places]
        rows += lines
        x, y = plane[places].T.tolist()
        points.append(Points(name_of(value), x, y, notes=["\n".join(_words(line, score)) for line in lines]))
    head = ["client", "cluster", "true cluster", "training examples", score.title, "labels"]
    kept = [k for k in range(len(head)) if any(row[k] is not None for row in rows)]
    return Figure(
        f"{name}-map",
        "Map of the clients",
        Panel(f"round {number}", "first principal coordinate", "second principal coordinate", points=points),
        f"Clients that are alike are close (classical scaling of the similarity in round {number}); colours and "
        f"markers are the found clusters.{said(len(shown), int(snapshot['compared']))}",
        f"Scatter plot of {len(shown)} clients in {len(points)} clusters by their similarity in round {number}.",
        cluster_styles(match),
        Table("Clients: values", [head[k] for k in kept], [[row[k] for k in kept] for row in rows], folded=True),
        height=460,
    )


def _about(
    snapshot: Mapping[str, np.ndarray],
    place: int,
    about: Mapping[int, Mapping[str, object]],
    score: Score,
    data: DataAtHand,
) -> list[Cell]:
    client = int(snapshot["clients"][place])
    row = about.get(client, {})
    value, true = known(row.get(score.name)), int(snapshot["true_cluster"][place])
    examples = known(row.get("n_train"))
    return [
        client,
        int(snapshot["cluster"][place]),
        None if true < 0 else true,
        None if examples is None else int(examples),
        None if value is None else f"{value:.3f}",
        data.labels_of(client),
    ]


def _words(line: Sequence[object], score: Score) -> list[str]:
    names = ("client", "cluster", "true cluster", "training examples", score.title, "labels")
    return [f"{name} {value}" for name, value in zip(names, line, strict=True) if value is not None]
