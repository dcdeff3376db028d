"""Tests what readers of pages and pictures see, against recorded content (see `helpers/golden.py`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import golden_cases as cases
import numpy as np
import pytest
from golden import check_golden
from inside_shown import compare_on_new_seeds, page_of, results_of
from made_runs import finish, made_run, write_table

from lit_cfl.metric_names import CLIENTS, CLUSTERS, METRICS
from lit_cfl.pictures.curves import learning_curve, mean_curves
from lit_cfl.pictures.figure import Table
from lit_cfl.scores import ACCURACY
from lit_cfl.storage.error_file import write_error

GOLDEN = Path(__file__).with_name("golden")


def described(shown: Any) -> Any:
    """Describes a page, a figure or a part of one by those of its fields that do not have their default."""
    if is_dataclass(shown):
        own = {one.name: getattr(shown, one.name) for one in fields(shown) if not _is_default(shown, one)}
        rows = {"head": _row(shown.head), "rows": list(map(_row, shown.rows))} if isinstance(shown, Table) else {}
        return {name: described(value) for name, value in (own | rows).items()}
    if isinstance(shown, Mapping):
        return {str(name): described(value) for name, value in shown.items()}
    if isinstance(shown, list | tuple):
        return [described(value) for value in shown]
    return shown.splitlines() if isinstance(shown, str) and "\n" in shown else shown


def _is_default(shown: Any, one: "Field[Any]") -> bool:
    value = getattr(shown, one.name)
    return callable(value) or (not isinstance(value, np.ndarray) and value in (one.default, [], {}))


def _row(cells: Sequence[Any]) -> str:
    return " | ".join("" if cell is None else str(cell) for cell in cells)


TRUE = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2])
# found cluster 0 is true cluster 1, 1 is 2, and 2 is 0, but for client 3
FOUND = {  # clusters of the clients by round
    1: [0, 0, 0, 0, 0, 0, 0, 0, 0],
    3: [2, 2, 2, 2, 0, 0, 0, 0, 0],
    4: [2, 2, 2, 2, 0, 0, 0, 1, 1],
}
SPLITS = [  # round, cluster, parent, size
    *((1, 0, None, 9), (2, 0, 0, 6), (2, 2, 0, 3), (3, 0, 0, 5), (3, 2, 0, 4), (4, 0, 0, 3), (4, 1, 0, 2), (4, 2, 0, 4))
]
OF_CLIENTS = (0.15, 0.35, 0.35, 0.625, 0.75, 0.8125, 0.95, 0.45, None)  # score of each client


def write_memberships(path: Path, true: np.ndarray = TRUE) -> None:
    arrays = {"rounds": np.array(list(FOUND)), "cluster": np.array(list(FOUND.values())), "true_cluster": true}
    np.savez(path / "memberships.npz", **arrays)


def write_clients(path: Path, names: Sequence[str] = (), newcomers: int = 0) -> None:
    """Writes the table of clients, the last ones of which are newcomers."""
    rows = [
        {"client": k, "cluster": found, "true_cluster": int(TRUE[k]), "n_train": 20 + 3 * k, "n_test": 3 + k}
        | {"accuracy": OF_CLIENTS[k], "newcomer": int(k >= len(TRUE) - newcomers)}
        | ({"name": names[k]} if names else {})
        for k, found in enumerate(FOUND[4])
    ]
    write_table(path / "clients.csv", (*CLIENTS, *(["name"] if names else [])), rows)


def write_snapshots(path: Path) -> None:
    """Writes the similarity of clients 8, 0, 5, 3, 6 and 2, which is not the order of their clusters."""
    clients = np.array([8, 0, 5, 3, 6, 2])
    for number in (2, 4):
        angles = np.array([2.0, 0.25, 1.25, 0.5, 1.0, -0.125]) * (0.5 if number == 2 else 1.0)
        alike = np.round(np.cos(angles[:, None] - angles), 3)
        arrays = {"similarity": alike, "projection": np.stack([angles, np.round(angles**2 - 1, 3)], axis=1)}
        halves = {key: values.astype(np.float16) for key, values in arrays.items()}
        found = {"cluster": np.array(FOUND[3 if number == 2 else 4])[clients], "true_cluster": TRUE[clients]}
        np.savez(path / "snapshots" / f"{number}.npz", clients=clients, compared=np.array(9), **halves, **found)


def started_run(path: Path, numbers: Sequence[int] = (1, 2, 3, 4), **changes: Any) -> tuple[Path, list[dict[str, Any]]]:
    """Writes a run without an end; returns its path and its rows of metrics."""
    rows, columns = list(map(cases.usual_row, numbers)), ("round", "cluster", "parent", "size")
    made_run(path, rows, snapshots=0, over=False, **changes)
    known = [row for row in SPLITS if row[0] <= max(numbers)]
    write_table(path / "clusters.csv", CLUSTERS, cases.rows_of(columns, known))
    return path, rows


def finished_run(path: Path) -> Path:
    path, rows = started_run(path)
    write_memberships(path)
    write_snapshots(path)
    write_clients(path)
    return finish(path, rows)


def run_of_layers(path: Path) -> Path:
    """Writes a run of LayerCFL without known true clusters, which stopped early."""
    own = {"class_path": "lit_cfl.algorithms.LayerCFL", "init_args": {}}
    path, rows = started_run(path, algorithm=own, rounds=9)
    rows[-1] |= {"clusters/ari": None}
    write_table(path / "metrics.csv", METRICS, rows)
    write_memberships(path, np.full(9, -1))
    return finish(path, rows, algorithm="LayerCFL", stopped="the loss is below 1")


def unfinished_run(path: Path) -> Path:
    """Writes a run that was interrupted in round 4: its last row is half."""
    path, _ = started_run(path, (1, 2, 3))
    with (path / "metrics.csv").open("a") as file:
        file.write("4,0.9375,0.8")
    return path


SHIFTED = [(2, 0), (6, 0), (3, 1), (5, 2), (7, 3), (7, 4), (7, 5)]  # round, client
NOTICED = [  # round, client, cluster before, cluster after, detected
    *((2, 0, 0, 0, 1), (4, 0, 0, 1, 1), (11, 0, 1, 1, 1), (1, 1, 0, 0, 1), (9, 2, 1, 0, 0), (12, 3, 0, 2, 0))
]


def drifting_run(path: Path) -> Path:
    """Writes a run of twelve rounds with shifts, detections, and changes of clusters without one."""
    numbers = range(1, 13)
    more = [{"round": k, "traffic/mib": 1.5 * k, "local/examples": 310 * k} for k in numbers]
    rows = [cases.usual_row(1 + number % 4) | own for number, own in zip(numbers, more, strict=True)]
    drift = {"class_path": "lit_cfl.algorithms.FedDrift", "init_args": {}}
    made_run(path, rows, snapshots=0, over=False, rounds=12, algorithm=drift)
    (path / "clusters.csv").unlink()
    write_table(path / "shift.csv", ("round", "client"), cases.rows_of(("round", "client"), SHIFTED))
    columns = ("round", "client", "cluster_before", "cluster_after", "detected")
    write_table(path / "migrations.csv", columns, cases.rows_of(columns, NOTICED))
    return finish(path, rows, algorithm="FedDrift")


def run_with_newcomers(path: Path) -> Path:
    path, rows = started_run(path, algorithm={"class_path": "lit_cfl.algorithms.FedEM", "init_args": {}})
    write_clients(path, [f"station {'CADBHGFEI'[k]}" for k in range(9)], newcomers=2)
    return finish(path, rows, algorithm="FedEM", **{"test/newcomers_accuracy": 0.40625})


def comparison(path: Path) -> list[Path]:
    """Writes a comparison in which one run failed, and one seed of Oracle has not started."""
    cases.compared_runs(path, [("IFCA", 2), ("Oracle", 0)])
    why = write_error(path / "IFCA" / "seed-2", ValueError("too warm"))
    results_of(path, cases.compared_experiments(), 0.5, {("IFCA", 2): why})
    return [path]


def study(path: Path) -> list[Path]:
    compare_on_new_seeds(cases.searched_study(path))
    return [path]


PAGES: dict[str, Callable[[Path], Sequence[Path]]] = {
    "finished_run": lambda path: [finished_run(path)],
    "unfinished_run": lambda path: [unfinished_run(path)],
    "run_of_layers": lambda path: [run_of_layers(path)],
    "drifting_run": lambda path: [drifting_run(path)],
    "run_with_newcomers": lambda path: [run_with_newcomers(path)],
    "two_runs": lambda path: [  # of one algorithm with different options, one of them unfinished
        finished_run(path / "one"),
        started_run(path / "other", (1, 2), cohort_size=3)[0],
    ],
    "comparison": comparison,
    "data_sets": lambda path: [
        cases.ranked_comparison(path / name, 8 + k, own) for k, (name, own) in enumerate(cases.RANKED.items())
    ],
    "study": study,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_was_recorded(name: str, tmp_path: Path):
    page = page_of(*PAGES[name](tmp_path / "shown"))
    check_golden(GOLDEN / f"{name}.json", described(page), tmp_path)


def test_curves_of_a_run_and_of_a_comparison_show_what_was_recorded(tmp_path: Path):
    runs = {"CFL": list(map(cases.usual_row, (1, 2, 3, 4)))}
    runs["FedAvg (baseline)"] = runs["CFL"][:3]
    results = results_of(cases.compared_runs(tmp_path), cases.compared_experiments(), 0.5)
    curves = {"run": learning_curve(runs, ACCURACY), "comparison": mean_curves(results.tables, 0.5)}
    check_golden(GOLDEN / "curves.json", described(curves))
