"""Tests that a run is tried out on the CPU, since the process that only starts runs should use no GPU memory."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from studies import base

from lit_cfl import devices, experiment
from lit_cfl.compare.comparison import Comparison, _check_and_plan
from lit_cfl.config.variants import build
from lit_cfl.engines import choose_plan
from lit_cfl.experiment import Experiment
from lit_cfl.tune.check import prepare
from lit_cfl.tune.study import Resources, Study


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Simulates a GPU that cannot be used; returns a list that records the devices on which runs are prepared."""
    for module in (devices, experiment, choose_plan):
        monkeypatch.setattr(module, "count_gpus", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=2**34))
    found: list[str] = []
    prepare = Experiment.prepare
    monkeypatch.setattr(Experiment, "prepare", lambda self, *given: found.append(self.device) or prepare(self, *given))
    return found


@pytest.mark.parametrize(
    ("options", "engine", "precision"),
    [
        ({}, "stack", "32-true"),
        ({"engine": "trainer"}, "trainer", "32-true"),
        ({"precision": "16-mixed"}, "trainer", "16-mixed"),
    ],
)
def test_a_run_on_a_gpu_is_tried_out_on_the_cpu(options: dict[str, str], engine: str, precision: str, tried: list[str]):
    asked = build(base(device="cuda", **options))
    prepared, plan = asked.try_out(0)
    assert tried == ["cpu"]
    assert (plan.device, plan.engine, plan.precision) == ("cuda:0", engine, precision)
    assert prepared.engine.plan.device == "cpu"
    assert prepared.experiment.to_dict() == asked.to_dict()


def test_comparisons_and_studies_are_checked_without_a_gpu(tried: list[str]):
    asked = build(base(device="cuda"))
    checked = _check_and_plan(Comparison("c", {"FedAvg": asked}, [0, 1], None))
    assert checked.first.plan.device == "cuda:0"
    space = {"task.optimizer.lr": {"uniform": [0.1, 0.2]}}
    prepare(Study(base(device="cuda"), space, resources=Resources(gpus=1)), Path("study"))
    assert tried == ["cpu"] * 3  # twice for the comparison, once for the base of the study
