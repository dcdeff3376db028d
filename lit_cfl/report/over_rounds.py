"""The section on metrics over rounds and traffic: one line per group, with a band over its seeds."""

from collections.abc import Sequence
from functools import partial

from lit_cfl.pictures.curves import COSTS, Means, over_cost, over_rounds
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.report.blocks import Block, Section, Text
from lit_cfl.report.sources import Group
from lit_cfl.scores import Score


def means(group: Group, column: str) -> Means:
    """Computes the means of a metric over the counted runs of a group, in the rounds for which all have it."""
    return Means.of([run.rows for run in group.counted if run.rows], column)


def section(groups: Sequence[Group], score: Score, guard: DrawingGuard) -> Section:
    """Builds the section on metrics over rounds and traffic."""
    title, main = score.title, f"test/weighted_{score.name}"
    of = "the scored clients (evaluation.clients says which)"
    shown = [
        (main, f"{score.heading} on test data", title, f"Over the examples of {of}."),
        (f"val/weighted_{score.name}", f"{score.heading} on validation data", title, f"Over the examples of {of}."),
        (f"test/worst10_{score.name}", "Worst tenth of the clients", title, f"Their mean {title} on test data."),
        ("test/loss", "Loss on test data", "loss", f"Mean over the examples of {of}."),
        ("train/loss", "Training loss", "loss", "Mean over the clients that trained in the round."),
        ("clusters/count", "Number of clusters", "clusters", "Clusters that have a client among those scored."),
        ("clusters/ari", "Agreement with the true clusters", "ARI", "Adjusted Rand index: 1 = equal, 0 = chance."),
    ]
    figures = []
    for column, heading, axis, meaning in shown:
        found = {group.name: means(group, column) for group in groups}
        figures.append(guard(heading, partial(over_rounds, column, heading, axis, meaning, found, score)))
    for name, (column, *_) in COSTS.items():
        spent = {group.name: (means(group, main), means(group, column)) for group in groups}
        figures.append(guard(name, partial(over_cost, name, spent, score)))
    blocks: list[Block] = [figure for figure in figures if figure is not None]
    scored = sorted({int(row["round"]) for group in groups for run in group.runs for row in run.rows})
    if not blocks and len(scored) == 1:
        blocks.append(Text(f"Only round {scored[0]} was scored: its values are in the table of the results."))
    return Section("Over the rounds", blocks)
