"""A read-only view of a run after an evaluated round, for pictures and trackers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lit_cfl.scores import Score


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
    """

    path: Path
    score: Score
    last: bool
    memberships: Callable[[], dict[str, np.ndarray]]
    cluster: np.ndarray
    values: np.ndarray
