"""Lists of algorithms, and runs of a few rounds on quadratic clients."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from quadratic import ids, rng
from torch import Tensor, nn
from torch.optim import SGD

import lit_cfl.algorithms
from lit_cfl.algorithms import Algorithm, Info
from lit_cfl.config import catalogue
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.tasks import Classification
from lit_cfl.testing import QuadraticWork

ALL: list[type[Algorithm]] = [getattr(lit_cfl.algorithms, name) for name in catalogue.names("algorithms")]
AVERAGING = [kind for kind in ALL if kind().reason_without_means is None]  # models, in clusters
COHORTS = [ids(0, 1, 5), ids(2, 6, 3, 7), ids(4, 1), ids(0, 2, 3), ids(5, 6, 7, 1, 0)]
SPLITS: dict[str, Any] = {"eps1": 100.0, "eps2": 0.0, "warmup_rounds": 0}  # if a cluster has three clients


def begin(algorithm: Algorithm, work: QuadraticWork, *models: float | list[float], **changes: Any) -> Any:
    """Returns the state before round 0, with these models, if any are given, and these changes."""
    state, _ = algorithm.init(work, rng())
    if models:
        rows = torch.tensor(models, dtype=torch.float64)
        changes["models"] = rows[:, None] if rows.ndim == 1 else rows
    return replace(state, **changes)


def run(
    algorithm: Algorithm, work: QuadraticWork, cohorts: list[Tensor] = COHORTS, state: Any = None
) -> Iterator[tuple[Any, Info]]:
    """Yields the state and the Info after each round; all clients take part if the algorithm needs them."""
    state = begin(algorithm, work) if state is None else state
    for number, cohort in enumerate(cohorts):
        everyone = work.population if algorithm.needs_all(number) else cohort
        state, info = algorithm.round(state, everyone, work.at(number), rng(number))
        yield state, info


def states(
    algorithm: Algorithm, work: QuadraticWork, cohorts: list[Tensor] = COHORTS, state: Any = None
) -> Iterator[Any]:
    return (after for after, _ in run(algorithm, work, cohorts, state))


def last(algorithm: Algorithm, work: QuadraticWork, cohorts: list[Tensor] = COHORTS, state: Any = None) -> Any:
    *_, after = states(algorithm, work, cohorts, state)
    return after


def truth_for(algorithm: Algorithm | type[Algorithm]) -> dict[str, Any]:
    """Returns the option `true_clusters` for algorithms that see them: even and odd clients."""
    return {"true_clusters": torch.arange(8) % 2 if algorithm.sees_truth else None}


class Rotating(QuadraticWork):
    """Clients whose data rotate: from round `first` on, `each` more per round get their predecessor's data."""

    first, each = 1, 1

    def at(self, round: int, data: object = None) -> "QuadraticWork":
        view, source = super().at(round), torch.arange(len(self.centers))
        moved = self.each * max(0, round - self.first + 1)
        source[:moved] = (source[:moved] - 1) % len(self.centers)
        view.centers, view.label_counts = self.centers[source], self.label_counts[source]
        return view


def empty_data(clients: int) -> FederatedData:
    """Makes data without examples, since the round loop itself reads only their population."""
    none = ClientIndex.empty(clients)
    return FederatedData(Examples(torch.empty(0, 1), ids(), 1), none, none, none, torch.full((clients,), -1))


def batch_norm(**options: Any) -> Classification:
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, **options), nn.Linear(64, 10))
    return Classification(net, partial(SGD, lr=0.1))
