"""Shrinks an experiment to one second of work, to see whether it runs at all (`--tiny`)."""

import warnings
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch

from lit_cfl.algorithms.base import Algorithm
from lit_cfl.data import Division, Examples, FederatedData
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.errors import Notice
from lit_cfl.experiment import Experiment
from lit_cfl.local_work import Budget

E = TypeVar("E", bound=Experiment)
_CLIENTS, _SAMPLES, _STEPS = 4, 20, 2
_BUDGET = Budget(_STEPS, "steps", _SAMPLES // _STEPS)


def shrink(experiment: E) -> E:
    """Shrinks an experiment to 4 clients (more for more clusters), 20 samples each, 2 steps and 1 round."""
    asked = [getattr(algorithm, "num_clusters", 0) for algorithm in (experiment.algorithm, experiment.baseline)]
    numbers = [number for number in asked if isinstance(number, int)]  # `auto` adapts to the number of clients
    scored = experiment.evaluation.clients
    data = experiment.data  # the experiment may be a changed copy of one that was shrunk already
    changes = dict[str, Any](
        data=data if isinstance(data, _FirstClients) else _FirstClients(data, max([_CLIENTS, *numbers])),
        algorithm=_shorter(experiment.algorithm),
        baseline=None if experiment.baseline is None else _shorter(experiment.baseline),
        rounds=1,
        seeds=experiment.seeds[:1],
        cohort_size=min(_CLIENTS, experiment.cohort_size),
        evaluation=replace(
            experiment.evaluation,
            clients=scored if isinstance(scored, str) else min(_CLIENTS, scored),
            fine_tune=experiment.evaluation.fine_tune and _BUDGET,
        ),
        local=replace(experiment.local, epochs=1, batch_size=_SAMPLES // _STEPS),
        tracking=replace(experiment.tracking, wandb="disabled"),  # results of a tiny run mean nothing
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # advice about a tiny run would be wrong for the experiment itself
        return replace(experiment, **changes)


def _shorter(algorithm: Algorithm) -> Algorithm:
    """Reduces every budget of an algorithm to 2 steps."""
    budgets = {f.name for f in fields(algorithm) if isinstance(getattr(algorithm, f.name), Budget)}
    return replace(algorithm, **dict.fromkeys(budgets, _BUDGET))


class _FirstClients(FederatedDataModule):
    """The first training clients of another data module, and a newcomer if it has one, with few samples each."""

    def __init__(self, whole: FederatedDataModule, clients: int) -> None:
        super().__init__(shift=whole.shift)
        self.whole, self.clients = whole, clients

    @cached_property
    def examples(self) -> Examples:
        return self.whole.examples  # already includes the views that the shifts need

    def load(self) -> Examples:
        return self.whole.load()

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        raise NotImplementedError("the whole data module divides the data")

    def federated(self, seed: int) -> FederatedData:
        whole = self.whole.federated(seed)
        kept = whole.population[: self.clients]
        if whole.newcomers is not None:
            kept = torch.cat([kept, whole.newcomers.nonzero().flatten()[:1]])
        return whole.subset(kept, _SAMPLES)
