"""The parts of `benchmarks/gpu.py` that run on a GPU alone, rehearsed on one that is only pretended."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from pretended_gpu import PretendedGPU, pretended

GPU = "cuda:0"

gpu = pytest.fixture(pretended)


class Event:
    """A mark in the GPU's time, which stands still."""

    def __init__(self, enable_timing: bool) -> None: ...

    def record(self) -> None: ...

    def elapsed_time(self, other: "Event") -> float:
        return 1.0


@pytest.fixture(autouse=True)
def _scripts_and_counters(gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    answers = {"is_available": True, "device_count": 1, "memory_allocated": 2**20, "max_memory_allocated": 5 * 2**20}
    for name, answer in (answers | {"reset_peak_memory_stats": None}).items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "Event", Event)


def small() -> object:
    from gpu_cases import case_of

    return replace(case_of("linear", GPU), cohort=4, images=15, epochs=1)


@pytest.mark.parametrize("way", ["plain loop", "eager", "graph", "as planned"])
def test_row_of_a_gpu_has_its_times_and_its_memory(way: str):
    from gpu_rows import measured

    width = 1 if way == "plain loop" else 4
    row = measured(small(), way, width, 4, GPU)
    assert row["client-steps/s"] > 0
    lanes = 8 if way == "as planned" else width
    assert (row["MiB"], row["MiB a client"]) == (4, 4 / lanes)
    assert ("x estimate" in row) == (lanes > 1)
    assert ("in steps" in row) == (way in ("eager", "graph"))


def test_results_of_a_gpu_are_compared_with_the_cpus():
    from gpu_checks import fit_of_four, parity, resumed, run

    case = small()
    for way in ("plain loop", "eager", "graph"):
        assert parity(case, way, GPU, partial(fit_of_four, case, "plain loop", "cpu"))["difference"] < 1e-5
    for first, then in (("cpu", GPU), (GPU, "cpu")):
        assert resumed(case, first, then, partial(run, case, "cpu", "cpu"))["difference"] < 1e-5


def test_digest_of_a_gpu_is_that_of_the_cpu():
    from gpu_rows import digest

    assert digest(small(), "eager", GPU) == digest(small(), "eager", "cpu")
