"""What the check takes from inside of the package; a later issue that changes the inside adapts this file alone."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from lit_cfl import Experiment


def shrink(experiment: Experiment) -> Experiment:
    """Returns a small copy of an experiment, as `lit-cfl run --tiny` makes it: few clients, samples and steps."""
    from lit_cfl.config.tiny import shrink

    return shrink(experiment)


def served_models(run: Any) -> dict[str, torch.Tensor]:
    """Returns the final models of an opened run by name: `models` `[K, d]`, and what else its clients use."""
    served = run.served()
    found = {"models": served.models} | {f"extra {name}": row[None] for name, row in served.extra.items()}
    if served.weights is not None:
        found["weights of mixtures"] = served.weights
    if served.own is not None:
        own = served.own.rows
        rows = [torch.as_tensor(own[client]) for client in sorted(own)]
        found["personal layers"] = torch.stack(rows) if rows else torch.empty(0, len(served.own.columns))
    return found


@contextmanager
def watched_training() -> Iterator[Counter[str]]:
    """Counts what a run asks of its clients within the block.

    `compiled` are fits by `steps.cpp`, `fits` all fits; `losses` and `gradients` are requests of the algorithm.
    """
    from lit_cfl.engines.chain import ChainWay
    from lit_cfl.engines.round_work import RoundWork
    from lit_cfl.engines.ways import WAYS

    counts: Counter[str] = Counter()
    places = [(ChainWay, "fit", "compiled"), (RoundWork, "gradients", "gradients")]
    places += [(RoundWork, name, "losses") for name in ("losses", "example_losses")]
    places += [(way, "fit", "fits") for way in WAYS if "fit" in vars(way)]
    before = [(kind, method, getattr(kind, method)) for kind, method, _ in places]
    for kind, method, name in places:
        setattr(kind, method, _counting(getattr(kind, method), counts, name))
    try:
        yield counts
    finally:
        for kind, method, function in before:
            setattr(kind, method, function)


def _counting(function: Any, counts: Counter[str], name: str) -> Any:
    @wraps(function)
    def counted(*args: Any, **options: Any) -> Any:
        counts[name] += 1
        return function(*args, **options)

    return counted
