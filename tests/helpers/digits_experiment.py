"""Experiment on digits that most tests of runs use, with a few options changed."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from lit_cfl import Experiment
from lit_cfl.algorithms import FedGroup
from lit_cfl.datamodules import Digits
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification


def digits(**changes: object) -> Experiment:
    settings: dict[str, object] = {
        "data": Digits(num_clients=12, validation=0.1),
        "task": lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1)),
        "algorithm": FedGroup(num_clusters=4, pretrain_scale=2, pretrain=Budget(5)),
        "rounds": 3,
        "cohort_size": 5,
        "seeds": [3],
        "local": LocalTraining(1, 20),
    }
    return Experiment(**(settings | changes))


def timeless_rows(file: Path) -> list[dict[str, Any]]:
    """Reads a CSV file without its columns of times."""
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in read_table(file)]
