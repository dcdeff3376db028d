"""A read-only view of a run after an evaluated round, for pictures and trackers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_cfl.metric_names import TEXT_COLUMNS
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import latest_rows


@dataclass(frozen=True, eq=False)
class RoundView:
    """A run's state after a round, which stays readable while the run continues.

    Args:
        path: Run directory.
        score: The task's main score.
        last: True if the run ends here.
        memberships: Returns the content of `memberships.npz` up to this round.
        cluster: Cluster of the scored clients, `[n]`; -1 = unknown.
        values: Test score of these clients, nan without test data; empty if no client has any.
        clusters: Rows of `clusters.csv` of this round.
        tables: Further tables of the run by name, including the algorithm's own: growing files, and their present
            sizes in bytes.
    """

    path: Path
    score: Score
    last: bool
    memberships: Callable[[], dict[str, np.ndarray]]
    cluster: np.ndarray
    values: np.ndarray
    clusters: Sequence[Mapping[str, Any]]
    tables: Mapping[str, tuple[Path, int]]

    def table(self, name: str) -> list[dict[str, Any]]:
        """Reads the latest rows of a further table, up to this round; empty if there is no such table."""
        return latest_rows(*self.tables[name], TEXT_COLUMNS) if name in self.tables else []
