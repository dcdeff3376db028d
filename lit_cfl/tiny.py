"""`--tiny`: an experiment cut down until it takes a second, to see whether it runs at all."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from datamodules.federated import FederatedDataModule
from lit_cfl.data import Examples, FederatedData
from lit_cfl.experiment import Experiment
from lit_cfl.local.engine import LocalTraining

_CLIENTS, _SAMPLES, _BATCH = 4, 20, 10


def shrink(experiment: Experiment) -> Experiment:
    """The experiment with 4 clients (or one for each cluster asked for), 20 samples each, 2 steps and 1 round."""
    asked = [getattr(algorithm, "num_clusters", 0) for algorithm in (experiment.algorithm, experiment.baseline)]
    clients = max(_CLIENTS, *asked)
    return replace(
        experiment,
        data=_FirstClients(experiment.data, clients),
        rounds=1,
        seeds=experiment.seeds[:1],
        cohort_size=min(_CLIENTS, experiment.cohort_size),
        local=replace(experiment.local, epochs=1, batch_size=_BATCH) if experiment.local else LocalTraining(),
    )


class _FirstClients(FederatedDataModule):
    """The first clients of another data module, with few samples each."""

    def __init__(self, whole: FederatedDataModule, clients: int) -> None:
        super().__init__()
        self.whole, self.clients = whole, clients

    def load(self) -> Examples:
        return self.whole.examples

    def partition(self, examples: Examples, rng: np.random.Generator) -> tuple[list[Tensor], list[Tensor], Tensor, str]:
        raise NotImplementedError("the whole data module divides the data")

    def federated(self, seed: int) -> FederatedData:
        whole = self.whole.federated(seed)
        return whole.subset(torch.arange(min(self.clients, whole.num_clients)), _SAMPLES)
