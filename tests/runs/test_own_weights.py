"""Tests weights outside of models' rows, such as a frozen base from a file: recorded and compared on resume."""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from digits_experiment import digits, timeless_rows
from torch import Tensor, nn

from lit_cfl import Experiment, load_run, run
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.fingerprint import digest_of_constants
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.ray import worker
from lit_cfl.errors import InputError, Notice
from lit_cfl.storage.checkpoint import read_fingerprint
from lit_cfl.tasks import Classification


class OnBase(nn.Module):
    """Net with a trained layer on a frozen layer that is read from a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(64, 16), nn.Linear(16, 10)
        self.base.load_state_dict(torch.load(file, weights_only=True))
        self.base.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.base(inputs.flatten(1)).relu())


def make_base(file: Path, seed: int) -> None:
    torch.manual_seed(seed)
    torch.save(nn.Linear(64, 16).state_dict(), file)


@pytest.fixture
def task(tmp_path: Path) -> Callable[[], Classification]:
    make_base(tmp_path / "base.pt", 0)
    return lambda: Classification(OnBase(tmp_path / "base.pt"))


def test_frozen_base_that_changed_is_refused_with_both_digests(task: Callable[[], Classification], tmp_path: Path):
    experiment = digits(task=task, rounds=2)
    run(experiment, tmp_path / "run")
    recorded = read_fingerprint(tmp_path / "run")["frozen part of the module"]
    make_base(tmp_path / "base.pt", 5)
    now = experiment.prepare(3).fingerprint["frozen part of the module"]
    said = re.escape(f"different frozen part of the module (SHA-256 {recorded[:12]}, now {now[:12]})")
    with pytest.raises(InputError, match=said):
        load_run(tmp_path / "run", experiment)
    with pytest.raises(InputError, match=said):
        run(digits(task=task, rounds=4), tmp_path / "run", mode="resume")
    make_base(tmp_path / "base.pt", 0)
    assert run(digits(task=task, rounds=4), tmp_path / "run", mode="resume").summary["round"] == 4


def test_a_worker_that_would_train_otherwise_does_no_work(
    task: Callable[[], Classification], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It has another frozen base, or its steps round differently."""
    monkeypatch.setattr(worker.ray, "get", lambda reference: reference)
    monkeypatch.setattr(worker, "describe_steps", lambda: "without compiled steps")
    engine = build_engine(task, Plan(), 0, LocalTraining())
    constants = digest_of_constants(engine.template, engine.layout)
    spec = worker.EngineSpec(task, Plan(), 0, LocalTraining(), constants=constants)
    for steps in ("", "without compiled steps"):  # "" = any steps
        assert worker.Worker([])._get_engine(replace(spec, steps=steps)).layout == engine.layout
    with pytest.raises(InputError, match=r"\(without compiled steps\) .* \(compiled for AVX2\)"):
        worker.Worker([])._get_engine(replace(spec, steps="compiled for AVX2"))
    make_base(tmp_path / "base.pt", 5)
    with pytest.raises(InputError, match=f"frozen part .*{constants[:12]}"):
        worker.Worker([])._get_engine(spec)


class Fixed(nn.Module):
    """Net with the same initial weights under every seed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc(inputs.flatten(1))


def test_seeds_that_start_from_one_model_are_noted_once(tmp_path: Path):
    with pytest.warns(Notice, match="all seeds started from one initial model") as said:
        run(digits(task=lambda: Classification(Fixed()), rounds=1, seeds=[1, 2, 3]), tmp_path / "run")
    assert len([note for note in said if "all seeds" in str(note.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        run(digits(rounds=1, seeds=[1, 2]), tmp_path / "apart")
        run(digits(task=lambda: Classification(Fixed()), rounds=1, seeds=[1]), tmp_path / "alone")


class Drawn(Fixed):
    """Net that applies dropout to its inputs in evaluation, too."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc(nn.functional.dropout(inputs.flatten(1), 0.5, training=True))


def test_resumed_run_draws_the_same_in_evaluation(tmp_path: Path):
    def started(rounds: int) -> Experiment:
        return digits(task=lambda: Classification(Drawn()), rounds=rounds)

    run(started(3), tmp_path / "whole")
    run(started(1), tmp_path / "cut")
    torch.rand(17)
    run(started(3), tmp_path / "cut", mode="resume")
    assert timeless_rows(tmp_path / "cut") == timeless_rows(tmp_path / "whole")
