"""What a run shows on the screen: a live line in a terminal, a line now and then in a pipe, and the closing table."""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lit_cfl.evaluation import Scores
from lit_cfl.run import Finished, Watch
from lit_cfl.saved import Placed
from lit_cfl.tables import read_table

Row = dict[str, Any]
_WIDE = 110  # characters, from which there is room for a bar
_MANY = 0.25  # share of clients that lose, from which clustering is in doubt
_QUIET_SECONDS = 2.0  # least time between two lines in a pipe


def watch(console: Console, between_clients: Callable[[], None] = lambda: None) -> Watch:
    """A display that suits where the output goes."""
    display = _Live(console) if console.is_terminal else _Lines(console)
    return Watch(display.started, between_clients, display.row, display.ended)


def describe(row: Row) -> str:
    """What matters of a row of `metrics.csv`, in at most 55 characters."""
    split = "val" if row["val/weighted_accuracy"] is not None else "test"
    accuracy = row[f"{split}/weighted_accuracy"]
    parts = [f"{split} accuracy {'-' if accuracy is None else f'{accuracy:.2f}'}", f"clusters {row['clusters/count']}"]
    if row["clusters/ari"] is not None:
        parts.append(f"ARI {row['clusters/ari']:.2f}")
    if row["clusters/unobserved"]:
        parts.append(f"{row['clusters/unobserved']} unplaced")
    return "  ".join(parts)


class _Live:
    """A progress bar that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def started(self, title: str, first: int, rounds: int) -> None:
        bar = [BarColumn(bar_width=20)] if self.console.width >= _WIDE else []
        self.progress = Progress(
            TextColumn("[bold]{task.description}"), *bar, MofNCompleteColumn(), TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(compact=True), TextColumn("left"), console=self.console,
        )  # fmt: skip
        self.task = self.progress.add_task(title, total=rounds, completed=first, line="starting")
        self.progress.start()

    def row(self, row: Row) -> None:
        self.progress.update(self.task, completed=row["round"] + 1, line=describe(row))

    def ended(self, reason: str | None) -> None:
        self.progress.stop()
        _say_stopped(self.console, reason)


class _Lines:
    """A line at most every two seconds, and one for the last round."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def started(self, title: str, first: int, rounds: int) -> None:
        self.title, self.first, self.rounds, self.begun = title, first, rounds, monotonic()
        self.printed = 0.0

    def row(self, row: Row) -> None:
        now, done = monotonic(), row["round"] + 1
        if now - self.printed < _QUIET_SECONDS and done < self.rounds:
            return
        self.printed = now
        left = (now - self.begun) / (done - self.first) * (self.rounds - done)
        self.console.print(
            f"{self.title}  round {done}/{self.rounds}  {describe(row)}  {left:.0f} s left",
            soft_wrap=True,
            highlight=False,
        )

    def ended(self, reason: str | None) -> None:
        _say_stopped(self.console, reason)


def _say_stopped(console: Console, reason: str | None) -> None:
    if reason is not None:
        console.print(f"Stopped early: {reason}.", soft_wrap=True)


def closing_table(console: Console, finished: Finished) -> None:
    """The figures of a run and its baseline, and what to make of them."""
    table = _table("", "weighted accuracy", "mean", "worst 10 %", "ARI", "traffic MiB", "time s")
    for part in (finished, finished.baseline):
        if part is not None:
            table.add_row(*_cells(part.summary))
    console.print(table)
    seeds = finished.summary.get("seeds")
    note = f"means of {seeds} seeds" if seeds else "test data, last round, a client each"
    console.print(f"({note}; ARI: agreement with the true clusters, 1 = equal)", style="dim", soft_wrap=True)
    if finished.summary["clusters/ari"] is None:
        for line in _without_truth(finished):
            console.print(line, soft_wrap=True, highlight=False)
    console.print(f"Files: {finished.path}", soft_wrap=True, highlight=False)


def _cells(summary: Row) -> list[str]:
    names = ("test/weighted_accuracy", "test/mean_accuracy", "test/worst10_accuracy")
    ari = summary["clusters/ari"]
    return [
        str(summary["algorithm"]),
        *(_number(summary[name]) for name in names),
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


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def score_table(console: Console, scores: Mapping[str, Scores]) -> None:
    """Accuracies on each split."""
    table = _table("", "clients", "weighted accuracy", "mean", "worst 10 %", "loss")
    for name, found in scores.items():
        metrics = found.metrics("x")
        values = [metrics[f"x/{key}"] for key in ("weighted_accuracy", "mean_accuracy", "worst10_accuracy", "loss")]
        table.add_row(name, str(int((found.count > 0).sum())), *map(_number, values))
    console.print(table)


def assignment_table(console: Console, path: Path, placed: Placed) -> None:
    """The cluster of each newcomer."""
    table = _table("newcomer", "cluster", "closeness", "next best")
    for client, cluster in enumerate(placed.assignment.index.tolist()):
        if cluster < 0:
            table.add_row(str(client), "none: no training data", "", "")
            continue
        near, next_best = "", ""
        if placed.closeness is not None:
            order = placed.closeness[client].argsort(descending=True).tolist()
            near = _number(float(placed.closeness[client, cluster]))
            others = [other for other in order if other != cluster][:1]
            next_best = ", ".join(f"{other} ({_number(float(placed.closeness[client, other]))})" for other in others)
        table.add_row(str(client), str(cluster), near, next_best)
    console.print(table)
    if placed.closeness is not None:
        console.print("(closeness: the algorithm's own measure, for FedGroup the cosine of first updates)", style="dim")
    console.print(f"Models: lit_cfl.load_run({str(path)!r}).module(<cluster>)", soft_wrap=True, highlight=False)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table
