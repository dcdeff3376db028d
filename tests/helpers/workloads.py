"""Workloads for the rule that chooses a plan: tasks of any size, and a simulated GPU."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.choose_plan import Workload
from lit_cfl.engines.mini_batches import LocalTraining
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


def work(parameters: int = 7_850, cohort: int = 64, kind: type[Classification] = Classification) -> Workload:
    """Returns the workload of a task with the given number of parameters."""
    batch = torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64)
    return Workload(Trial(kind(Branching(parameters)), batch, LocalTraining(1, 10), 100), cohort)


def one_gpu(monkeypatch: pytest.MonkeyPatch, total: float = 79.1) -> None:
    """Simulates a GPU with the given memory in GiB."""
    card = SimpleNamespace(total_memory=int(total * 2**30))
    for name, answer in (("is_available", True), ("device_count", 1), ("get_device_properties", card)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
