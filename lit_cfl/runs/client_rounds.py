"""Writes and reads the scores of each client in each evaluated round: a Parquet file per round in one folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lit_cfl.errors import InputError
from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically

if TYPE_CHECKING:
    from pandas import DataFrame

    from lit_cfl.evaluation import Evaluation  # not imported for reading: a report needs no engine

FOLDER = "client_rounds.parquet"  # folder that pandas and others read as one table


def part_name(round: int) -> str:
    """Names the file of a round within the run directory."""
    return f"{FOLDER}/{round:08d}.parquet"


def columns_of(round: int, evaluation: "Evaluation") -> dict[str, np.ndarray]:
    """Returns a round's columns, each `[n]` with one value per evaluated client; nan = undefined."""
    test = evaluation.scores.get("test")
    clients, cluster = evaluation.clients, evaluation.index
    found: dict[str, Any] = {"round": np.full(len(clients), round), "client": clients.numpy()}
    found["cluster"] = cluster.numpy()
    if test is None:
        return found | {"n": np.zeros(len(clients), dtype=np.int64)}
    scores = {score.name: test.of_clients(k).numpy() for k, score in enumerate(test.scores)}
    found |= {"n": test.count.numpy(), "loss": (test.loss / test.count).numpy()} | scores
    if test.by_class is not None:
        for name, counts in zip(("n", "right"), test.by_class, strict=True):
            found |= {f"{name}_{label}": column.long().numpy() for label, column in enumerate(counts.T)}
    return found


def write_part(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Writes a Parquet file atomically."""
    import pyarrow
    from pyarrow import parquet

    with name_write_errors(path.parent):
        path.parent.mkdir(exist_ok=True)
    table = pyarrow.table(dict(columns))
    write_atomically(path, lambda file: parquet.write_table(table, file))


def read_parts(path: Path, last: int) -> "DataFrame":
    """Reads the clients' scores in all evaluated rounds up to a round, in order.

    Raises:
        InputError: The run has no such rows.
    """
    from pandas import concat, read_parquet

    files = sorted(file for file in path.glob(f"{FOLDER}/*.parquet") if int(file.stem) <= last)
    if not files:
        raise InputError(f"{path} has no {FOLDER}; run it with evaluation.per_client: true")
    return concat([read_parquet(file) for file in files], ignore_index=True)
