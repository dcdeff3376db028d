"""All figures of a run, drawn from its files: by the run itself, and for its page."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lit_cfl.errors import count_noun
from lit_cfl.metric_names import Row
from lit_cfl.pictures.colours import MAX_COLOURS, cluster_styles, match_colours, name_of, true_name_of
from lit_cfl.pictures.curves import learning_curve
from lit_cfl.pictures.figure import HEIGHT, Figure, finite_number, thin
from lit_cfl.pictures.panels import BLUE, ORANGE, SKY, Bars, Cells, Curve, HeatMap, Note, Panel, Points, Style
from lit_cfl.pictures.run_files import RunFiles
from lit_cfl.pictures.sample import describe_sample, sample
from lit_cfl.scores import ACCURACY

Snapshot = Mapping[str, np.ndarray]  # content of `snapshots/<round>.npz`; of one client or more
MOST_ROUNDS = 400  # maximum number of rounds in a figure of memberships
_MOST_COMPARED = 200  # maximum number of clients in a matrix of similarities
_MOST_CLUSTERS = 250
_MOST_BINS = 30
_NARROWEST = 50  # the last column of a figure of memberships has at least this part of its width
_MOST_BRANCHES = 60
_MOST_BARS = 90  # maximum number of bars in the timeline of shifts
_BRANCH = 0.22  # height in inches of a cluster's branch in the tree


@dataclass(frozen=True)
class Kind:
    """A figure that a run may have.

    Args:
        name: Name of the file, and the end of the anchor on a page.
        title: Name of the figure in messages.
        draw: Draws the figure with a maximum number of clients; None if it would show nothing.
        on_page: True to show the figure on the page, which has its own curves of all runs.
    """

    name: str
    title: str
    draw: Callable[[RunFiles, int], Figure | None]
    on_page: bool = True


# Clusters of the clients over the rounds


def memberships(run: RunFiles, most: int) -> Figure | None:
    """Draws each client's cluster over the rounds, next to its true cluster; None for too few or too many clusters."""
    if run.memberships is None:
        return None
    rounds, cluster, true_cluster = (run.memberships[name] for name in ("rounds", "cluster", "true_cluster"))
    numbers, truths = np.unique(cluster), np.unique(true_cluster) if (true_cluster >= 0).any() else np.empty(0, int)
    if not cluster.size or not 1 < (numbers >= 0).sum() <= _MOST_CLUSTERS or _each_its_own(cluster):
        return None  # no client has a model, all share one, or each has its own
    shown = sample(true_cluster if len(truths) else cluster[-1])
    order = shown[np.lexsort((cluster[-1, shown], true_cluster[shown]))]
    kept = thin(len(rounds), MOST_ROUNDS)
    cells = Cells(
        np.searchsorted(numbers, cluster[kept][:, order].T),
        [*map(name_of, numbers), *map(true_name_of, truths)],
        _starts(rounds[kept]),
        ["-" if number < 0 else str(number) for number in (*numbers, *truths)],
        np.searchsorted(truths, true_cluster[order]) + len(numbers) if len(truths) else None,
        "true",
    )
    colours = (
        " A cluster has the colour of the true cluster that most of its clients are in, if there is one. The narrow "
        "column shows the true clusters."
        if len(truths)
        else ""
    )
    many = f" Colours repeat every {MAX_COLOURS} clusters." if (numbers >= 0).sum() > MAX_COLOURS else ""
    without = " Clients that are not assigned have no model, or are newcomers." if (numbers < 0).any() else ""
    fewer = f" {len(kept)} of {len(rounds)} recorded rounds." if len(kept) < len(rounds) else ""
    assigned = cluster[-1][cluster[-1] >= 0]
    others = f", {cluster.shape[1] - len(assigned)} not assigned" if len(assigned) < cluster.shape[1] else ""
    changed = (cluster[1:] != cluster[:-1]) & (cluster[1:] >= 0) & (cluster[:-1] >= 0)
    return Figure(
        "memberships",
        "Clusters of the clients over the rounds",
        [[Panel("", "round", f"clients{', by true cluster' if len(truths) else ''}", cells=cells)]],
        f"Each row is a client.{colours} On the right: the numbers of the clusters at the end."
        f"{without}{many}{describe_sample(len(order), len(true_cluster))}{fewer}",
        f"Coloured cells, one row per client, rounds {rounds[0]} to {rounds[-1]}: "
        f"{len(assigned)} clients in {len(np.unique(assigned))} clusters at the end{others}; "
        f"{count_noun(int(changed.any(0).sum()), 'client')} changed to a cluster of another number in between.",
        cluster_styles(numbers, run.match, truths, run.true_names),
        height=2.6,
    )


def _each_its_own(cluster: np.ndarray) -> bool:
    """Returns whether no two clients ever share a model, as with Local."""
    return cluster.shape[1] > 1 and all(len(np.unique(row[row >= 0])) == (row >= 0).sum() for row in cluster)


def _starts(rounds: np.ndarray) -> list[float]:
    """Returns the columns' edges if each column begins with its round, so that a change is in the round that shows it.

    The last column has a fiftieth of the width at least.
    """
    end = max(rounds[-1] + 0.5, rounds[-1] - 0.5 + (rounds[-1] - rounds[0]) / _NARROWEST)
    return [*map(float, rounds - 0.5), float(end)]


# How alike clients are


def _of_snapshot(run: RunFiles, draw: Callable[[int, Snapshot], Figure | None]) -> Figure | None:
    """Draws the last readable snapshot; the caption says how many clients were compared, if not all."""
    found = run.last_snapshot
    figure = None if found is None else draw(*found)
    total = sum(not row.get("newcomer") for row in run.table("clients"))
    if found is None or figure is None or (compared := int(found[1]["compared"])) >= total:
        return figure
    text = f" In round {found[0]} the algorithm compared {compared} of the run's {total} clients."
    return replace(figure, caption=f"{figure.caption}{text}")


def similarity(run: RunFiles, most: int) -> Figure | None:
    """Draws the similarity of pairs of clients; None if no pair was compared."""
    return _of_snapshot(run, lambda round, snapshot: _matrix(round, snapshot, min(_MOST_COMPARED, most)))


def _matrix(round: int, snapshot: Snapshot, most: int) -> Figure | None:
    shown = sample(snapshot["cluster"], most)
    cluster, true = snapshot["cluster"][shown], snapshot["true_cluster"][shown]
    order = np.lexsort((true, cluster))
    values = snapshot["similarity"][np.ix_(shown[order], shown[order])].astype(np.float32)
    others = values[~np.eye(len(values), dtype=bool)]  # on the diagonal, each client is compared with itself
    others = others[np.isfinite(others)]
    if not len(others):
        return None
    low, high = (float(edge) for edge in np.quantile(others, [0.01, 0.99]))
    groups = ["?" if number < 0 else str(number) for number in cluster[order]]
    matrix = HeatMap(values, low, high, "cosine similarity", groups)
    by_true = " and then by true" if (true >= 0).any() else ""
    return Figure(
        "similarity",
        f"How alike clients are in round {round}",
        [[Panel("", "clients, by cluster", "found cluster", matrix=matrix)]],
        "Cosine similarity of what the algorithm compares, one cell per pair of clients, ordered by found"
        f"{by_true} cluster.{describe_sample(len(shown), int(snapshot['compared']))}",
        f"Matrix of similarities between {len(shown)} clients in round {round}.{_describe_means(snapshot)}",
        height=2.8,
    )


def _describe_means(snapshot: Snapshot) -> str:
    """Describes the mean similarity within clusters and between them; empty if there is one cluster."""
    same = snapshot["cluster"][:, None] == snapshot["cluster"][None]
    matrix = snapshot["similarity"].astype(np.float32)
    known = ~np.eye(len(same), dtype=bool) & np.isfinite(matrix)
    within, between = matrix[same & known], matrix[~same & known]
    both = f"within clusters {within.mean():.2f}, " if within.size else ""
    return f" Mean cosine {both}between them {between.mean():.2f}." if between.size else ""


def client_map(run: RunFiles, most: int) -> Figure | None:
    """Draws the compared clients in two dimensions, by found cluster and, if known, by true cluster."""
    known = ("name", "n_train", run.score.name)  # columns of clients.csv
    about = {int(row["client"]): {key: row.get(key) for key in known} for row in _rows_of(run, "clients")}
    return _of_snapshot(run, lambda round, snapshot: _map(round, snapshot, run, about, most))


def _map(round: int, snapshot: Snapshot, run: RunFiles, about: Mapping[int, Note], most: int) -> Figure | None:
    plane = snapshot["projection"].astype(float)
    shown = sample(snapshot["cluster"], most)
    shown = shown[np.isfinite(plane[shown]).all(1)]
    if not len(shown):
        return None
    clients, cluster, true = (snapshot[key][shown].tolist() for key in ("clients", "cluster", "true_cluster"))
    notes = [
        {"client": client, "cluster": own, "true cluster": None if truth < 0 else truth} | dict(about.get(client, {}))
        for client, own, truth in zip(clients, cluster, true, strict=True)
    ]
    # before the end of a run, a cluster may not have most of its clients in the true cluster that it has then
    here = match_colours(snapshot["cluster"], snapshot["true_cluster"])
    same = {number: truth for number, truth in run.match.items() if here.get(number) == truth}
    panels: list[Panel | None] = [_plane("found clusters", plane[shown], list(map(name_of, cluster)), notes)]
    if max(true) >= 0:
        panels.append(_plane("true clusters", plane[shown], list(map(true_name_of, true)), notes))
    return Figure(
        "map",
        f"Map of the clients in round {round}",
        [panels],
        f"Clients that are alike are close (classical scaling of the similarity in round {round}); colours and "
        f"markers are the clusters.{describe_sample(len(shown), int(snapshot['compared']))}",
        f"Scatter plot of {len(shown)} clients in {len(set(cluster))} clusters by their similarity in round {round}.",
        cluster_styles(cluster, run.match, true, run.true_names, 4.2 if len(shown) < 200 else 2.5, same),
        height=2.1 if len(panels) > 1 else 2.8,
    )


def _plane(title: str, plane: np.ndarray, names: list[str], notes: Sequence[Note]) -> Panel:
    points = []
    for name in sorted(set(names)):
        mine = [k for k, own in enumerate(names) if own == name]
        x, y = plane[mine].T.tolist()
        points.append(Points(name, x, y, notes=[notes[k] for k in mine]))
    return Panel(title, "first principal coordinate", "second principal coordinate", points=points, bare=True)


# Scores of the clients


def histogram(run: RunFiles, most: int) -> Figure | None:
    """Draws a histogram of the clients' final scores, stacked by cluster if clusters are few; None without a score."""
    values, cluster = run.final_scores
    values, cluster, score = values[np.isfinite(values)], cluster[np.isfinite(values)], run.score
    if not len(values):
        return None
    numbers = np.unique(cluster)
    few = 1 < len(numbers) <= MAX_COLOURS and len(numbers) < len(cluster)  # no colours if all or none share a model
    stacks = {name_of(number): cluster == number for number in numbers} if few else {"clients": cluster == cluster}
    low, high = (0.0, 1.0) if score == ACCURACY else (float(values.min()), float(values.max()))
    if low == high:  # bars of equal scores need a width
        low, high = low - (abs(low) / 20 or 0.5), high + (abs(high) / 20 or 0.5)
    edges = np.linspace(low, high, min(_MOST_BINS, max(10, len(values) // 4)) + 1)
    base, bars = np.zeros(len(edges) - 1, dtype=int), []
    for label, members in stacks.items():
        height = np.histogram(values[members], edges)[0]
        bars.append(Bars(label, edges[:-1].tolist(), float(edges[1] - low), height.tolist(), base.tolist()))
        base = base + height
    return Figure(
        "histogram",
        f"Test {score.title} of the clients",
        [[Panel("", f"test {score.title} of a client", "clients", bars=bars)]],
        f"Number of clients by test {score.title} after the last round"
        f"{', stacked by cluster' if len(bars) > 1 else ''}.",
        f"Histogram of the test {score.title} of {len(values)} clients: from {values.min():.3f} to "
        f"{values.max():.3f}, median {np.median(values):.3f}.",
        cluster_styles(numbers, run.match) if few else {"clients": Style(BLUE)},
    )


# Splits of clusters


def splits(run: RunFiles, most: int) -> Figure | None:
    """Draws the splits of clusters over the rounds; None without splits, or with too many clusters."""
    if run.memberships is not None and len(np.unique(run.memberships["cluster"])) > _MOST_BRANCHES:
        return None  # without reading a table of as many rows in each round
    parents: dict[int, int] = {}
    sizes: dict[int, dict[int, int]] = {}  # sizes by cluster and round
    for row in run.table("clusters"):
        cluster, parent, size = (finite_number(row.get(key)) for key in ("cluster", "parent", "size"))
        if cluster is None:
            continue
        sizes.setdefault(int(cluster), {})[int(row["round"])] = int(size or 0)
        if parent is not None and parent != cluster:
            parents[int(cluster)] = int(parent)
    if not parents or len(sizes) > _MOST_BRANCHES:
        return None
    place = {cluster: k for k, cluster in enumerate(_in_order(parents, sizes))}
    end = max(max(own) for own in sizes.values())
    curves, points = [], []
    for cluster, own in sorted(sizes.items()):
        name, y, first, last = name_of(cluster), place[cluster], min(own), max(own)
        origin = [place[parents[cluster]]] if parents.get(cluster) in place else []
        curves.append(Curve(name, [first] * len(origin) + [first, last], [*origin, y, y]))
        points.append(Points(name, [last], [y], [f"{own[last]}{'' if last == end else ' (ended)'}"]))
    listed = "; ".join(
        f"cluster {cluster} from cluster {parents[cluster]} in round {min(sizes[cluster])}"
        for cluster in sorted(parents)
    )
    ticks = {float(k): str(cluster) for cluster, k in place.items()}
    return Figure(
        "splits",
        "Splits of the clusters",
        [[Panel("", "round", "cluster", curves, points, y_ticks=ticks)]],
        "A line is a cluster, from the round in which it was split off; the number at its end counts its clients.",
        f"Tree of {len(sizes)} clusters over the rounds: {listed}.",
        cluster_styles(sizes, run.match),
        height=max(HEIGHT, 0.6 + _BRANCH * len(sizes)),
    )


def _in_order(parents: Mapping[int, int], clusters: Mapping[int, Mapping[int, int]]) -> list[int]:
    """Orders clusters so that children are next to their parents and lines do not cross."""
    order: list[int] = []
    waiting = [cluster for cluster in sorted(clusters, reverse=True) if parents.get(cluster) not in clusters]
    while waiting:
        cluster = waiting.pop()
        order.append(cluster)
        children = [child for child in clusters if parents.get(child) == cluster and child not in order]
        waiting += sorted(children, key=lambda child: min(clusters[child]))
    return order + [cluster for cluster in sorted(clusters) if cluster not in order]


# Shifts of the data


def shifts(run: RunFiles, most: int) -> Figure | None:
    """Draws data shifts, detections and migrations over the rounds; None without shifts and detections.

    All rows of `migrations.csv` are detections unless a column `detected` says which are.
    """
    moved, found = _rows_of(run, "shift"), _rows_of(run, "migrations")
    detected = [row for row in found if row.get("detected", 1)]
    if not moved and not detected:
        return None
    last = max(int(row["round"]) for row in (*run.rows, *moved, *found))
    rounds = {
        "data shifted": [int(row["round"]) for row in moved],
        "drift detected": [int(row["round"]) for row in detected],
        "cluster changed": [int(row["round"]) for row in found if row["cluster_before"] != row["cluster_after"]],
    }
    rounds = {label: own for label, own in rounds.items() if own}
    step = -(-last * len(rounds) // _MOST_BARS)
    width = step * 0.8 / len(rounds)
    bars = []
    for k, (label, own) in enumerate(rounds.items()):
        bins = Counter((number - 1) // step * step + 1 for number in sorted(own))  # by the first round of each bin
        left = [number + (step - 1) / 2 - 0.4 * step + k * width for number in bins]
        bars.append(Bars(label, left, width, [*bins.values()]))
    listed = ", ".join(f"{label} {len(own)}" for label, own in rounds.items())
    return Figure(
        "shifts",
        "Shifts and migrations",
        [[Panel("", "round", "clients", bars=bars, x_limits=(0.5, last + 0.5))]],
        "Clients whose data shifted, whose drift was detected, and which changed their cluster."
        f"{f' A bar counts {step} rounds.' if step > 1 else ''}",
        f"Bars over rounds 1 to {last}, clients: {listed}.",
        {"data shifted": Style(SKY), "drift detected": Style(ORANGE), "cluster changed": Style(BLUE)},
    )


def _rows_of(run: RunFiles, table: str) -> Sequence[Row]:
    """Returns those rows of a table that name a client."""
    return [row for row in run.table(table) if finite_number(row.get("client")) is not None]


RUN_FIGURES = (
    Kind("curve", "learning curve", lambda run, _: learning_curve({run.algorithm: run.rows}, run.score), on_page=False),
    Kind("memberships", "memberships", memberships),
    Kind("similarity", "similarity", similarity),
    Kind("map", "map", client_map),
    Kind("histogram", "scores of the clients", histogram),
    Kind("splits", "splits", splits),
    Kind("shifts", "shifts", shifts),
)
"""The figures of a run, in their order on a page."""
