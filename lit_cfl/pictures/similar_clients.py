"""Figures of client similarity: its matrix, and a map of the clients."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lit_cfl.pictures.colours import cluster_styles, name_of, true_name_of
from lit_cfl.pictures.figure import Figure, Table, cut_note
from lit_cfl.pictures.panels import HeatMap, Note, Panel, Points
from lit_cfl.pictures.sample import MOST_CLIENTS, describe_sample, sample

Snapshot = Mapping[str, np.ndarray]  # content of `snapshots/<round>.npz`
MOST_COMPARED = 200  # maximum number of clients in a matrix
_MOST_BLOCKS = 30  # maximum number of clusters in the table of their mean similarity


def similarity(snapshots: Mapping[int, Snapshot], skipped: int = 0, most_clients: int = MOST_COMPARED) -> Figure | None:
    """Draws the similarity of pairs of clients, each round as a state of the figure; None if no pair was compared.

    Args:
        snapshots: Snapshots by round, one or more.
        skipped: Number of rounds whose snapshot is left out.
        most_clients: Maximum number of clients in a matrix; of more, a sample is drawn.
    """
    chosen = {number: sample(one["cluster"], most_clients) for number, one in snapshots.items()}
    values = {number: one["similarity"][np.ix_(*2 * [chosen[number]])] for number, one in snapshots.items()}
    others = np.concatenate([matrix[~np.eye(len(matrix), dtype=bool)] for matrix in values.values()])
    others = others[np.isfinite(others)].astype(np.float32)
    if not len(others):
        return None
    # without the diagonal, on which each client is compared with itself
    low, high = (float(edge) for edge in np.quantile(others, [0.01, 0.99]))
    frames = {
        f"round {k}": _panel(f"round {k}", one, chosen[k], values[k], (low, high)) for k, one in snapshots.items()
    }
    counts = sorted({(len(chosen[number]), int(one["compared"])) for number, one in snapshots.items()})
    some = next((describe_sample(few, all_) for few, all_ in reversed(counts) if few < all_), "")
    fewer = f" {len(snapshots)} of {len(snapshots) + skipped} rounds." if skipped else ""
    is_known = any((one["true_cluster"][chosen[number]] >= 0).any() for number, one in snapshots.items())
    rounds = f"round{'' if len(snapshots) == 1 else 's'} {', '.join(map(str, snapshots))}"
    within, between = _means(snapshots)
    apart = ""
    if between is not None:
        both = "" if within is None else f"within clusters {within:.2f}, "
        apart = f" Mean cosine {both}between them {between:.2f}."
    return Figure(
        "similarity",
        "How alike clients are",
        [[list(frames.values())[-1]]],
        "Cosine similarity of what the algorithm compares, one cell per pair of clients, ordered by found"
        f"{' and then by true' if is_known else ''} cluster.{some}{fewer}",
        f"Matrix of similarities between {len(list(chosen.values())[-1])} clients, {rounds}.{apart}",
        table=_blocks(snapshots),
        height=2.8,
        frames=frames if len(frames) > 1 else {},
    )


def _panel(title: str, one: Snapshot, places: np.ndarray, values: np.ndarray, edges: tuple[float, float]) -> Panel:
    cluster, true = one["cluster"][places], one["true_cluster"][places]
    order = np.lexsort((true, cluster))
    groups = ["?" if number < 0 else str(number) for number in cluster[order]]
    matrix = HeatMap(values[np.ix_(order, order)].astype(np.float32), *edges, "cosine similarity", groups)
    return Panel(title, "clients, by cluster", "found cluster", matrix=matrix)


def _means(snapshots: Mapping[int, Snapshot]) -> tuple[float | None, float | None]:
    """Computes the mean similarity within clusters and between them, in the last snapshot."""
    last = list(snapshots.values())[-1]
    same = last["cluster"][:, None] == last["cluster"][None]
    apart, matrix = ~np.eye(len(same), dtype=bool), last["similarity"].astype(np.float32)
    parts = [matrix[where & apart & np.isfinite(matrix)] for where in (same, ~same)]
    within, between = (float(part.mean()) if part.size else None for part in parts)
    return within, between


def _blocks(snapshots: Mapping[int, Snapshot]) -> Table:
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
    head, note = ["", *map(name_of, clusters)], cut_note(len(rows), len(everyone), "clusters")
    return Table(f"Mean similarity of clusters in round {number}: values", head, rows, folded=True, note=note)


def client_map(
    round: int,
    snapshot: Snapshot,
    match: Mapping[int, int],
    about: Callable[[int], Note] = lambda client: {},
    most_clients: int = MOST_CLIENTS,
    true_names: Sequence[str] = (),
) -> Figure | None:
    """Draws the compared clients in two dimensions, by found cluster and, if known, by true cluster.

    Args:
        round: Round of the snapshot.
        snapshot: Snapshot of one client or more.
        match: Colour number of each found cluster.
        about: Returns further facts about a client by name; None = unknown.
        most_clients: Maximum number of clients.
        true_names: Names of the true clusters 0, 1, ...; empty = none.
    """
    plane = snapshot["projection"].astype(float)
    shown = sample(snapshot["cluster"], most_clients)
    shown = shown[np.isfinite(plane[shown]).all(1)]
    if not len(shown):
        return None
    clients, cluster, true = (snapshot[key][shown].tolist() for key in ("clients", "cluster", "true_cluster"))
    notes = [
        {"client": client, "cluster": own, "true cluster": None if truth < 0 else truth} | dict(about(client))
        for client, own, truth in zip(clients, cluster, true, strict=True)
    ]
    panels: list[Panel | None] = [_map("found clusters", plane[shown], list(map(name_of, cluster)), notes)]
    if max(true) >= 0:
        panels.append(_map("true clusters", plane[shown], list(map(true_name_of, true)), notes))
    return Figure(
        "map",
        f"Map of the clients in round {round}",
        [panels],
        f"Clients that are alike are close (classical scaling of the similarity in round {round}); colours and "
        f"markers are the clusters.{describe_sample(len(shown), int(snapshot['compared']))}",
        f"Scatter plot of {len(shown)} clients in {len(set(cluster))} clusters by their similarity in round {round}.",
        cluster_styles(cluster, match, true, true_names, 4.2 if len(shown) < 200 else 2.5),
        height=2.1 if len(panels) > 1 else 2.8,
    )


def _map(title: str, plane: np.ndarray, names: list[str], notes: Sequence[Note]) -> Panel:
    points = []
    for name in sorted(set(names)):
        mine = [k for k, own in enumerate(names) if own == name]
        x, y = plane[mine].T.tolist()
        points.append(Points(name, x, y, notes=[notes[k] for k in mine]))
    return Panel(title, "first principal coordinate", "second principal coordinate", points=points, bare=True)
