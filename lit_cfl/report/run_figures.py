"""Makes the figures of a run from its files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lit_cfl.metric_names import Row
from lit_cfl.pictures.clusters import MOST_ROUNDS, client_scores, histogram, memberships, mixtures
from lit_cfl.pictures.events import layers, shifts, splits
from lit_cfl.pictures.figure import Figure, Table, finite_number, thin
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.panels import Note
from lit_cfl.pictures.sample import MOST_CLIENTS
from lit_cfl.pictures.similar_clients import MOST_COMPARED, client_map, similarity
from lit_cfl.report.run_files import RunFiles, attempt
from lit_cfl.runs.client_rounds import FOLDER, read_parts
from lit_cfl.scores import Score

_MOST_FRAMES = 8  # maximum number of matrices of a page; at least one per run
_CLIENTS, _FEWEST = 1500, 60  # maximum number of clients in matrices and maps of a page, and the minimum per run


def figures_of(run: RunFiles, name: str, score: Score, runs: int) -> list[Figure]:
    """Makes all figures for which the run's files suffice. Problems with damaged tables are recorded.

    Args:
        run: Files of the run.
        name: Name of the run, with which names of figures begin.
        score: Main score.
        runs: Runs that share the page.
    """
    moved, found = _rows_of(run, "shift"), _rows_of(run, "migrations")
    last = int(run.rows[-1]["round"]) if run.rows else 0
    makers: dict[str, Callable[[], Figure | None]] = {
        "memberships": lambda: _memberships(run, max(40, MOST_ROUNDS // runs)),
        "scores over the rounds": lambda: _client_scores(run, score, max(40, MOST_ROUNDS // runs)),
        "similarity": lambda: _similarity(run, runs),
        "map": lambda: _client_map(run, score, max(_FEWEST, min(MOST_CLIENTS, _CLIENTS // runs))),
        "scores of the clients": lambda: _histogram(run, score),
        "weights of the models": lambda: _mixtures(run),
        "splits": lambda: splits(run.table("clusters"), run.match),
        "layers": lambda: layers(run.table("layers")),
        "shifts": lambda: shifts(moved, found, last),
    }
    # drawing may fail, since tables may hold anything
    guard = DrawingGuard(lambda line: run.problems.append(f"{run.path}: {line}."))
    figures = [guard(what, make) for what, make in makers.items()]
    names = {int(row["client"]): row["name"] for row in _rows_of(run, "clients") if row.get("name")}
    return [
        replace(figure, name=f"{name}-{figure.name}", table=_with_names(figure.table, names))
        for figure in figures
        if figure is not None
    ]


def _with_names(table: Table | None, names: Mapping[Any, str]) -> Table | None:
    """Adds the clients' names, by number, to a table with a row per client; other tables stay unchanged."""
    if table is None or table.head[0] != "client" or not names:
        return table
    rows = [[client, names.get(client), *others] for client, *others in table.rows]
    return replace(table, head=["client", "name", *table.head[1:]], rows=rows)


def _rows_of(run: RunFiles, table: str) -> Sequence[Row]:
    """Returns those rows of a table that name a client."""
    return [row for row in run.table(table) if finite_number(row.get("client")) is not None]


def _memberships(run: RunFiles, most_rounds: int) -> Figure | None:
    found = run.memberships
    if found is None:
        return None
    return memberships(found["rounds"], found["cluster"], found["true_cluster"], run.match, most_rounds, run.true_names)


def _client_scores(run: RunFiles, score: Score, most_rounds: int) -> Figure | None:
    if not run.rows or not (run.path / FOLDER).is_dir():
        return None
    table = attempt(run.problems, run.path / FOLDER, lambda: read_parts(run.path, int(run.rows[-1]["round"])))
    if table is None or score.name not in table:
        return None
    rounds, row = np.unique(table["round"], return_inverse=True)
    clients, column = np.unique(table["client"], return_inverse=True)
    values = np.full((len(rounds), len(clients)), np.nan)
    values[row, column] = table[score.name]
    cluster = np.full(len(clients), -1)
    cluster[column] = table["cluster"]  # the last round's, since rows are in the order of the rounds
    return client_scores(rounds, clients, values, cluster, score, most_rounds)


def _similarity(run: RunFiles, runs: int) -> Figure | None:
    numbers = run.snapshots
    kept = [numbers[k] for k in thin(len(numbers), max(1, _MOST_FRAMES // runs))]
    snapshots = {number: found for number in kept if (found := run.snapshot(number)) is not None}
    most_clients = max(_FEWEST, min(MOST_COMPARED, _CLIENTS // runs))
    if not snapshots:
        return None
    last = max(snapshots)
    return _with_compared(run, similarity(snapshots, len(numbers) - len(kept), most_clients), last, snapshots[last])


def _client_map(run: RunFiles, score: Score, most_clients: int) -> Figure | None:
    rows = {int(row["client"]): row for row in _rows_of(run, "clients")}
    has_names = any(row.get("name") for row in rows.values())

    def about(client: int) -> Note:
        row = rows.get(client, {})
        value, examples = finite_number(row.get(score.name)), finite_number(row.get("n_train"))
        return ({"name": row.get("name")} if has_names else {}) | {
            "training examples": None if examples is None else int(examples),
            score.title: None if value is None else f"{value:.3f}",
        }

    for number in reversed(run.snapshots):
        snapshot = run.snapshot(number)
        if snapshot is not None:
            drawn = client_map(number, snapshot, run.match, about, most_clients, run.true_names)
            return _with_compared(run, drawn, number, snapshot)
    return None


def _with_compared(
    run: RunFiles, figure: Figure | None, round: int, snapshot: Mapping[str, np.ndarray]
) -> Figure | None:
    """Adds to a figure's caption how many of the run's clients were compared in a round, if not all were."""
    total = sum(not row.get("newcomer") for row in run.table("clients"))
    compared = int(snapshot["compared"])
    if figure is None or compared >= total:
        return figure
    text = f" In round {round} the algorithm compared {compared} of the run's {total} clients."
    return replace(figure, caption=f"{figure.caption}{text}")


def _histogram(run: RunFiles, score: Score) -> Figure | None:
    clients = [row for row in run.table("clients") if not row.get("newcomer")]
    rows = [(finite_number(row.get(score.name)), finite_number(row.get("cluster"))) for row in clients]
    values = np.array([np.nan if value is None else value for value, _ in rows])
    cluster = np.array([-1 if own is None else int(own) for _, own in rows], dtype=int)
    return histogram(values, cluster, run.match, score)


def _mixtures(run: RunFiles) -> Figure | None:
    table = run.table("clients")
    columns = [name for name in (table[0] if table else {}) if name.startswith("weight_")]
    rows = [[finite_number(row.get(name)) for name in ("cluster", *columns)] for row in table]
    values = np.array(rows, dtype=float).reshape(len(rows), 1 + len(columns))
    return mixtures(values[:, 1:], np.nan_to_num(values[:, 0], nan=-1).astype(int))
