"""What there is to see of a run after an evaluated round, for pictures and trackers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_cfl.tables import latest_rows


@dataclass(frozen=True, eq=False)
class Look:
    """A run after a round.

    Args:
        round: that was evaluated.
        last: whether the run ends here.
        memberships: gives the content of `memberships.npz` up to here.
        cluster, accuracy: of the clients that were scored, `[n]`; the accuracy is nan without test data.
        clusters: the rows of `clusters.csv` of this round.
        snapshots: the folder of snapshots.
        compared: the round of the latest snapshot; None = there is none.
        tables: the run's further tables by name, among them the algorithm's own: files that grow, and how many bytes
            they have now.
    """

    round: int
    last: bool
    memberships: Callable[[], dict[str, np.ndarray]]
    cluster: np.ndarray
    accuracy: np.ndarray
    clusters: Sequence[Mapping[str, Any]]
    snapshots: Path
    compared: int | None
    tables: Mapping[str, tuple[Path, int]]

    def snapshot(self) -> dict[str, np.ndarray]:
        """The content of the latest snapshot."""
        with np.load(self.snapshots / f"{self.compared}.npz") as arrays:
            return dict(arrays)

    def table(self, name: str) -> list[dict[str, Any]]:
        """The latest rows of a further table, up to here; empty where there is no such table."""
        return latest_rows(*self.tables[name]) if name in self.tables else []
