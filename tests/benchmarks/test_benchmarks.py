"""Runs a small version of the GPU benchmark on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


# rich is not listed, since Lightning looks for its files
NOT_NEEDED = ("ray", "wandb", "datasets", "jsonargparse", "docstring_parser", "optuna")


@pytest.mark.nightly
def test_gpu_benchmark_runs_small_on_a_cpu_without_the_packages_around_training(tmp_path: Path):
    block = f"import sys\nfor name in {NOT_NEEDED}:\n    sys.modules[name] = None\n"
    (tmp_path / "sitecustomize.py").write_text(block)
    out = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--only", "parity", "deterministic", "host", "evaluation", "--out", str(out)]
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), *words]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
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
    assert done.stdout.count("\n|") in (1 + len(rows), 2 + len(rows))
