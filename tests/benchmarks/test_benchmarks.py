"""Runs a small version of the GPU benchmark on a CPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly  # these tests start processes, each of which imports PyTorch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NOT_NEEDED = (
    "ray",
    "wandb",
    "datasets",
    "jsonargparse",
    "docstring_parser",
    "optuna",
)  # rich is not listed, since Lightning looks for its files


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def printed(*command: str | Path, **variables: str) -> list[list[str]]:
    """Runs a benchmark, and returns the cells of the tables that it prints."""
    script, *words = map(str, command)
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *words],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return cells(done.stdout)


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"]


def test_gpu_benchmark_runs_small_on_a_cpu_without_the_packages_around_training(tmp_path: Path):
    block = f"import sys\nfor name in {NOT_NEEDED}:\n    sys.modules[name] = None\n"
    (tmp_path / "sitecustomize.py").write_text(block)
    out = tmp_path / "gpu.json"
    options = ("--device", "cpu", "--only", "parity", "deterministic", "host", "evaluation", "--out", out)
    table = printed("gpu.py", *options, PYTHONPATH=str(tmp_path))
    rows = json.loads(out.read_text())["rows"]
    parity = [row for row in rows if row["part"] == "parity"]
    assert [(row["net"], row["what"]) for row in parity] == [
        (net, f"{what}, {precision}")
        for precision in ("32-true", "64-true")
        for net in ("MCLR", "LSTM")
        for what in ("stack", "loop", "trainer", "losses", "gradients, stack")
    ]
    assert all(0 <= row["result"] < 1e-4 for row in parity)
    assert [row["note"] for row in rows if row["part"] == "deterministic"] == ["the same bits"] * 2
    assert all(row["result"] > 0 for row in rows if row["part"] in ("host", "evaluation"))
    assert len(table) == 2 + len(rows)


def test_gpu_benchmark_says_what_failed_and_what_came_too_late(monkeypatch: pytest.MonkeyPatch):
    import gpu

    def broken(self: gpu.Bench) -> list[dict[str, str]]:
        raise TypeError("something else\nand more")

    monkeypatch.setattr(gpu.Bench, "refused", broken)
    assert list(gpu.measure_parts(gpu.Bench("cpu", time.time() + 60), ("refused",))) == [
        {"part": "refused", "note": "TypeError: something else"}
    ]
    late = list(gpu.measure_parts(gpu.Bench("cpu", time.time()), gpu.PARTS))
    assert late == [{"part": part, "note": "no time left"} for part in gpu.PARTS]
