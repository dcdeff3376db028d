"""Tables of scores and of newcomers."""

from collections.abc import Mapping
from math import floor, isfinite, log10
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # these import Lightning, which a page of results does not need
    from lit_cfl.client_scores import SplitScores
    from lit_cfl.runs.newcomers import PlacedNewcomers


def print_agreement(console: Console, placed: "PlacedNewcomers") -> None:
    """Prints the agreement of newcomers' clusters with their true ones, if these are known."""
    if "clusters/ari" in placed.agreement:
        console.print(f"ARI with their true clusters: {placed.agreement['clusters/ari']:.2f} (1 = equal)")


def score_table(console: Console, scores: Mapping[str, "SplitScores"]) -> None:
    """Prints the task's scores, one line per split and score."""
    names = [score.title for found in scores.values() for score in found.scores]
    several = len(set(names)) > 1
    heading = "weighted" if several else f"weighted {names[0]}" if names else "weighted"
    table = new_table("", "clients", heading, "mean", "worst 10 %", "loss")
    for split, found in scores.items():
        metrics, clients = found.metrics("x"), str(int((found.count > 0).sum()))
        for score in found.scores:
            keys = [*(f"{mean}_{score.name}" for mean in ("weighted", "mean", "worst10")), "loss"]
            title = f"{split}: {score.title}" if several else split
            table.add_row(title, clients, *(number(metrics.get(f"x/{key}")) for key in keys))
    console.print(table)


def assignment_table(console: Console, path: Path, placed: "PlacedNewcomers", measure: str) -> None:
    """Prints each newcomer's cluster and closeness, then the newcomers' scores if they are known."""
    table = new_table("newcomer", "cluster", "closeness", "next best")
    for client, (cluster, new) in enumerate(zip(placed.assignment.index.tolist(), placed.new.tolist(), strict=True)):
        name = f"{client} ({placed.names[client]})" if placed.names else str(client)
        if cluster < 0:
            table.add_row(name, "none: no training data", "", "")
        else:
            near, next_best = _closeness(placed, client, cluster, new)
            table.add_row(name, f"{cluster} (new)" if new else str(cluster), near, next_best)
    console.print(table)
    if placed.test is not None:
        score_table(console, {"test": placed.test})
    print_agreement(console, placed)
    if placed.closeness is not None:
        console.print(f"(closeness: {measure}; larger is closer)", style="dim", soft_wrap=True)
    loaded = f"lit_cfl.load_run({str(path)!r})"
    if placed.assignment.weights is not None:
        console.print(f"Weights of their mixtures: {loaded}.assign(<data>).assignment.weights", soft_wrap=True)
        return
    console.print(f"Models: {loaded}.module(<cluster>)", soft_wrap=True)
    if placed.new.any():
        console.print(f"New ones: {loaded}.assign(<data>).module(<newcomer>)", soft_wrap=True)


def _closeness(placed: "PlacedNewcomers", client: int, cluster: int, new: bool) -> tuple[str, str]:
    """Describes a newcomer's closeness to its cluster, and the next best cluster of the run with its closeness."""
    if placed.closeness is None:
        return "", ""
    row = placed.closeness[client].tolist()
    others = [other for other, value in enumerate(row) if isfinite(value) and other != cluster]
    best = max(others, key=row.__getitem__, default=None)
    return "new" if new else number(row[cluster]), "" if best is None else f"{best} ({number(row[best])})"


def new_table(*headings: str) -> Table:
    """Makes a table without borders."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def mebibytes(value: float) -> str:
    """Formats a number of MiB with one decimal, or with two significant digits if it is below 1."""
    return f"{value:.{significant_decimals(value, 2)}f}"


def significant_decimals(value: float, digits: int = 1) -> int:
    """Returns the number of decimals, at least 1, that show this many significant digits of a value of 0 or more."""
    return max(1, digits - 1 - floor(log10(float(f"{value:.{digits}g}")))) if value > 0 else 1


def number(value: float | None, decimals: int = 3) -> str:
    """Formats a number with three decimals unless another number is given; a dash means unknown."""
    return "-" if value is None else f"{value:z.{decimals}f}"
