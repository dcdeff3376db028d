"""A read-only view of a run after an evaluated round, for pictures and trackers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_cfl.metric_names import TEXT_COLUMNS
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import latest_rows, read_table


@dataclass(frozen=True, eq=False)
class RoundView:
    """A run's state after a round, which stays readable while the run continues.

    Args:
        algorithm: Name of the algorithm.
        score: The task's main score.
        round: Evaluated round.
        last: True if the run ends here.
        memberships: Returns the content of `memberships.npz` up to this round.
        cluster, true_cluster: Cluster and true cluster of the scored clients, `[n]`; -1 = unknown.
        values: Test score of these clients, nan without test data; empty if no client has any.
        clusters: Rows of `clusters.csv` of this round.
        metrics: File `metrics.csv`, and its present size in bytes.
        snapshots: Folder of snapshots.
        compared: Round of the latest snapshot; None = there is none.
        tables: Further tables of the run by name, including the algorithm's own: growing files, and their present
            sizes in bytes.
        true_names: Names of the true clusters 0, 1, ...; empty = none.
    """

    algorithm: str
    score: Score
    round: int
    last: bool
    memberships: Callable[[], dict[str, np.ndarray]]
    cluster: np.ndarray
    true_cluster: np.ndarray
    values: np.ndarray
    clusters: Sequence[Mapping[str, Any]]
    metrics: tuple[Path, int]
    snapshots: Path
    compared: int | None
    tables: Mapping[str, tuple[Path, int]]
    true_names: Sequence[str] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Reads the rows of `metrics.csv` up to this round."""
        return read_table(*self.metrics)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Reads the latest similarity snapshot."""
        with np.load(self.snapshots / f"{self.compared}.npz") as arrays:
            return dict(arrays)

    def table(self, name: str) -> list[dict[str, Any]]:
        """Reads the latest rows of a further table, up to this round; empty if there is no such table."""
        return latest_rows(*self.tables[name], TEXT_COLUMNS) if name in self.tables else []
