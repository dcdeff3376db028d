"""Figures of clusters: memberships over the rounds, and scores of their clients."""

from collections.abc import Mapping, Sequence

import numpy as np

from lit_cfl.errors import count_noun
from lit_cfl.pictures.colours import MAX_COLOURS, cluster_styles, name_of, true_name_of
from lit_cfl.pictures.figure import Figure, Table, short, thin
from lit_cfl.pictures.panels import BLUE, Bars, Cells, HeatMap, Panel, Style
from lit_cfl.pictures.sample import describe_sample, sample
from lit_cfl.scores import ACCURACY, Score

MOST_ROUNDS = 400  # maximum number of rounds in a figure of memberships
_MOST_CLUSTERS = 250
_MOST_BINS = 30
_NARROWEST = 50  # the last column of a figure of memberships has at least this part of its width
_MOST_TICKS = 20  # maximum number of models that are numbered on an axis


def memberships(
    rounds: np.ndarray,
    cluster: np.ndarray,
    true_cluster: np.ndarray,
    match: Mapping[int, int],
    most_rounds: int = MOST_ROUNDS,
    true_names: Sequence[str] = (),
) -> Figure | None:
    """Draws each client's cluster over the rounds, next to its true cluster; None for too few or too many clusters.

    Args:
        rounds: Evaluated rounds, int `[R]`, ascending.
        cluster: Cluster of each client by round, int `[R, clients]`, -1 = none.
        true_cluster: True clusters, int `[clients]`, -1 = unknown.
        match: Colour number of each cluster.
        most_rounds: Maximum number of drawn rounds.
        true_names: Names of the true clusters 0, 1, ...; empty = none.
    """
    numbers, truths = np.unique(cluster), np.unique(true_cluster) if (true_cluster >= 0).any() else np.empty(0, int)
    if not cluster.size or not 1 < (numbers >= 0).sum() <= _MOST_CLUSTERS or _each_its_own(cluster):
        return None  # no client has a model, all share one, or each has its own
    shown = sample(true_cluster if len(truths) else cluster[-1])
    order = shown[np.lexsort((cluster[-1, shown], true_cluster[shown]))]
    kept = thin(len(rounds), most_rounds)
    cells = Cells(
        np.searchsorted(numbers, cluster[kept][:, order].T),
        [*map(name_of, numbers), *map(true_name_of, truths)],
        _starts(rounds[kept]),
        ["-" if number < 0 else str(number) for number in (*numbers, *truths)],
        np.searchsorted(truths, true_cluster[order]) + len(numbers) if len(truths) else None,
        "true",
    )
    fewer, axis = f" {len(kept)} of {len(rounds)} rounds." if len(kept) < len(rounds) else "", "round"
    if not fewer and len(rounds) > 1 and rounds[-1] - rounds[0] >= len(rounds):
        listed = [*map(str, rounds)] if len(rounds) <= 6 else [str(rounds[0]), str(rounds[1]), "...", str(rounds[-1])]
        fewer = (
            f" Clusters are recorded in rounds {', '.join(listed)}, and drawn unchanged until the next of them "
            "(tracking.snapshots_every: 1 records them in each round)."
        )
        axis = f"round (recorded: {', '.join(listed)})"
    colours = (
        " A cluster has the colour of the true cluster that it matches best. The narrow column shows the true clusters."
        if len(truths)
        else ""
    )
    many = f" Colours repeat every {MAX_COLOURS} clusters." if (numbers >= 0).sum() > MAX_COLOURS else ""
    without = " Clients that are not assigned have no model, or are newcomers." if (numbers < 0).any() else ""
    assigned = cluster[-1][cluster[-1] >= 0]
    others = f", {cluster.shape[1] - len(assigned)} not assigned" if len(assigned) < cluster.shape[1] else ""
    changed = (cluster[1:] != cluster[:-1]) & (cluster[1:] >= 0) & (cluster[:-1] >= 0)
    return Figure(
        "memberships",
        "Clusters of the clients over the rounds",
        [[Panel("", axis, f"clients{', by true cluster' if len(truths) else ''}", cells=cells)]],
        f"Each row is a client.{colours} On the right: the numbers of the clusters at the end."
        f"{without}{many}{_describe_reused(cluster)}{describe_sample(len(order), len(true_cluster))}{fewer}",
        f"Coloured cells, one row per client and one column per recorded round, {rounds[0]} to {rounds[-1]}: "
        f"{len(assigned)} clients in {len(np.unique(assigned))} clusters at the end{others}; "
        f"{count_noun(int(changed.any(0).sum()), 'client')} changed to a cluster of another number in between.",
        cluster_styles(numbers, match, truths, true_names),
        _moves(cluster, rounds, true_cluster, order),
        height=2.6,
    )


def _describe_reused(cluster: np.ndarray) -> str:
    """Describes numbers that no client kept, as they may stand for another cluster; empty if there are none.

    Args:
        cluster: Cluster of each client by round, int `[R, clients]`, -1 = none.
    """
    holders: dict[int, set[int]] = {}
    reused: set[int] = set()
    for row in cluster:
        for number in np.unique(row[row >= 0]).tolist():
            mine = set(np.flatnonzero(row == number).tolist())
            if holders.get(number, mine).isdisjoint(mine):
                reused.add(number)
            holders[number] = mine
    if not reused:
        return ""
    listed = f"cluster{'s' * (len(reused) > 1)} {', '.join(map(str, sorted(reused)))}"
    return (
        f" Between two of the drawn rounds, all clients of {listed} were replaced by others: the number and its colour "
        "may then stand for another cluster."
    )


def _each_its_own(cluster: np.ndarray) -> bool:
    """Returns whether no two clients ever share a model, as with Local."""
    return cluster.shape[1] > 1 and all(len(np.unique(row[row >= 0])) == (row >= 0).sum() for row in cluster)


def client_scores(
    rounds: np.ndarray,
    clients: np.ndarray,
    values: np.ndarray,
    cluster: np.ndarray,
    score: Score,
    most_rounds: int = MOST_ROUNDS,
) -> Figure | None:
    """Draws each client's score over the rounds as a heat map; None for a single round or equal scores.

    Args:
        rounds: Evaluated rounds, int `[R]`, ascending.
        clients: Ids of the clients, int `[clients]`.
        values: Scores, float `[R, clients]`, nan = not scored or undefined.
        cluster: Clusters in the last round, int `[clients]`, -1 = none; rows are in their order.
        score: Score of the values.
        most_rounds: Maximum number of drawn rounds.
    """
    finite = values[np.isfinite(values)]
    if len(rounds) < 2 or len(np.unique(finite)) < 2:
        return None
    low, high = (0.0, 1.0) if score == ACCURACY else (float(finite.min()), float(finite.max()))
    shown, kept = sample(cluster), thin(len(rounds), most_rounds)
    means = np.array([one[np.isfinite(one)].mean() if np.isfinite(one).any() else np.inf for one in values[:, shown].T])
    order = shown[np.lexsort((means, cluster[shown]))]
    matrix = HeatMap(values[kept][:, order].T, low, high, f"test {score.title}", edges=_edges(rounds[kept]))
    clusters = [None if cluster[k] < 0 else int(cluster[k]) for k in order]
    scores = [short(float(values[-1, k])) if np.isfinite(values[-1, k]) else None for k in order]
    rows = list(zip(clients[order].tolist(), clusters, scores, strict=True))
    last = values[-1][np.isfinite(values[-1])]
    at_the_end = f" At the end {last.min():.3g} to {last.max():.3g}." if len(last) else ""
    fewer = f" {len(kept)} of {len(rounds)} rounds." if len(kept) < len(rounds) else ""
    return Figure(
        "client-scores",
        f"{score.heading} of the clients over the rounds",
        [[Panel("", "round", "clients, by cluster", matrix=matrix)]],
        f"Each row is a client, coloured by its test {score.title}; grey: not known. Clients are in the order of their "
        "clusters at the end, and in each cluster of their means over the rounds."
        f"{describe_sample(len(order), len(cluster))}{fewer}",
        f"Heat map, one row per client and one column per round, {rounds[0]} to {rounds[-1]}: test {score.title} of "
        f"{len(cluster)} clients.{at_the_end}",
        table=Table(f"Clients in round {rounds[-1]}: values", ["client", "cluster", score.title], rows, folded=True),
        height=2.6,
    )


def mixtures(weights: np.ndarray, cluster: np.ndarray) -> Figure | None:
    """Draws the weights of the models in the clients' mixtures as a heat map; None without mixtures.

    Args:
        weights: Weights of the models, `[clients, K]`, nan = the client has no model.
        cluster: Model with the largest weight, int `[clients]`, -1 = none; rows are in this order.
    """
    known = np.flatnonzero(np.isfinite(weights).all(1)) if weights.shape[1] > 1 else np.empty(0, int)
    if not len(known):
        return None
    shown = known[sample(cluster[known])]
    order = shown[np.lexsort((-weights[shown].max(1), cluster[shown]))]
    models = range(weights.shape[1])
    edges = [number - 0.5 for number in (*models, len(models))]
    matrix = HeatMap(weights[order], 0.0, float(weights[order].max()), "weight", edges=edges)
    ticks = {float(number): str(number) for number in models} if len(models) <= _MOST_TICKS else {}
    rows: list[list[int | str]] = [[int(client), *(f"{weight:.3f}" for weight in weights[client])] for client in order]
    return Figure(
        "mixtures",
        "Weights of the models in the clients' mixtures",
        [[Panel("", "model", "clients, by largest weight", matrix=matrix, x_ticks=ticks)]],
        "Each row is a client, each column a model; colours are the weights in the client's mixture after the last "
        f"round.{describe_sample(len(order), len(known))}",
        f"Heat map, one row per client and one column per model: weights of {weights.shape[1]} models in the mixtures "
        f"of {len(known)} clients, whose largest weights are {weights[known].max(1).mean():.2f} on average.",
        table=Table("Weights: values", ["client", *map(str, models)], rows, folded=True),
        height=2.6,
    )


def _edges(rounds: np.ndarray) -> list[float]:
    """Returns the columns' edges, midway between rounds, so that their widths are to scale."""
    middles = (rounds[1:] + rounds[:-1]) / 2
    return [float(edge) for edge in (rounds[0] - 0.5, *middles, rounds[-1] + 0.5)]


def _starts(rounds: np.ndarray) -> list[float]:
    """Returns the columns' edges if each column begins with its round, so that a change is in the round that shows it.

    The last column has a fiftieth of the width at least.
    """
    end = max(rounds[-1] + 0.5, rounds[-1] - 0.5 + (rounds[-1] - rounds[0]) / _NARROWEST)
    return [*map(float, rounds - 0.5), float(end)]


def _moves(cluster: np.ndarray, rounds: np.ndarray, true: np.ndarray, order: np.ndarray) -> Table:
    rows = []
    for client in order:
        own = cluster[:, client]
        changes = [0, *(np.flatnonzero(own[1:] != own[:-1]) + 1)]
        path = ", ".join(f"{'-' if own[k] < 0 else own[k]} from round {rounds[k]}" for k in changes)
        rows.append([int(client), None if true[client] < 0 else int(true[client]), path])
    head = ["client", "true cluster", "found cluster"]
    if (true < 0).all():
        head, rows = [head[0], head[2]], [[row[0], row[2]] for row in rows]
    return Table("Clusters over the rounds: values", head, rows, folded=True)


def histogram(values: np.ndarray, cluster: np.ndarray, match: Mapping[int, int], score: Score) -> Figure | None:
    """Draws a histogram of the clients' final scores, stacked by cluster if clusters are few; None without a score.

    Args:
        values: Score of each client, float `[n]`, nan without test data.
        cluster: Cluster of each client, int `[n]`, -1 = none.
        match: Colour number of each cluster.
        score: Score of the values.
    """
    values, cluster = values[np.isfinite(values)], cluster[np.isfinite(values)]
    if not len(values):
        return None
    numbers = np.unique(cluster)
    few = len(numbers) <= MAX_COLOURS and not 1 < len(numbers) == len(cluster)  # no colours if each has its own model
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
        cluster_styles(numbers, match) if few else {"clients": Style(BLUE)},
    )
