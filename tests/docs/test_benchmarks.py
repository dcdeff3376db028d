"""Benchmarks for machines that CI has not, in their small form: they run, and say what they could not measure."""

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.slow  # they start processes, each of which imports PyTorch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NOT_NEEDED = (
    "ray",
    "wandb",
    "datasets",
    "jsonargparse",
    "docstring_parser",
    "optuna",
)  # rich: Lightning looks for its files
MODELS = ["linear", "mlp", "cnn", "vgg16", "pfl-cifar10"]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def printed(*command: str | Path, **variables: str) -> list[list[str]]:
    """The cells of the tables that a benchmark prints."""
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
    (tmp_path / "sitecustomize.py").write_text(block)  # for the processes that it starts, too
    out = tmp_path / "gpu.json"
    some = MODELS[:1]  # below, all of them take a step
    images = np.random.default_rng(0).integers(0, 256, (240, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", x=images, y=np.arange(240) % 10)
    options = ("--device", "cpu", "--models", *some, "--data", tmp_path, "--out", out)
    table = printed("gpu.py", *options, PYTHONPATH=str(tmp_path))
    found = json.loads(out.read_text())
    ways = [("trainer", 1), ("plain loop", 1), ("as planned", 4), ("eager", 4), ("eager", 1)]
    assert [(row["model"], row["way"], row["width"]) for row in found["rows"]] == [
        (model, *way) for model in some for way in ways
    ]
    assert all(row["client-steps/s"] > 0 and row["of GEMM"] > 0 and "note" not in row for row in found["rows"])
    assert all(0 < row["in steps"] <= 1 and row["waste"] == 0 for row in found["rows"] if row["way"] == "eager")
    assert [row["rerun"] for row in found["deterministic"]] == ["the same bits"] * 2
    assert [row["check"] for row in found["checks"]] == ["parity of plain loop", "parity of eager", "cpu, then cpu"]
    assert all(row["difference"] < 1e-4 for row in found["checks"])
    assert [row["difference"] for row in found["checks"] if row["check"] == "cpu, then cpu"] == [0]
    assert sum(row[0] in some for row in table) == 10
    (real,) = found["real"]
    assert (real["data"], real["clients"], real["cohort"], real["rounds"]) == ("mnist", 4, 4, 3)
    assert 0 <= real["accuracy"] <= 1


def test_gpu_benchmark_is_started_where_the_package_is_not_installed():
    tree = ast.parse((BENCHMARKS / "gpu.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name if isinstance(node, ast.Import) else node.module for node in imports for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_every_model_of_the_gpu_benchmark_takes_a_step():
    import gpu
    from gpu_cases import case_of
    from gpu_rows import counted

    assert list(gpu.MODELS) == MODELS
    operations = [counted(case_of(name, "cpu")) for name in MODELS]
    assert min(operations) > 2 * 10 * 784  # a batch of ten through the smallest layer


def test_scale_benchmark_prints_a_table_and_draws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out, picture = tmp_path / "scale.json", tmp_path / "scale.png"
    sizes = ("--cohorts", "20", "--populations", "20000", "--rows_mib", "64")
    monkeypatch.setattr(sys, "argv", ["scale.py", *sizes, "--out", str(out), "--picture", str(picture)])
    import scale

    scale.main()  # each row is measured in a process of its own
    assert [row[:2] for row in cells(capsys.readouterr().out)[2:]] == [["cohort", "20"], ["population", "20,000"]]
    found = json.loads(out.read_text())
    assert all(row["round s"] > 0 and row["peak MiB"] > row["above imports MiB"] > 0 for row in found)
    assert found[0]["all models MiB"] == pytest.approx(20 * 1_628_170 * 4 / 2**20)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_width_without_memory_says_so_and_wider_ones_are_not_tried(monkeypatch: pytest.MonkeyPatch):
    import gpu_rows

    tried = []

    def measured(case: object, way: str, width: int, clients: int, device: str) -> dict[str, float]:
        tried.append((way, width))
        if way == "eager" and width == 4:
            try:
                raise torch.OutOfMemoryError("no memory")
            except torch.OutOfMemoryError as error:
                raise RuntimeError("a capture was broken off") from error
        if way == "plain loop":
            raise TypeError("something else")
        return {"client-steps/s": 10.0}

    monkeypatch.setattr(gpu_rows, "measured", measured)
    monkeypatch.setattr(
        gpu_rows,
        "ways",
        lambda *_: [
            ("plain loop", False, 1, 2),
            ("eager", False, 4, 4),
            ("eager", False, 1, 1),
            ("eager", False, 16, 16),
        ],
    )
    notes = [row.get("note") for row in gpu_rows.rows("linear", "cpu", time.time() + 60)][1:]
    assert notes == ["TypeError: something else", "out of memory", None, "out of memory at a smaller width"]
    assert tried == [("plain loop", 1), ("eager", 4), ("eager", 1)]


def test_without_time_every_row_says_so():
    import gpu_rows

    _, *rows = gpu_rows.rows("linear", "cpu", time.time())
    assert [row["note"] for row in rows] == ["no time left"] * 5


def test_other_bits_and_failures_of_a_rerun_are_told_apart():
    from gpu import same_bits

    row = {"model": "linear", "way": "graph", "digest": "a"}
    assert same_bits(row, row)["rerun"] == "the same bits"
    assert same_bits(row, row | {"digest": "b"})["rerun"] == "OTHER bits"
    assert same_bits(row, {"note": "killed"})["rerun"] == "killed"
