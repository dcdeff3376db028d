"""Figures of events in a run: cluster splits, layer scores, data shifts and migrations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean

from lit_cfl.errors import count_noun, join_range
from lit_cfl.metric_names import Row
from lit_cfl.pictures.colours import cluster_styles, name_of
from lit_cfl.pictures.figure import HEIGHT, Figure, Table, finite_number, thin
from lit_cfl.pictures.panels import BLUE, GREEN, LINE_COLOURS, ORANGE, SKY, Bars, Curve, Panel, Points, Style

_MOST_BRANCHES = 60
_MOST_COMPARISONS = 12
_MOST_BARS = 90  # maximum number of bars in the timeline of shifts
_BRANCH = 0.22  # height in inches of a cluster's branch in the tree


def splits(rows: Sequence[Row], match: Mapping[int, int]) -> Figure | None:
    """Draws the splits of clusters over the rounds; None without splits, or with too many clusters.

    Args:
        rows: Rows of `clusters.csv`.
        match: Colour number of each cluster.
    """
    parents: dict[int, int] = {}
    sizes: dict[int, dict[int, int]] = {}  # sizes by cluster and round
    for row in rows:
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
        note = {"cluster": cluster, "split from": parents.get(cluster), "first round": first, "last round": last}
        note |= {"clients at first": own[first], "clients at last": own[last]}
        points.append(Points(name, [last], [y], [f"{own[last]}{'' if last == end else ' (ended)'}"], [note]))
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
        cluster_styles(sizes, match),
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


def layers(rows: Sequence[Row]) -> Figure | None:
    """Draws how well each layer separates the clients, by silhouette and gap; None if no layers were compared.

    Args:
        rows: Rows of `layers.csv`.
    """
    rows = [row for row in rows if {"layer", "cluster", "silhouette", "gap", "chosen"} <= row.keys()]
    if not rows:
        return None
    compared = {
        f"round {round}, cluster {cluster}": list(found)
        for (round, cluster), found in groupby(rows, lambda row: (row["round"], row["cluster"]))
    }
    shown = [list(compared)[k] for k in thin(len(compared), _MOST_COMPARISONS)]
    names = list(dict.fromkeys(str(row["layer"]) for row in rows))
    panels: list[list[Panel | None]] = []
    for score in ("silhouette", "gap"):
        curves, points = [], []
        for name in shown:
            known_rows = [row for row in compared[name] if finite_number(row[score]) is not None]
            places, values = [names.index(str(row["layer"])) for row in known_rows], [row[score] for row in known_rows]
            chosen = [k for k, row in enumerate(known_rows) if row["chosen"]]
            curves.append(Curve(name, places, values))
            points.append(Points(name, [places[k] for k in chosen], [values[k] for k in chosen]))
        ticks = {float(k): layer for k, layer in enumerate(names)}
        panels.append([Panel("", "layer", score, curves, points, x_ticks=ticks)])
    fewer = f" {len(shown)} of {len(compared)} comparisons." if len(shown) < len(compared) else ""
    picked = Counter(str(row["layer"]) for row in rows if row["chosen"])
    listed = ", ".join(f"{layer} {count} times" for layer, count in picked.most_common(5)) or "none"
    lines = ("-", (0, (4, 2)))
    return Figure(
        "layers",
        "How well each layer separates the clients",
        panels,
        f"A line is a comparison of a cluster's clients; dots mark the layers that were chosen.{fewer}",
        f"Line charts of silhouette and gap of {len(names)} layers in {len(compared)} comparisons; chosen: {listed}.",
        {name: Style(LINE_COLOURS[k % 7], lines[k // 7 % 2], size=5) for k, name in enumerate(shown)},
        height=1.7,
    )


def shifts(moved: Sequence[Row], found: Sequence[Row], last: int) -> Figure | None:
    """Draws data shifts, detections and their delays over the rounds; None without shifts and detections.

    Args:
        moved: Rows of `shift.csv` that name a client.
        found: Rows of `migrations.csv`; all are detections unless a column `detected` says which are.
        last: Last round of the run so far.
    """
    detected = [row for row in found if row.get("detected", 1)]
    if not moved and not detected:
        return None
    last = max([last, *(int(row["round"]) for row in (*moved, *found))])
    counts = {
        "data shifted": Counter(int(row["round"]) for row in moved),
        "drift detected": Counter(int(row["round"]) for row in detected),
        "cluster changed": Counter(int(r["round"]) for r in found if r["cluster_before"] != r["cluster_after"]),
    }
    counts = {label: by_round for label, by_round in counts.items() if by_round}
    step = -(-last * len(counts) // _MOST_BARS)
    width = step * 0.8 / len(counts)
    bars, bins = [], {label: _in_bins(by_round, step) for label, by_round in counts.items()}
    spans = {number: join_range(number, min(number + step - 1, last)) for number in sorted(set().union(*bins.values()))}
    for k, (label, own) in enumerate(bins.items()):
        left = [number + (step - 1) / 2 - 0.4 * step + k * width for number in own]
        bars.append(Bars(label, left, width, [*own.values()], places=[f"round {spans[number]}" for number in own]))
    rows = [[span, *(own.get(number) for own in bins.values())] for number, span in spans.items()]
    panels: list[list[Panel | None]] = [[Panel("", "round", "clients", bars=bars, x_limits=(0.5, last + 0.5))]]
    listed, caption = ", ".join(f"{label} {sum(by_round.values())}" for label, by_round in counts.items()), ""
    if moved and found:
        panel, caption = _delays(moved, found)
        panels.append([panel])
    return Figure(
        "shifts",
        "Shifts and migrations",
        panels,
        "Clients whose data shifted, whose drift was detected, and which changed their cluster."
        f"{f' A bar counts {step} rounds.' if step > 1 else ''}{caption}",
        f"Bars over rounds 1 to {last}, clients: {listed}.{caption}",
        {"data shifted": Style(SKY), "drift detected": Style(ORANGE), "cluster changed": Style(BLUE),
         "shifts": Style(GREEN, named=False)},
        Table("Shifts and migrations: values", ["round", *bins], rows, folded=True),
    )  # fmt: skip


def _in_bins(by_round: Mapping[int, int], step: int) -> dict[int, int]:
    """Adds up counts by round in bins of `step` rounds; returns them by the first round of each bin, ascending."""
    bins: Counter[int] = Counter()
    for number, count in by_round.items():
        bins[(number - 1) // step * step + 1] += count
    return dict(sorted(bins.items()))


def delays_of(moved: Sequence[Row], found: Sequence[Row]) -> list[int | None]:
    """Counts the rounds from each shift of a client to its detection; None if not detected before the next shift."""
    detected: dict[int, list[int]] = {}
    for row in found:
        detected.setdefault(int(row["client"]), []).append(int(row["round"]))
    own: dict[int, list[int]] = {}
    for row in moved:
        own.setdefault(int(row["client"]), []).append(int(row["round"]))
    delays: list[int | None] = []
    for client, rounds in own.items():
        ordered = sorted(set(rounds))
        for start, end in zip(ordered, [*ordered[1:], 2**62], strict=True):
            late = [number - start for number in detected.get(client, []) if start <= number < end]
            delays.append(min(late, default=None))
    return delays


def _delays(moved: Sequence[Row], found: Sequence[Row]) -> tuple[Panel, str]:
    """Draws the delays of detections, and describes them. A client may also change its cluster without a detection."""
    waits = delays_of(moved, found)
    late = [delay for delay in waits if delay is not None]
    never, counts = len(waits) - len(late), dict(sorted(Counter(late).items()))
    changes = any("detected" in row for row in found)
    seen, what = ("noticed", "migration") if changes else ("detected", "detection")
    how = " (it was detected, or the client changed its cluster)" if changes else ""
    mean = f"{fmean(late):.2f} rounds on average" if late else f"none was {seen}"
    others = len(found) - len(late)
    were = f"{count_noun(others, f'more {what}')} {'was' if others == 1 else 'were'}"
    more = f" {were} not the first after a shift." if others > 0 else ""
    places = [count_noun(delay, "round") for delay in counts]
    bars = Bars("shifts", [delay - 0.4 for delay in counts], 0.8, list(counts.values()), places=places)
    ticks = {float(delay): str(delay) for delay in counts} if len(counts) <= 20 else {}
    caption = f" Rounds until a client's drift was {seen}{how}, before its data shifted again: {mean}; {never} of "
    label = f"rounds from a shift to its detection{' or a change of cluster' if changes else ''}"
    return (
        Panel("", label, "shifts", x_ticks=ticks, bars=[bars]),
        f"{caption}{len(waits)} shifts were not {seen}.{more}",
    )
