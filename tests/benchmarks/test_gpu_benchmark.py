"""The parts of `benchmarks/gpu.py` that run on a GPU alone, rehearsed on one that is only pretended."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretended_gpu import PretendedGPU, pretended

pytestmark = pytest.mark.full  # a pretended GPU

GPU = "cuda:0"

gpu = pytest.fixture(pretended)


@pytest.fixture(autouse=True)
def _scripts_and_counters(gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    answers = {"is_available": True, "device_count": 1, "memory_allocated": 2**20, "max_memory_allocated": 5 * 2**20}
    for name, answer in (answers | {"reset_peak_memory_stats": None}).items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    import gpu as script

    monkeypatch.setattr(script, "set_up_torch", lambda *_: None)  # it is for the whole process
    monkeypatch.setattr(script, "WAYS", ("stack", "loop"))  # a Trainer believes in no pretended GPU


def bench() -> object:
    from gpu import Bench

    found = Bench(GPU, time.time() + 600)
    found.cases = {name: replace(found.cases[name], clients=4, images=20, epochs=1) for name in ("MCLR", "LSTM")}
    return found


def test_results_of_a_gpu_are_compared_with_the_cpus():
    rows = list(bench().parity())
    expected = [
        ("MCLR", ["chain", "stack", "loop", "losses", "gradients, chain", "gradients, stack"]),
        ("LSTM", ["stack", "loop", "losses", "gradients, stack"]),
    ]
    assert [(row["net"], row["what"]) for row in rows] == [
        (net, f"{what}, {precision}")
        for precision in ("32-true", "64-true")
        for net, parts in expected
        for what in parts
    ]
    assert all(row["result"] < (1e-12 if row["what"].endswith("64-true") else 1e-4) for row in rows)


def test_rows_of_a_gpu_have_their_times_and_their_memory():
    measured = bench()
    graphs, eager, host = list(measured.graphs()), list(measured.eager()), list(measured.host())
    assert [row["what"] for row in graphs] == [
        f"stack, {precision}, 4 clients, 1 epoch(s)" for precision in ("32-true", "32-true", "tf32", "tf32")
    ]
    assert [row["what"].split(",")[:2] for row in eager[:2]] == [["stack", " eager"], ["loop", " 32-true"]]
    assert all(row["result"] > 0 for row in (*graphs, *eager, *host))
    (linear, _) = measured.memory()
    assert linear["result"] == 1.0  # of 4 MiB of four clients
    assert linear["note"].endswith("times the estimate")


def test_what_a_capture_refuses_is_said(monkeypatch: pytest.MonkeyPatch):
    @contextmanager
    def capture(graph: object, **options: object) -> Iterator[None]:
        raise RuntimeError("operation not permitted when stream is capturing")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "graph", capture)
        first, _ = bench().refused()
    assert first["note"].startswith("a CUDA graph cannot be captured (operation not permitted")
