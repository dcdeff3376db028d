"""Tests the numbers that `--dry-run` prints."""

import re
from collections.abc import Callable
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import Tensor

from lit_cfl.config.parser import parse_run
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import join_range
from lit_cfl.experiment import Experiment, PreparedRun
from lit_cfl.progress import dry_run
from lit_cfl.progress.dry_run import time_cohort

Costs = Callable[[Tensor], tuple[float, float]]  # maps the steps of each client to wall time and CPU time


def experiment(*words: str) -> Experiment:
    return parse_run(["--config", "quickstart", *words]).experiment


@pytest.fixture(scope="module")
def prepared() -> PreparedRun:
    """Prepares a run in which each round trains 3 clients for 50 steps each."""
    words = ("--data.num_clients", "8", "--cohort_size", "3", "--local.epochs", "50", "--local.batch_size", "full")
    return experiment(*words).prepare(0)


def costing(monkeypatch: pytest.MonkeyPatch, costs: Costs) -> list[Tensor]:
    """Replaces the timing of fits by `costs`; returns a list that records each client's steps in each fit."""
    asked: list[Tensor] = []

    def seconds(prepared: PreparedRun, cohort: Tensor, steps: Tensor) -> tuple[float, float]:
        asked.append(steps)
        return costs(steps)

    monkeypatch.setattr(dry_run, "_seconds", seconds)
    return asked


def test_a_cohort_is_timed_whole_after_a_step_of_each_client(monkeypatch: pytest.MonkeyPatch, prepared: PreparedRun):
    asked = costing(monkeypatch, lambda steps: (0.4 + 0.05 * int(steps.sum()),) * 2)
    assert time_cohort(prepared) == (150, pytest.approx(0.4 + 0.05 * 150))
    assert [each.tolist() for each in asked] == [[1] * 3, [50] * 3]


def test_clients_of_the_first_round_are_timed_with_their_own_sizes(monkeypatch: pytest.MonkeyPatch):
    prepared = experiment("--data.num_clients", "8", "--cohort_size", "3", "--local.batch_size", "5").prepare(0)
    seen: list[tuple[list[int], list[int]]] = []

    def spy(_: PreparedRun, cohort: Tensor, steps: Tensor) -> tuple[float, float]:
        seen.append((cohort.tolist(), steps.tolist()))
        return 0.0, 1e-9

    monkeypatch.setattr(dry_run, "_seconds", spy)
    time_cohort(prepared)
    cohort = prepared.cohorts.at(0, prepared.data.population, 0)
    sizes = prepared.data.num_examples[cohort]
    assert seen[-1] == (cohort.tolist(), (prepared.experiment.local.epochs * -(-sizes // 5)).tolist())


def test_fits_of_the_trial_have_the_steps_that_are_asked_for(prepared: PreparedRun):
    before = torch.get_rng_state()
    wall, own = dry_run._seconds(prepared, torch.tensor([0, 3]), torch.tensor([2, 1]))
    assert 0 < own <= wall * 1.1
    assert torch.equal(torch.get_rng_state(), before)


def shown(monkeypatch: pytest.MonkeyPatch, costs: Costs, *words: str) -> dict[str, str]:
    costing(monkeypatch, costs)
    dry_run.show(Console(file=(out := StringIO()), width=500), experiment("--data.num_clients", "8", *words))
    return {line[:18].strip(): line[19:] for line in out.getvalue().splitlines()}


TEN = (
    "--cohort_size",
    "8",
    "--local.batch_size",
    "full",
    "--local.epochs",
    "5",
    "--rounds",
    "30",
    "--baseline",
    "null",
)


def test_time_is_that_of_all_rounds_of_all_runs(monkeypatch: pytest.MonkeyPatch):
    lines = shown(monkeypatch, lambda steps: (float(steps.sum()) / 20,) * 2, *TEN)  # 40 steps per round take 2 s
    assert lines["time"].startswith("about 1 min 0 s of local training")
    assert lines["time"].endswith("2 s for 40 steps")
    lines = shown(monkeypatch, lambda steps: (float(steps.sum()) / 20,) * 2, *TEN, "--seeds", "[0, 1]")
    assert lines["time"].startswith("about 2 min 0 s of local training")


@pytest.mark.parametrize(
    ("cores", "seconds", "words", "processes"),
    [
        (4, 2.0, (), 4),
        (16, 2.0, (), 8),  # there are 8 clients in a round
        (4, 0.5, (), None),
        (1, 2.0, (), None),
        (4, 0.5, ("--algorithm", "FedEM", "--algorithm.num_clusters", "4"), 4),  # trains four models in a round
        (4, 2.0, ("--engine", "trainer"), 4),
    ],
)
def test_rays_workers_are_recommended_for_rounds_above_a_second(
    cores: int, seconds: float, words: tuple[str, ...], processes: int | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dry_run, "count_cores", lambda: cores)
    lines = shown(monkeypatch, lambda steps: (seconds * float(steps.sum()) / 40,) * 2, *TEN, *words)
    found = re.fullmatch(
        r"would train the clients of a round, which takes 2 s, in (\d+) processes", lines.get("engine: ray", "")
    )
    assert (found and int(found[1])) == processes


@pytest.mark.parametrize(
    ("words", "minutes"),
    [
        (("FedEM", "--algorithm.num_clusters", "4"), 4),  # each client trains all models
        (("Ditto", "--baseline", "FedAvg"), 3),
        (("CFL", "--cohort_size", "4"), 1),  # the cohort has 4 clients, but CFL trains all 8
        (("FedAvg", "--cohort_size", "4"), 0.5),
    ],
)
def test_time_counts_all_models_and_clients_of_a_round(
    words: tuple[str, ...], minutes: float, monkeypatch: pytest.MonkeyPatch
):
    lines = shown(monkeypatch, lambda steps: (float(steps.sum()) / 20,) * 2, *TEN, "--algorithm", *words)
    assert f"about {dry_run.duration(60 * minutes)} of local training" in lines["time"]


def test_the_time_of_other_processes_is_not_counted(monkeypatch: pytest.MonkeyPatch):
    lines = shown(monkeypatch, lambda steps: (float(steps.sum()) / 5, float(steps.sum()) / 20), *TEN)
    assert lines["time"].startswith("about 1 min 0 s of local training")


@pytest.mark.parametrize("plan", [Plan(workers=2), Plan("chain", threads=2), Plan(device="cuda:0")])
def test_what_others_compute_is_timed_by_the_clock(plan: Plan, monkeypatch: pytest.MonkeyPatch, prepared: PreparedRun):
    costing(monkeypatch, lambda steps: (float(steps.sum()), 0.001))
    monkeypatch.setattr(prepared.engine, "plan", plan)
    assert time_cohort(prepared) == (150, 150)
    monkeypatch.setattr(dry_run, "count_cores", lambda: 4)
    recommended = dry_run._use_of_ray(prepared, 1e6)
    assert bool(recommended) == (plan.device == "cpu" and not plan.workers)


def test_the_size_is_that_of_the_data_the_model_and_all_runs(monkeypatch: pytest.MonkeyPatch):
    words = ("--data.newcomers", "0.25", *TEN[:1], "6", *TEN[2:])
    lines = shown(monkeypatch, lambda steps: (0.01, 0.01), *words, "--seeds", "[0, 1]")
    data = experiment("--data.num_clients", "8", *words).prepare(0).data
    trained = data.num_examples[data.population]
    assert len(trained) == 6
    assert int(trained.sum()) < int(data.num_examples.sum())
    assert lines["clients"] == "6 in training, 2 newcomers"
    least, most = int(trained.min()), int(trained.max())
    assert lines["training examples"] == f"{int(trained.sum()):,}, {least} to {most} per client"
    tested = data.test.sizes[data.population]
    assert (
        lines["test examples"]
        == f"{int(tested.sum()):,}, {join_range(int(tested.min()), int(tested.max()))} per client"
    )
    assert lines["model"] == "650 parameters, 2.5 KiB"
    assert lines["rounds"] == "30 with 6 clients, 2 runs"
    assert lines["local steps"].startswith("about 1,800, ")  # 5 epochs of 6 clients, 30 rounds, 2 runs
    lines = shown(monkeypatch, lambda steps: (0.01, 0.01), *words[:-1], "FedAvg")
    assert lines["rounds"] == "30 with 6 clients, 2 runs"  # the run and its baseline
