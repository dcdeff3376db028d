"""Tests the numbers that `--dry-run` estimates; golden output has its other lines."""

from io import StringIO
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from lit_cfl.config.parser import parse_run
from lit_cfl.engines.plan import Plan
from lit_cfl.experiment import Experiment, PreparedRun
from lit_cfl.progress import dry_run
from lit_cfl.progress.dry_run import time_cohort

THIRTY = ("--local.batch_size", "full", "--local.epochs", "5", "--rounds", "30", "--baseline", "null")


def experiment(*words: str) -> Experiment:
    return parse_run(["--config", "quickstart", "--data.num_clients", "8", *words]).experiment


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Replaces the timing of fits: a step takes 1 s by the clock and 0.05 s of this thread; lists clients and steps."""
    found: list[tuple[list[int], list[int]]] = []

    def seconds(_: PreparedRun, cohort: Tensor, steps: Tensor) -> tuple[float, float]:
        found.append((cohort.tolist(), steps.tolist()))
        return float(steps.sum()), float(steps.sum()) / 20

    monkeypatch.setattr(dry_run, "_seconds", seconds)
    return found


def shown(*words: str) -> dict[str, str]:
    dry_run.show(Console(file=(out := StringIO()), width=500), experiment(*THIRTY, *words))
    return {line[:18].strip(): line[19:] for line in out.getvalue().splitlines()}


def test_clients_of_the_first_round_are_timed_whole_after_a_step_of_each(asked: list[Any]):
    prepared = experiment("--cohort_size", "3", "--local.batch_size", "5", "--local.epochs", "2").prepare(0)
    cohort = prepared.cohorts.at(0, prepared.data.population, 0)
    steps = 2 * -(-prepared.data.num_examples[cohort] // 5)
    assert time_cohort(prepared) == (int(steps.sum()), pytest.approx(int(steps.sum()) / 20))
    assert asked == [(cohort.tolist(), [1] * 3), (cohort.tolist(), steps.tolist())]


def test_the_trial_leaves_random_numbers_as_they_were():
    prepared = experiment("--cohort_size", "3").prepare(0)
    before = torch.get_rng_state()
    wall, own = dry_run._seconds(prepared, torch.tensor([0, 3]), torch.tensor([2, 1]))
    assert 0 < own <= wall * 1.1
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("plan", [Plan(workers=2), Plan("chain", threads=2), Plan(device="cuda:0")])
def test_what_others_compute_is_timed_by_the_clock(plan: Plan, asked: list[Any], monkeypatch: pytest.MonkeyPatch):
    prepared = experiment("--cohort_size", "3", *THIRTY).prepare(0)
    monkeypatch.setattr(prepared.engine, "plan", plan)
    assert time_cohort(prepared) == (15, 15)
    monkeypatch.setattr(dry_run, "count_cores", lambda: 4)
    assert bool(dry_run._use_of_ray(prepared, 1e6)) == (plan.device == "cpu" and not plan.workers)


@pytest.mark.parametrize(
    ("words", "minutes"),
    [
        (("FedAvg", "--cohort_size", "8"), 1),  # 5 steps of 8 clients in 30 rounds: 1,200 steps of 0.05 s
        (("FedEM", "--cohort_size", "8", "--algorithm.num_clusters", "4"), 4),  # each client trains all models
        (("Ditto", "--cohort_size", "8", "--baseline", "FedAvg", "--seeds", "[0, 1]"), 6),
        (("CFL", "--cohort_size", "4"), 1),  # the cohort has 4 clients, but CFL trains all 8
        (("FedAvg", "--cohort_size", "4"), 0.5),
    ],
)
def test_time_counts_models_and_clients_of_rounds_and_runs(words: tuple[str, ...], minutes: float, asked: list[Any]):
    assert shown("--algorithm", *words)["time"].startswith(f"about {dry_run.duration(60 * minutes)} of local training")


@pytest.mark.parametrize(
    ("cores", "words", "processes"),
    [
        (4, (), "4"),  # a round takes 2 s
        (16, (), "8"),  # there are 8 clients in a round
        (4, ("--cohort_size", "4"), None),  # a round takes 1 s
        (4, ("--cohort_size", "4", "--algorithm", "FedEM", "--algorithm.num_clusters", "4"), "4"),  # trains four models
    ],
)
def test_rays_workers_are_recommended_for_rounds_above_a_second(
    cores: int, words: tuple[str, ...], processes: str | None, asked: list[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dry_run, "count_cores", lambda: cores)
    line = shown("--algorithm", "FedAvg", "--cohort_size", "8", *words).get("engine: ray")
    assert (line and line.split()[-2]) == processes


def test_the_size_is_that_of_clients_in_training(asked: list[Any]):
    lines = shown("--data.newcomers", "0.25", "--cohort_size", "6", "--seeds", "[0, 1]", "--baseline", "FedAvg")
    assert (lines["clients"], lines["rounds"]) == ("6 in training, 2 newcomers", "30 with 6 clients, 4 runs")
    data = experiment("--data.newcomers", "0.25", "--cohort_size", "6").prepare(0).data
    trained = data.num_examples[data.population]
    assert int(trained.sum()) < int(data.num_examples.sum())
    expected = f"{int(trained.sum()):,}, {int(trained.min())} to {int(trained.max())} per client"
    assert lines["training examples"] == expected
