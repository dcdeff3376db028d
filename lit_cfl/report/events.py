"""Figures of what happened in a run: splits of clusters, scores of layers, shifts of data and migrations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean

import numpy as np

from lit_cfl.metric_names import Row
from lit_cfl.pictures.panels import BLUE, GREEN, ORANGE, SKY, Bars, Curve, Panel, Points, Style
from lit_cfl.report.blocks import Figure, Table
from lit_cfl.report.clusters import cluster_styles, match_of, name_of
from lit_cfl.report.over_rounds import cut_note, thin
from lit_cfl.report.run_files import RunFiles, known

_MOST_BRANCHES = 60
_MOST_COMPARISONS = 12
_MOST_BARS = 90  # in the timeline of shifts


def tree(run: RunFiles, name: str) -> Figure | None:
    """Draws when each cluster was split off from which; None where no cluster has a parent."""
    parents: dict[int, int] = {}
    rounds: dict[int, list[int]] = {}
    sizes: dict[int, list[int]] = {}
    for row in run.table("clusters"):
        cluster, parent, size = (known(row.get(key)) for key in ("cluster", "parent", "size"))
        if cluster is None:
            continue
        rounds.setdefault(int(cluster), []).append(int(row["round"]))
        sizes.setdefault(int(cluster), []).append(int(size or 0))
        if parent is not None and parent != cluster:
            parents[int(cluster)] = int(parent)
    if not parents or len(rounds) > _MOST_BRANCHES:
        return None
    place = {cluster: k for k, cluster in enumerate(_in_order(parents, rounds))}
    last = max(own[-1] for own in rounds.values())
    curves, points = [], []
    for cluster, own in rounds.items():
        label, y = name_of(cluster), place[cluster]
        parent = place.get(parents.get(cluster, cluster), y)
        x, ys = ([own[0], own[0], own[-1]], [parent, y, y]) if parent != y else ([own[0], own[-1]], [y, y])
        curves.append(Curve(label, x, ys))
        ends = f"{sizes[cluster][-1]}" + ("" if own[-1] == last else " (ended)")
        note = f"{label}\nfrom round {own[0]} to {own[-1]}\nclients {sizes[cluster][0]} to {sizes[cluster][-1]}"
        points.append(Points(label, [own[-1]], [y], [ends], [note]))
    rows = [
        [cluster, parents.get(cluster), own[0], own[-1], sizes[cluster][0], sizes[cluster][-1]]
        for cluster, own in sorted(rounds.items())
    ]
    told = "; ".join(f"cluster {row[0]} from cluster {row[1]} in round {row[2]}" for row in rows if row[1] is not None)
    return Figure(
        f"{name}-splits",
        "Splits of the clusters",
        Panel("", "round", "cluster", curves, points, y_ticks={float(k): str(cluster) for cluster, k in place.items()}),
        "A line is a cluster, from the round in which it was split off; the number at its end counts its clients.",
        f"Tree of {len(rounds)} clusters over the rounds: {told}.",
        cluster_styles(match_of(run, np.array(list(rounds)), np.full(len(rounds), -1))),
        Table(
            "Splits: values",
            ["cluster", "split from", "first round", "last round", "clients at first", "clients at last"],
            rows,
            folded=True,
        ),
        height=max(260, 110 + 34 * len(rounds)),
    )


def _in_order(parents: Mapping[int, int], clusters: Mapping[int, Sequence[int]]) -> list[int]:
    """Orders clusters so that each one's children lie beside it and lines do not cross."""
    order: list[int] = []
    waiting = [cluster for cluster in sorted(clusters, reverse=True) if parents.get(cluster) not in clusters]
    while waiting:
        cluster = waiting.pop()
        order.append(cluster)
        children = [child for child in clusters if parents.get(child) == cluster and child not in order]
        waiting += sorted(children, key=lambda child: clusters[child][0])
    return order + [cluster for cluster in sorted(clusters) if cluster not in order]


def layers(run: RunFiles, name: str) -> Figure | None:
    """Draws how well each layer separates the clients; None where no layers were compared."""
    rows = [row for row in run.table("layers") if {"layer", "cluster", "silhouette", "gap", "chosen"} <= row.keys()]
    if not rows:
        return None
    compared = [(key, list(found)) for key, found in groupby(rows, lambda row: (row["round"], row["cluster"]))]
    shown = [compared[k] for k in thin(len(compared), _MOST_COMPARISONS)]
    names = list(dict.fromkeys(str(row["layer"]) for row in rows))
    colours = [BLUE, ORANGE, GREEN, "#D55E00", SKY, "#CC79A7", "#F0E442"]
    styles, curves, points = {}, [], []
    for k, ((round, cluster), found) in enumerate(shown):
        label = f"round {round}, cluster {cluster}"
        styles[label] = Style(colours[k % 7], ("-", (0, (4, 2)))[k // 7 % 2], size=6)
        pairs = [(names.index(str(row["layer"])), v) for row in found if (v := known(row["silhouette"])) is not None]
        if pairs:
            curves.append(Curve(label, *map(list, zip(*pairs, strict=True))))
        chosen = [row for row in found if row["chosen"] and known(row["silhouette"]) is not None]
        places = [names.index(str(row["layer"])) for row in chosen]
        notes = [f"{row['layer']}, chosen\nsilhouette {row['silhouette']:.3f}" for row in chosen]
        points.append(Points(label, places, [row["silhouette"] for row in chosen], notes=notes))
    table = [
        [row["round"], row["cluster"], row["layer"], _short(row["silhouette"]), _short(row["gap"]),
         "yes" if row["chosen"] else ""]
        for row in rows[:500]
    ]  # fmt: skip
    fewer = f" {len(shown)} of {len(compared)} comparisons." if len(shown) < len(compared) else ""
    picked = Counter(str(row["layer"]) for row in rows if row["chosen"])
    told = ", ".join(f"{layer} {count} times" for layer, count in picked.most_common(5)) or "none"
    return Figure(
        f"{name}-layers",
        "How well each layer separates the clients",
        Panel("", "layer", "silhouette", curves, points, x_ticks={float(k): layer for k, layer in enumerate(names)}),
        f"A line is a comparison of a cluster's clients; dots mark the layers that were chosen.{fewer}",
        f"Line chart of the silhouette of {len(names)} layers in {len(compared)} comparisons; chosen: {told}.",
        styles,
        Table(
            "Layers: values",
            ["round", "cluster", "layer", "silhouette", "gap", "chosen"],
            table,
            folded=True,
            note=cut_note(len(table), len(rows), "rows"),
        ),
    )


def _short(value: object) -> str | None:
    number = known(value)
    return None if number is None else f"{number:.3f}"


def _shifts(run: RunFiles) -> tuple[list[Row], list[Row]]:
    """Returns the rows of clients whose data shifted, and of those whose drift was detected."""
    moved, found = (
        [row for row in run.table(name) if known(row.get("client")) is not None] for name in ("shift", "migrations")
    )
    return moved, found


def timeline(run: RunFiles, name: str) -> Figure | None:
    """Draws when data shifted, and when that was detected; None where data do not shift."""
    moved, found = _shifts(run)
    if not moved and not found:
        return None
    last = max([int(row["round"]) for row in (*moved, *found, *run.rows[-1:])])
    counts = {
        "data shifted": Counter(int(row["round"]) for row in moved),
        "drift detected": Counter(int(row["round"]) for row in found),
        "cluster changed": Counter(int(r["round"]) for r in found if r["cluster_before"] != r["cluster_after"]),
    }
    counts = {label: by_round for label, by_round in counts.items() if by_round}
    step = -(-last * len(counts) // _MOST_BARS)
    width = step * 0.8 / len(counts)
    bars = []
    for k, (label, by_round) in enumerate(counts.items()):
        bins: Counter[int] = Counter()
        for number, count in by_round.items():
            bins[(number - 1) // step * step + 1] += count
        left = [number + (step - 1) / 2 - 0.4 * step + k * width for number in sorted(bins)]
        bars.append(Bars(label, left, width, [bins[number] for number in sorted(bins)]))
    rounds = sorted(set().union(*counts.values()))
    rows = [[number, *(by_round[number] for by_round in counts.values())] for number in rounds[:500]]
    told = ", ".join(f"{label} {sum(by_round.values())}" for label, by_round in counts.items())
    pooled = f" A bar counts {step} rounds." if step > 1 else ""
    return Figure(
        f"{name}-shifts",
        "Shifts and migrations",
        Panel("", "round", "clients", bars=bars),
        f"Clients whose data shifted, whose drift was detected, and which then changed their cluster.{pooled}",
        f"Bars over rounds 1 to {last}, clients: {told}.",
        {"data shifted": Style(SKY), "drift detected": Style(ORANGE), "cluster changed": Style(BLUE)},
        Table("Shifts: values", ["round", *counts], rows, folded=True, note=cut_note(len(rows), len(rounds), "rounds")),
    )


def _delays(moved: Sequence[Row], found: Sequence[Row]) -> list[int | None]:
    """Counts the rounds from each shift of a client to the next detection of its drift, before its next shift."""
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


def delays(run: RunFiles, name: str) -> Figure | None:
    """Draws how late shifts were detected; None where data do not shift, or nothing was detected."""
    moved, found = _shifts(run)
    if not moved or not found:
        return None
    waits = _delays(moved, found)
    late = [delay for delay in waits if delay is not None]
    never, counts = len(waits) - len(late), Counter(late)
    mean = f"{fmean(late):.2f} rounds on average" if late else "none was detected"
    rows: list[list[str | int]] = [[str(delay), counts[delay]] for delay in sorted(counts)]
    others = len(found) - len(late)
    more = f" {others} more detections were not the first after a shift." if others > 0 else ""
    return Figure(
        f"{name}-delays",
        "Detection delay",
        Panel(
            "",
            "rounds from a shift to its detection",
            "shifts",
            x_ticks={float(delay): str(delay) for delay in sorted(counts)} if len(counts) <= 20 else {},
            bars=[Bars("shifts", [delay - 0.4 for delay in sorted(counts)], 0.8, [counts[d] for d in sorted(counts)])],
        ),
        f"Rounds until a client's drift was detected, before its data shifted again: {mean}; {never} of {len(waits)} "
        f"shifts were not detected.{more}",
        f"Histogram of the delay of {len(late)} detected shifts: {mean}; {never} shifts were not detected.",
        {"shifts": Style(GREEN)},
        Table("Delays: values", ["rounds", "shifts"], [*rows, ["not detected", never]], folded=True),
        height=280,
    )
