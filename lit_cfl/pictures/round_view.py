"""A read-only view of a run after an evaluated round, for pictures and trackers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import latest_rows, read_table


@dataclass(frozen=True, eq=False)
class RoundView:
    """A run's state after a round, also while the run continues.

    Args:
        algorithm: Name of the algorithm.
        score: the task's main one.
        round: Evaluated round.
        last: True if the run ends here.
        memberships: gives the content of `memberships.npz` up to here.
        cluster, true_cluster: Cluster and true cluster of the scored clients, `[n]`; -1 = unknown.
        values: their test score, nan without test data; empty where nobody has any.
        clusters: the rows of `clusters.csv` of this round.
        metrics: the file `metrics.csv`, and how many bytes it has now.
        snapshots: the folder of snapshots.
        compared: the round of the latest snapshot; None = there is none.
        tables: the run's further tables by name, among them the algorithm's own: files that grow, and how many bytes
            they have now.
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

    def rows(self) -> list[dict[str, Any]]:
        """Reads the rows of `metrics.csv` up to this round."""
        return read_table(*self.metrics)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Reads the latest snapshot."""
        with np.load(self.snapshots / f"{self.compared}.npz") as arrays:
            return dict(arrays)

    def table(self, name: str) -> list[dict[str, Any]]:
        """Reads the latest rows of a further table, up to this round; empty if there is no such table."""
        return latest_rows(*self.tables[name]) if name in self.tables else []
