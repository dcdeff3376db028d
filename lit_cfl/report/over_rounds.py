"""The section on metrics over rounds and traffic: one line per group, with a band over its seeds."""

from collections.abc import Mapping, Sequence
from functools import partial

from lit_cfl.metric_names import Row
from lit_cfl.pictures.curves import COSTS, Means, over_cost, over_rounds
from lit_cfl.pictures.figure import finite_number
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
    clients, late = _scored_clients(groups)
    shown = [
        (main, f"{score.heading} on test data", title, f"Over the examples of {clients}.{late}"),
        (
            f"val/weighted_{score.name}",
            f"{score.heading} on validation data",
            title,
            f"Over the validation examples of {clients}.{late}",
        ),
        (f"test/worst10_{score.name}", "Worst tenth of the clients", title, f"Their mean {title} on test data.{late}"),
        ("test/loss", "Loss on test data", "loss", f"Mean over the examples of {clients}.{late}"),
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


def _scored_clients(groups: Sequence[Group]) -> tuple[str, str]:
    """Describes the scored clients, and says until which round some clients had no model."""
    scored = {
        group.name: [
            (int(row["round"]), number, _count_clients(row) or number)
            for run in group.counted
            for row in run.rows
            if (number := finite_number(row.get("clients/evaluated"))) is not None
        ]
        for group in groups
    }
    every = max((clients for rows in scored.values() for _, _, clients in rows), default=0)
    options = [found for group in groups if isinstance(found := group.first.config.get("evaluation"), Mapping)]
    wanted = min([every, *(one["clients"] for one in options if isinstance(one.get("clients"), int))])
    fewer = {name: max((k for k, number, _ in rows if number < wanted), default=0) for name, rows in scored.items()}
    until = [f"{last} of {name}" if len(groups) > 1 else str(last) for name, last in fewer.items() if last]
    sample = f"a fixed sample of {wanted:g} of the {every:g} clients" if wanted < every else ""
    if not until:
        return sample or "all clients", ""
    rounds = " and ".join(filter(None, (", ".join(until[:-1]), until[-1])))
    return (
        f"the clients{f' in {sample}' if sample else ''} that have a model",
        f" Some clients have no model up to and including round {rounds} (evaluation.clients: all scores these, too).",
    )


def _count_clients(row: Row) -> float | None:
    """Counts the clients in training, by a row of `metrics.csv`; None if it does not say so."""
    assigned, others = (finite_number(row.get(f"clusters/{name}")) for name in ("assigned", "unobserved"))
    return None if assigned is None or others is None else assigned + others
