"""Writes run directories without training, with any number of clients, rounds and snapshots."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lit_cfl.metric_names import CLIENTS, CLUSTERS, METRICS, Row
from lit_cfl.storage.config_file import write_config
from lit_cfl.storage.csv_log import as_csv
from lit_cfl.storage.digests import SUMS, digest_of, write_sums


def config(**changes: Any) -> dict[str, Any]:
    return {
        "data": {"class_path": "lit_cfl.datamodules.Digits", "init_args": {"num_clients": 8, "partition_seed": None}},
        "algorithm": {"class_path": "lit_cfl.algorithms.CFL", "init_args": {}},
        "seeds": [0],
        "rounds": 4,
    } | changes


def metric_row(number: int, **values: Any) -> dict[str, Any]:
    usual = {"round": number, "traffic/mib": 1.5 * number, "clusters/count": 1 + (number > 1), "clusters/ari": 1.0}
    usual |= {f"{split}/weighted_accuracy": 0.1 * number for split in ("test", "val")} | {"test/loss": 2.0 / number}
    return dict.fromkeys(METRICS) | usual | values


def write_table(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    cells = [["" if row.get(column) is None else row[column] for column in columns] for row in rows]
    path.write_bytes(as_csv([columns, *cells]))


def made_run(
    path: Path, rows: list[Row] | None = None, clients: int = 8, snapshots: int = 2, over: bool = True, **changes: Any
) -> Path:
    """Writes a run of clients in two clusters, the second of which was split off in round 2.

    It has the `rows` of `metrics.csv`, or four usual ones, and a similarity matrix in each of the first `snapshots`
    rounds; `over` tells whether it has finished, and `changes` are those of its configuration.
    """
    path.mkdir(parents=True)
    write_config(path, config(**changes))
    rows = [metric_row(number) for number in range(1, 5)] if rows is None else rows
    write_table(path / "metrics.csv", METRICS, rows)
    (path / "environment.json").write_text(json.dumps({"python": "3.11.0", "packages": {"torch": "2.15"}}))
    true = np.arange(clients) % 2
    write_table(
        path / "clusters.csv",
        CLUSTERS,
        [{"round": row["round"], "cluster": 0, "size": clients - clients // 2 * (row["round"] > 1)} for row in rows]
        + [{"round": row["round"], "cluster": 1, "parent": 0, "size": clients // 2} for row in rows[1:]],
    )
    alike = np.where(true[:, None] == true, 0.5, -0.25)  # cosines between clients of one cluster, and of two
    np.fill_diagonal(alike, 1.0)
    plane = np.stack([true - 0.5, np.linspace(-0.1, 0.1, clients)], axis=1)
    arrays = {"similarity": alike.astype(np.float16), "projection": plane.astype(np.float16)}
    arrays |= {"clients": np.arange(clients), "compared": np.array(clients), "cluster": true, "true_cluster": true}
    (path / "snapshots").mkdir()
    for number in range(1, snapshots + 1):
        np.savez(path / "snapshots" / f"{number}.npz", **arrays)
    if not over:
        return path
    rounds = np.array([row["round"] for row in rows])
    np.savez(path / "memberships.npz", rounds=rounds, cluster=np.outer(rounds > 1, true), true_cluster=true)
    table = [
        {"client": k, "cluster": c, "true_cluster": c, "n_train": 10 + k, "accuracy": 0.5 + 0.25 * c, "newcomer": 0}
        for k, c in enumerate(true.tolist())
    ]
    write_table(path / "clients.csv", CLIENTS, table)
    return finish(path, rows)


def finish(path: Path, rows: Sequence[Mapping[str, Any]], **summary: Any) -> Path:
    best = max((row["test/weighted_accuracy"] for row in rows if row.get("test/weighted_accuracy")), default=None)
    about = {"algorithm": "CFL", "seed": 0, "stopped": None, "test/max_weighted_accuracy": best}
    (path / "summary.json").write_text(json.dumps({**rows[-1], **about, **summary}))
    return seal(path)


def seal(path: Path) -> Path:
    files = [file for file in path.rglob("*") if file.is_file() and file.name != SUMS]
    write_sums(path, {str(file.relative_to(path)): digest_of(file) for file in files})
    return path
