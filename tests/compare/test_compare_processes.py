"""Tests comparisons in real processes: killed and resumed, interrupted, and in parallel in Ray."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from processes import in_child, left, wait, wait_for, without_clocks

from lit_cfl.cli.main import main
from lit_cfl.runs.many import Job
from lit_cfl.storage.csv_log import read_table

OPTIONS = """--config quickstart --data.num_clients 12 --cohort_size 4 --local.epochs 1 --rounds 12
    --checkpoint.every_seconds 0 --pictures.formats [] --seeds 1 2"""


def start(*algorithms: str) -> list[str]:
    return ["compare", *OPTIONS.split(), "--algorithms", *algorithms, "--compare_dir", "c"]


def contents(path: Path) -> dict[str, Any]:
    """Reads what a resume must not change: a comparison's tables and results, without the times."""
    return {
        str(file.relative_to(path)): [without_clocks(row) | {"seconds": None} for row in read_table(file)]
        for file in path.rglob("*.csv")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs a comparison without interruption, one run after another."""
    path = tmp_path_factory.mktemp("whole")
    with contextlib.chdir(path), contextlib.redirect_stdout(io.StringIO()):
        assert main([*start("FedAvg", "IFCA"), "--num_cpus", "1"]) == 0
    return path / "c"


@pytest.mark.nightly
def test_a_comparison_in_use_is_refused_and_an_interrupted_one_names_the_command_to_resume(
    whole: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    child = in_child([*start("FedAvg", "IFCA"), "--num_cpus", "1", "--checkpoint.every_seconds", "60"])
    wait_for(Path("c/IFCA/seed-1/metrics.csv"), "\n3,")
    assert main(["compare", "--resume", "c", "--num_cpus", "1"]) == 2
    assert f"in use by process {child}" in capsys.readouterr().err
    os.kill(child, signal.SIGTERM)
    assert wait(child) == 128 + signal.SIGTERM
    assert "Resume with: lit-cfl compare --resume c\n" in output.read_text()
    assert Path("c/IFCA/seed-1/checkpoint.pt").exists()
    assert main(["compare", "--resume", "c", "--num_cpus", "1"]) == 0
    assert contents(Path("c")) == contents(whole)


@pytest.mark.ray
def test_in_ray_killed_and_resumed_it_is_the_same_to_the_bit(
    whole: Path, output: Path, monkeypatch: pytest.MonkeyPatch
):
    mark = f"LITCFL_TEST_MARK={output.parent}-{time.monotonic_ns()}"
    # also set in this process, whose /proc/<id>/environ shows only the variables at its start
    monkeypatch.setenv(*mark.split("=", 1))
    words = [sys.executable, "-m", "lit_cfl", *start("FedAvg", "IFCA"), "--num_cpus", "2"]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert any(line.startswith("1/4  ") for line in first.stdout)
    first.kill()
    first.communicate()
    assert left(mark, agents=False) == []
    assert main(["compare", "--resume", "c", "--num_cpus", "2"]) == 0
    assert contents(Path("c")) == contents(whole)
    assert left(mark) == []  # checked last, to give Ray's agents of the killed command time to end


def test_what_a_worker_has_to_say_comes_with_its_outcome(
    pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from ray.exceptions import WorkerCrashedError

    from lit_cfl.runs.many import in_worker, outcome_of

    monkeypatch.chdir(tmp_path)
    words = [*start("FedAvg"), "--seeds", "1", "--rounds", "1", "--pictures.formats", "[png]", "--num_cpus", "1"]
    assert main(words) == 0
    folder = Path("c/FedAvg/seed-1")
    shutil.rmtree(folder / "pictures")
    (folder / "pictures").write_text("in the way")
    (folder / "summary.json").unlink()  # as if the run had been killed just before its end
    error, notices = in_worker(Job(Path("c"), "FedAvg", 1, 1))
    assert error == f"{folder}/pictures could not be written (File exists)"
    assert [" cannot be drawn and is left out (SaveError" in notice for notice in notices] == [True]
    assert outcome_of(WorkerCrashedError())[0].startswith("its process died (WorkerCrashedError); ")
