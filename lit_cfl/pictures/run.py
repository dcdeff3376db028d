"""Pictures of a run: who is alike, who is in which cluster, and how good the models are for whom."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_cfl.pictures.colours import MAX_COLOURS, colours_of, name_clusters

_MAX_ROWS = 1000  # clients in a picture of memberships
_MAX_LINES = 40  # clusters between which lines are drawn
_BINS = np.linspace(0, 1, 21)

Arrays = Mapping[str, np.ndarray]


def similarity(snapshot: Arrays, round: int) -> Figure:
    """How alike clients were, each pair a pixel, ordered by cluster and within it by true cluster.

    Args:
        snapshot: content of `snapshots/<round>.npz`, one client or more.
        round: of the snapshot.
    """
    order = np.lexsort((snapshot["true_cluster"], snapshot["cluster"]))
    matrix = snapshot["similarity"][np.ix_(order, order)].astype(np.float32)
    others = matrix[~np.eye(len(matrix), dtype=bool)]  # each client is like itself, which says nothing
    low, high = np.nanquantile(others, [0.01, 0.99]) if len(others) else (-1.0, 1.0)
    figure = Figure(figsize=(7.2, 6.2))
    axes = figure.add_axes((0.1, 0.09, 0.72, 0.82))
    drawn = axes.imshow(matrix, cmap="viridis", vmin=low, vmax=high, interpolation="nearest", aspect="auto")
    figure.colorbar(drawn, cax=figure.add_axes((0.85, 0.09, 0.03, 0.82)), label="cosine similarity", extend="both")
    axes.set_title(f"How alike clients were in round {round}{_sample(snapshot)}", fontsize=11)
    axes.set(xlabel="clients, by found and then by true cluster", ylabel="found cluster")
    axes.set_xticks([])
    axes.set_yticks([])
    _mark_groups(axes, snapshot["cluster"][order], both=True)
    return figure


def client_map(snapshot: Arrays, round: int) -> Figure:
    """The clients that were compared in two dimensions, side by side by found and by true cluster.

    Args:
        snapshot: content of `snapshots/<round>.npz`.
        round: of the snapshot.
    """
    figure = Figure(figsize=(11, 4.6))
    x, y = snapshot["projection"].astype(np.float32).T
    size = float(np.clip(4000 / len(x), 6, 60))
    panels = {
        "found clusters": ("cluster", "not assigned"),
        "true clusters (with numbers of their own)": ("true_cluster", "unknown"),
    }
    for k, (title, (name, unknown)) in enumerate(panels.items()):
        axes = figure.add_axes((0.03 + 0.49 * k, 0.05, 0.37, 0.78))
        axes.scatter(x, y, c=colours_of(snapshot[name]), s=size, edgecolors="white", linewidths=0.3)
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, fontsize=10)
        name_clusters(axes, snapshot[name], unknown)
    figure.suptitle(f"Clients by how alike they were in round {round}{_sample(snapshot)}", fontsize=11)
    return figure


def memberships(rounds: np.ndarray, cluster: np.ndarray, true_cluster: np.ndarray) -> Figure:
    """Which client was in which cluster when: clients by rounds, by true and then by last cluster.

    Args:
        rounds: int `[R]`, one or more.
        cluster: int `[R, clients]`, -1 = none.
        true_cluster: int `[clients]`, -1 = unknown.
    """
    step = -(-len(true_cluster) // _MAX_ROWS)
    shown = np.arange(0, len(true_cluster), step)
    order = shown[np.lexsort((cluster[-1, shown], true_cluster[shown]))]
    figure = Figure(figsize=(8.6, 5))
    axes = figure.add_axes((0.1, 0.11, 0.71, 0.8))
    axes.imshow(colours_of(cluster[:, order].T), aspect="auto", interpolation="nearest")
    places = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), 12)).round().astype(int))
    axes.set_xticks(places, [str(number) for number in rounds[places]])
    axes.set_yticks([])
    known = (true_cluster >= 0).any()
    axes.set(xlabel="round", ylabel="clients, by true cluster" if known else "clients")
    sample = "" if step == 1 else f" ({len(shown):,} of {len(true_cluster):,} clients, 1 in {step})"
    axes.set_title(f"Cluster of each client{sample}", fontsize=11)
    name_clusters(axes, cluster[:, order], "not assigned")
    _mark_groups(axes, true_cluster[order], both=False)
    return figure


def accuracies(accuracy: np.ndarray, cluster: np.ndarray, round: int) -> Figure:
    """How many clients have which test accuracy, stacked by their cluster where there are few.

    Args:
        accuracy: float `[n]` in [0, 1], nan without test data.
        cluster: int `[n]`.
        round: that was evaluated.
    """
    tested = ~np.isnan(accuracy)
    accuracy, cluster = accuracy[tested], cluster[tested]
    stacks = cluster if len(np.unique(cluster)) <= MAX_COLOURS else np.zeros_like(cluster)
    figure = Figure(figsize=(8.6, 4))
    axes = figure.add_axes((0.09, 0.13, 0.72, 0.77))
    heights = np.zeros(len(_BINS) - 1, dtype=int)
    for number in np.unique(stacks):
        more = np.histogram(accuracy[stacks == number], _BINS)[0]
        axes.bar(_BINS[:-1], more, 0.05, bottom=heights, align="edge", color=colours_of(number), edgecolor="white")
        heights += more
    axes.set(xlim=(0, 1), xlabel="test accuracy of a client", ylabel="clients")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"Test accuracy of {len(accuracy):,} clients after round {round}", fontsize=11)
    if stacks is cluster:
        name_clusters(axes, cluster, "not assigned")
    return figure


def _sample(snapshot: Arrays) -> str:
    """How many clients are shown, and of how many where not all that were compared are."""
    shown, compared = len(snapshot["clients"]), int(snapshot["compared"])
    sampled = f"{shown:,} of {compared:,} clients, 1 in {-(-compared // shown)}"
    return f" ({shown:,} clients)" if shown == compared else f" ({sampled})"


def _mark_groups(axes: Axes, clusters: np.ndarray, both: bool) -> None:
    """Lines between stretches of equal clusters, and their numbers at the side; of few clusters only."""
    ends = np.flatnonzero(np.diff(clusters)) + 1
    edges = np.concatenate([[0], ends, [len(clusters)]])
    if len(edges) - 1 > _MAX_LINES or (clusters < 0).all():
        return
    for end in ends - 0.5:
        axes.axhline(end, color="white", linewidth=1.0)
        if both:
            axes.axvline(end, color="white", linewidth=1.0)
    names = ["?" if number < 0 else str(number) for number in clusters[edges[:-1]]]
    axes.set_yticks((edges[:-1] + edges[1:] - 1) / 2, names)
