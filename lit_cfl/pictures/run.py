"""Pictures of a run: similarity of clients, their clusters over the rounds, and their test scores."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_cfl.pictures.colours import MAX_COLOURS, colours_of, matched, matched_colours, name_clusters
from lit_cfl.scores import Score

_MAX_ROWS = 1000  # clients in a picture of memberships
_MAX_LINES = 40  # clusters between which lines are drawn
_MAX_BINS = 40

Arrays = Mapping[str, np.ndarray]


def similarity(snapshot: Arrays, round: int) -> Figure:
    """Draws the similarity of each pair of clients as a pixel, ordered by cluster and within it by true cluster.

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
    """Draws the compared clients in two dimensions, by found cluster and, if any is known, by true cluster.

    Args:
        snapshot: content of `snapshots/<round>.npz`.
        round: of the snapshot.
    """
    panels = [("found clusters", "cluster", "not assigned")]
    if (snapshot["true_cluster"] >= 0).any():
        panels.append(("true clusters", "true_cluster", "unknown"))
    figure = Figure(figsize=(5.5 * len(panels), 4.8), layout="constrained")
    x, y = snapshot["projection"].astype(np.float32).T
    size = float(np.clip(4000 / len(x), 6, 60))
    for axes, (title, name, unknown) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        match = matched(snapshot[name], snapshot["true_cluster"])
        colours = matched_colours(snapshot[name], match)
        axes.scatter(x, y, c=colours, s=size, edgecolors="white", linewidths=0.3)
        axes.set(xticks=[], yticks=[], xlabel="first principal coordinate", ylabel="second principal coordinate")
        axes.set_title(title, fontsize=10)
        name_clusters(axes, snapshot[name], unknown, match)
    figure.suptitle(f"Clients by how alike they were in round {round}{_sample(snapshot)}", fontsize=11)
    return figure


def memberships(rounds: np.ndarray, cluster: np.ndarray, true_cluster: np.ndarray) -> Figure:
    """Draws the cluster of each client in each round; clients are ordered by true and then by last cluster.

    Args:
        rounds: int `[R]`, one or more.
        cluster: int `[R, clients]`, -1 = none.
        true_cluster: int `[clients]`, -1 = unknown.
    """
    step = -(-len(true_cluster) // _MAX_ROWS)
    shown = np.arange(0, len(true_cluster), step)
    order = shown[np.lexsort((cluster[-1, shown], true_cluster[shown]))]
    known = (true_cluster >= 0).any()
    figure = Figure(figsize=(8.6, 5), layout="constrained")
    widths = [1, 24] if known else [1]
    *true_axes, axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    match = matched(cluster, true_cluster)
    axes.imshow(matched_colours(cluster[:, order].T, match), aspect="auto", interpolation="nearest")
    places = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), 12)).round().astype(int))
    axes.set_xticks(places, [str(number) for number in rounds[places]])
    axes.set(yticks=[], xlabel="round")
    sample = "" if step == 1 else f" ({len(shown):,} of {len(true_cluster):,} clients, 1 in {step})"
    axes.set_title(f"Cluster of each client{sample}", fontsize=11)
    name_clusters(axes, cluster[:, order], "not assigned", match)
    for truth in true_axes:
        truth.imshow(colours_of(true_cluster[order])[:, None], aspect="auto", interpolation="nearest")
        truth.set(xticks=[0], xticklabels=["true"])
    _mark_groups(axes, true_cluster[order], both=False)
    left = figure.axes[0]
    left.set_yticks(axes.get_yticks(), axes.get_yticklabels())
    left.set_ylabel("clients, by true cluster" if known else "clients")
    if true_axes:
        axes.set_yticks([])
    return figure


def histogram(values: np.ndarray, cluster: np.ndarray, true_cluster: np.ndarray, score: Score, round: int) -> Figure:
    """Draws how many clients have which test score, stacked by cluster if there are few.

    Args:
        values: the score of each client, float `[n]`, nan without test data.
        cluster: int `[n]`.
        true_cluster: int `[n]`, -1 = unknown.
        score: the task's main one.
        round: that was evaluated.
    """
    tested = np.isfinite(values)
    values, cluster, true_cluster = values[tested], cluster[tested], true_cluster[tested]
    few = len(np.unique(cluster)) <= MAX_COLOURS
    stacks = cluster if few else np.zeros_like(cluster)
    match = matched(stacks, true_cluster if few else np.full_like(stacks, -1))
    figure = Figure(figsize=(8.6, 4), layout="constrained")
    axes = figure.subplots()
    edges = _edges(values)
    heights = np.zeros(len(edges) - 1, dtype=int)
    for number in np.unique(stacks):
        more = np.histogram(values[stacks == number], edges)[0]
        colour = matched_colours(number, match)
        axes.bar(edges[:-1], more, np.diff(edges), bottom=heights, align="edge", color=colour, edgecolor="white")
        heights += more
    name = score.title
    axes.set(xlim=(edges[0], edges[-1]), xlabel=f"test {name} of a client", ylabel="clients")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"Test {name} of {len(values):,} clients after round {round}", fontsize=11)
    if few:
        name_clusters(axes, cluster, "not assigned", match)
    return figure


def _edges(values: np.ndarray) -> np.ndarray:
    """Chooses edges of bins from the least to the greatest value: at most 40 bins, and no more than values."""
    bins = len(np.histogram_bin_edges(values, "auto")) - 1
    edges: np.ndarray = np.histogram_bin_edges(values, min(bins, len(np.unique(values)), _MAX_BINS))
    return edges


def _sample(snapshot: Arrays) -> str:
    """Says how many clients are shown, and of how many if those are not all that were compared."""
    shown, compared = len(snapshot["clients"]), int(snapshot["compared"])
    sampled = f"{shown:,} of {compared:,} clients, 1 in {-(-compared // shown)}"
    return f" ({shown:,} clients)" if shown == compared else f" ({sampled})"


def _mark_groups(axes: Axes, clusters: np.ndarray, both: bool) -> None:
    """Draws lines between stretches of equal clusters, and their numbers at the side, if clusters are few."""
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
