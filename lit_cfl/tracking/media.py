"""The W&B media of a round: pictures, a histogram, and tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lit_cfl.pictures.round_view import RoundView
from lit_cfl.scores import ACCURACY

_MAX_ROWS = 1000  # maximum number of rows of a logged table: only its last rows are logged
_BINS = np.linspace(0, 1, 21)


def media(view: RoundView, pictures: Mapping[str, Path], with_tables: bool) -> dict[str, Any]:
    """Makes the wandb objects listed in `docs/tracking.md`, by name.

    Args:
        view: View of the run.
        pictures: Pictures drawn in this round, by name.
        with_tables: Include tables, about which wandb asks its server.
    """
    import wandb

    found: dict[str, Any] = {f"pictures/{name}": wandb.Image(str(path)) for name, path in pictures.items()}
    tested = view.values[np.isfinite(view.values)]
    if len(tested):
        bins = _BINS if view.score == ACCURACY else len(_BINS) - 1
        found[f"clients/{view.score.name}"] = wandb.Histogram(np_histogram=np.histogram(tested, bins))
    if with_tables:
        tables: dict[str, Sequence[Mapping[str, Any]]] = {name: view.table(name) for name in view.tables}
        tables["clusters"] = view.clusters
        found |= {f"tables/{name}": _table(rows) for name, rows in tables.items() if rows}
    return found


def _table(rows: Sequence[Mapping[str, Any]]) -> Any:
    import wandb

    columns: list[str | int] = list(dict.fromkeys(column for row in rows for column in row))
    table = wandb.Table(columns=columns)
    for row in rows[-_MAX_ROWS:]:  # wandb would import pandas for a list of rows
        table.add_data(*(row.get(str(column)) for column in columns))
    return table
