"""The table at the end of a run, and what to make of it."""

from statistics import fmean
from typing import Any

from rich.console import Console

from lit_cfl import algorithms
from lit_cfl.progress.tables import new_table, number
from lit_cfl.run import Finished
from lit_cfl.tables import read_table

Row = dict[str, Any]
_MANY = 0.25  # share of clients that lose, from which clustering is in doubt


def closing_table(console: Console, finished: Finished) -> None:
    """The figures of a run and its baseline, and what to make of them."""
    parts = [part for part in (finished, finished.baseline) if part is not None]
    table = new_table("", "weighted accuracy", "mean", "worst 10 %", "ARI", "traffic MiB", "time s")
    for part in parts:
        table.add_row(*_cells(part.summary))
    console.print(table)
    seeds = finished.summary.get("seeds")
    note = f"means of {seeds} seeds" if seeds else "test data, last round, a client each"
    console.print(f"({note}; ARI: agreement with the true clusters, 1 = equal)", style="dim", soft_wrap=True)
    for part in parts:
        known = getattr(algorithms, str(part.summary["algorithm"]), None)  # the user's own are not there
        if known is not None and known.reservation:
            console.print(f"({known.reservation})", style="dim", soft_wrap=True)
    if finished.summary["clusters/ari"] is None:
        for line in _without_truth(finished):
            console.print(line, soft_wrap=True, highlight=False)
    console.print(f"Files: {finished.path}", soft_wrap=True, highlight=False)


def _cells(summary: Row) -> list[str]:
    names = ("test/weighted_accuracy", "test/mean_accuracy", "test/worst10_accuracy")
    ari = summary["clusters/ari"]
    return [
        str(summary["algorithm"]),
        *(number(summary[name]) for name in names),
        "unknown" if ari is None else f"{ari:.2f}",
        f"{summary['traffic/mib']:.1f}",
        f"{summary['time/elapsed_seconds']:.1f}",
    ]


def _without_truth(finished: Finished) -> list[str]:
    """What can be said where nobody knows the true clusters."""
    lines = ["The true clusters of these clients are not known, so nothing can be said about agreement with them."]
    score = finished.summary["clusters/silhouette"]
    separated = "not known" if score is None else f"{score:.2f} (1 = well apart, 0 = none)"
    for part in finished.seeds or [finished]:
        found = [row["cluster"] for row in _trained_clients(part) if row["cluster"] is not None]
        sizes = ", ".join(str(found.count(cluster)) for cluster in sorted(set(found)))
        of_seed = f" of seed {part.summary['seed']}" if finished.seeds else ""
        lines.append(f"Cluster sizes{of_seed}: {sizes}.")
    lines.append(f"Silhouette of the updates: {separated}.")
    if finished.baseline is None:
        return [*lines, "To see what clustering gains, set baseline: FedAvg."]
    pairs = zip(finished.seeds or [finished], finished.baseline.seeds or [finished.baseline], strict=True)
    gains = [gain for mine, theirs in pairs for gain in _gains(_trained_clients(mine), _trained_clients(theirs))]
    return lines + _advice(gains, finished.baseline.summary["algorithm"])


def _trained_clients(part: Finished) -> list[Row]:
    return [row for row in read_table(part.path / "clients.csv") if not row["newcomer"]]


def _gains(clients: list[Row], others: list[Row]) -> list[float]:
    pairs = [(a["accuracy"], b["accuracy"]) for a, b in zip(clients, others, strict=True)]
    return [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]


def _advice(gains: list[float], baseline: str) -> list[str]:
    if not gains:
        return []
    losing = sum(gain < 0 for gain in gains) / len(gains)
    lines = [f"Gain per client over {baseline}: {fmean(gains):+.3f} on average; {losing:.0%} of clients lose."]
    if fmean(gains) <= 0 or losing > _MANY:
        lines.append(
            "Clustering does not pay here: try fewer clusters (algorithm.num_clusters) or a longer pre-training."
        )
    else:
        lines.append("Try other numbers of clusters (algorithm.num_clusters) and keep the best validation accuracy.")
    return lines
