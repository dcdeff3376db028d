"""Tables of scores and of newcomers."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lit_cfl.evaluation import SplitScores
from lit_cfl.saved import Placed


def score_table(console: Console, scores: Mapping[str, SplitScores]) -> None:
    """Accuracies on each split."""
    table = new_table("", "clients", "weighted accuracy", "mean", "worst 10 %", "loss")
    for name, found in scores.items():
        metrics = found.metrics("x")
        values = [metrics[f"x/{key}"] for key in ("weighted_accuracy", "mean_accuracy", "worst10_accuracy", "loss")]
        table.add_row(name, str(int((found.count > 0).sum())), *map(number, values))
    console.print(table)


def assignment_table(console: Console, path: Path, placed: Placed) -> None:
    """The cluster of each newcomer."""
    table = new_table("newcomer", "cluster", "closeness", "next best")
    for client, cluster in enumerate(placed.assignment.index.tolist()):
        if cluster < 0:
            table.add_row(str(client), "none: no training data", "", "")
            continue
        near, next_best = "", ""
        if placed.closeness is not None:
            order = placed.closeness[client].argsort(descending=True).tolist()
            near = number(float(placed.closeness[client, cluster]))
            others = [other for other in order if other != cluster][:1]
            next_best = ", ".join(f"{other} ({number(float(placed.closeness[client, other]))})" for other in others)
        table.add_row(str(client), str(cluster), near, next_best)
    console.print(table)
    if placed.closeness is not None:
        console.print("(closeness: the algorithm's own measure, for FedGroup the cosine of first updates)", style="dim")
    console.print(f"Models: lit_cfl.load_run({str(path)!r}).module(<cluster>)", soft_wrap=True, highlight=False)


def new_table(*headings: str) -> Table:
    """A table without lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def number(value: float | None) -> str:
    """Three decimals; a dash for what is not known."""
    return "-" if value is None else f"{value:.3f}"
