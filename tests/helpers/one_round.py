"""Runs a round of FedAvg on any data module."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lit_cfl import Experiment
from lit_cfl.algorithms import FedAvg
from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.nets import MCLR
from lit_cfl.runs.run import run
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification


def round_of_fedavg(data: FederatedDataModule, path: Path) -> dict[str, Any]:
    """Runs a round of FedAvg with two clients; returns the last row of `metrics.csv`."""
    shape, num_labels = list(data.examples.input_shape), data.examples.num_labels

    def task() -> Classification:
        return Classification(MCLR(shape, num_labels), partial(torch.optim.SGD, lr=0.01))

    run(Experiment(data=data, task=task, algorithm=FedAvg(), rounds=1, cohort_size=2), path)
    row: dict[str, Any] = read_table(path / "metrics.csv")[-1]
    assert math.isfinite(row["train/loss"])
    assert math.isfinite(row["test/loss"])
    assert 0 <= row["test/weighted_accuracy"] <= 1
    assert row["clients/evaluated"] == data.federated(0).num_clients
    return row
