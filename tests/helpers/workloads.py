"""Workloads for the rule that chooses a plan: tasks of any size, and a simulated GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import LightningModule
from torch import nn

from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.workload import TaskTraits, Workload
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification


class Branching(nn.Module):
    """Net that is not a chain of layers, with the given number of parameters."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.weight.mean()


class Hooked(Classification):
    def on_train_start(self) -> None: ...


def traits(parameters: int = 7_850, multiply_adds: int = 0, kind: type[Classification] = Classification) -> TaskTraits:
    """Returns the traits of a task with given numbers of parameters, and of multiply-adds per example."""
    module: LightningModule = kind(Branching(parameters))
    found = TaskTraits(module, ParameterLayout.of(module), (torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64)), 100)
    found.__dict__["multiply_adds"] = multiply_adds
    return found


def work(parameters: int = 7_850, multiply_adds: int = 0, **options: Any) -> Workload:
    return Workload(traits(parameters, multiply_adds), LocalTraining(1, 10), **options)


def one_gpu(monkeypatch: pytest.MonkeyPatch, total: float = 79.1) -> None:
    """Simulates a GPU with the given memory in GiB."""
    card = SimpleNamespace(total_memory=int(total * 2**30))
    for name, answer in (("is_available", True), ("device_count", 1), ("get_device_properties", card)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
