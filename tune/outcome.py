"""What a study comes to."""

from dataclasses import dataclass
from pathlib import Path

from lit_cfl.metric_names import Row
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.repeats import Repeated


@dataclass(frozen=True)
class Outcome:
    """What a study leaves.

    Args:
        path: its directory.
        rows: of `trials.csv`.
        best: the best of the trials that ran their full budget, or None.
        importance: of each parameter, highest first; empty with few trials.
        repeated: figures of the best and of the default on new seeds, or None.
        to_upload: how to upload what W&B keeps offline, or None.
        objective: that the trials were judged by.
    """

    path: Path
    rows: list[Row]
    best: Row | None
    importance: dict[str, float]
    repeated: Repeated | None
    to_upload: str | None = None
    objective: Objective = Objective()
