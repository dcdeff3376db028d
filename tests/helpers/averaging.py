"""Algorithms that average models in clusters, and runs of a few rounds on quadratic clients."""

from collections.abc import Iterator
from typing import Any

import torch
from quadratic import ids, rng
from torch import Tensor

from lit_cfl.algorithms import (
    FLHC,
    IFCA,
    PACFL,
    Algorithm,
    Ditto,
    FedAvg,
    FedDrift,
    FedEM,
    FedGroup,
    FedGrouProx,
    FedProx,
    FeSEM,
    FlexCFL,
    Oracle,
    StoCFL,
)
from lit_cfl.testing import QuadraticWork

AVERAGING = [
    FedAvg,
    FedProx,
    Ditto,
    IFCA,
    FeSEM,
    FLHC,
    FedGroup,
    FedGrouProx,
    FlexCFL,
    StoCFL,
    Oracle,
    FedDrift,
    FedEM,
    PACFL,
]
COHORTS = [ids(0, 1, 5), ids(2, 6, 3, 7), ids(4, 1), ids(0, 2, 3), ids(5, 6, 7, 1, 0)]


def states(algorithm: Algorithm, work: QuadraticWork, cohorts: list[Tensor] = COHORTS) -> Iterator[Any]:
    """Yields the state after each round."""
    state, _ = algorithm.init(work, rng())
    for number, cohort in enumerate(cohorts):
        everyone = torch.arange(len(work.centers)) if algorithm.needs_all(number) else cohort
        state, _ = algorithm.round(state, everyone, work.at(number), rng(number))
        yield state
