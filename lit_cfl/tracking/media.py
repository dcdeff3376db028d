"""The W&B media of a round: pictures and a histogram."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lit_cfl.pictures.round_view import RoundView
from lit_cfl.scores import ACCURACY

_BINS = np.linspace(0, 1, 21)


def media(view: RoundView, pictures: Mapping[str, Path]) -> dict[str, Any]:
    """Makes the wandb objects listed in `docs/tracking.md`, by name.

    Args:
        view: View of the run.
        pictures: Pictures drawn in this round, by name.
    """
    import wandb

    found: dict[str, Any] = {f"pictures/{name}": wandb.Image(str(path)) for name, path in pictures.items()}
    tested = view.values[np.isfinite(view.values)]
    if len(tested):
        bins = _BINS if view.score == ACCURACY else len(_BINS) - 1
        found[f"clients/{view.score.name}"] = wandb.Histogram(np_histogram=np.histogram(tested, bins))
    return found
