"""Whatever class may be typed can be resumed: one without arguments in place of a file's class with arguments.

`OPTIONS` has a row for each option that takes a class; `test_every_option_that_takes_a_class_has_a_row` finds them by
their types.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
import yaml
from lightning.pytorch.loggers import Logger

from lit_cfl import load_run
from lit_cfl.algorithms import Algorithm
from lit_cfl.cli.main import main
from lit_cfl.data.shift import Shift
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.datamodules.partition import Partition
from lit_cfl.datamodules.skew import Skew
from lit_cfl.experiment import Experiment, LocalTraining, Tracking
from lit_cfl.tasks import Classification

pytestmark = pytest.mark.nightly

FILE = """
name: probe
rounds: 1
cohort_size: 4
data:
  class_path: Digits
  init_args:
    partition: {class_path: Dirichlet, init_args: {num_clients: 8, alpha: 5.0}}
    skew: [{class_path: Rotations, init_args: {degrees: [0, 90]}}]
    shift: [{class_path: SwapAll, init_args: {probability: 0.5}}]
task:
  class_path: Classification
  init_args:
    net: {class_path: MLP, init_args: {hidden: 8}}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
local: {epochs: 1, lr_schedule: {class_path: torch.optim.lr_scheduler.ExponentialLR, init_args: {gamma: 0.9}}}
server: {class_path: torch.optim.SGD, init_args: {lr: 0.7}}
algorithm: {class_path: IFCA, init_args: {num_clusters: 2}}
baseline: {class_path: FedProx, init_args: {mu: 0.1}}
tracking: {wandb: disabled, loggers: [{class_path: CSVLogger, init_args: {save_dir: logs}}]}
pictures: {formats: []}
"""
MINE = """
from collections.abc import Iterable

import torch
from lightning import LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn.functional import cross_entropy

from lit_cfl.algorithms import Local
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition import Dirichlet
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.datamodules.skew import Rotations


class Data(Digits):
    def __init__(self):
        super().__init__(num_clients=8)


class Part(Dirichlet):
    def __init__(self):
        super().__init__(8, alpha=2.0)


class Turn(Rotations):
    def __init__(self):
        super().__init__([0, 180])


class Swap(SwapAll):
    def __init__(self):
        super().__init__(0.25)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 10)

    def forward(self, inputs):
        return self.fc1(inputs.flatten(1))


class Task(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, inputs):
        return self.net(inputs)

    def losses(self, batch):
        return cross_entropy(self(batch[0]), batch[1], reduction="none")

    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Step(torch.optim.SGD):
    def __init__(self, params: Iterable):
        super().__init__(params, lr=0.2)


class Decay(torch.optim.lr_scheduler.ExponentialLR):
    def __init__(self, optimizer: torch.optim.Optimizer):
        super().__init__(optimizer, 0.5)


class Alone(Local):
    pass


class Log(CSVLogger):
    def __init__(self):
        super().__init__("logs")
"""
OPTIONS = {
    "data": "mine.Data",
    "data.partition": "mine.Part",
    "data.skew": "mine.Turn",
    "data.shift": "mine.Swap",
    "task": "mine.Task",
    "task.net": "mine.Net",
    "task.optimizer": "mine.Step",
    "local.lr_schedule": "mine.Decay",
    "server": "mine.Step",
    "algorithm": "mine.Alone",
    "baseline": "mine.Alone",
    "tracking.loggers": "[mine.Log]",
}
BASES = (FederatedDataModule, Partition, Skew, Shift, Algorithm, Logger)  # of options that take objects of a class


def takes_a_class(kind: Any) -> bool:
    """Returns whether an option of this type takes a class by its name."""
    if get_origin(kind) is Callable or str(kind).startswith("collections.abc.Callable"):
        return True
    if get_origin(kind) in (Union, UnionType) or get_args(kind):
        return any(map(takes_a_class, get_args(kind)))
    return isinstance(kind, type) and (issubclass(kind, BASES) or kind.__module__.startswith("torch.nn"))


def test_every_option_that_takes_a_class_has_a_row():
    groups = {"": Experiment, "data.": FederatedDataModule, "local.": LocalTraining, "tracking.": Tracking}
    groups |= {"task.": Classification}
    found = {
        f"{group}{name}"
        for group, kind in groups.items()
        for name, option in get_type_hints(kind.__init__).items()
        if takes_a_class(option)
    }
    found |= {f"data.{name}" for name, option in get_type_hints(Digits.__init__).items() if takes_a_class(option)}
    assert found == OPTIONS.keys()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # commands append the current folder
    (tmp_path / "probe.yaml").write_text(FILE)
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_class_without_arguments_over_a_file_with_arguments_is_resumed(option: str, folder: Path, capsys):
    words = ["run", "--config", "probe.yaml", f"--{option}", OPTIONS[option], "--quiet"]
    words += ["--server", "null"] if option in ("algorithm", "baseline") else []  # Local has no server
    assert main([*words, "--run_dir", "once", "--rounds", "2"]) == 0, capsys.readouterr().err
    assert main([*words, "--run_dir", "run"]) == 0, capsys.readouterr().err
    assert OPTIONS[option].strip("[]") in (folder / "run" / "config.yaml").read_text()
    assert main(["run", "--resume", "run", "--quiet"]) == 0, capsys.readouterr().err
    assert main([*words, "--resume", "run", "--rounds", "2"]) == 0, capsys.readouterr().err
    assert yaml.safe_load(Path("run/config.yaml").read_text()) == yaml.safe_load(Path("once/config.yaml").read_text())
    for name in ("clients.csv", "baseline/clients.csv", "clusters.csv"):
        assert Path("run", name).read_text() == Path("once", name).read_text()
    assert load_run("run").round == 2
