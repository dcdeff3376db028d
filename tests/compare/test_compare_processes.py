"""Tests comparisons and other runs in real processes: killed and resumed, interrupted, and in parallel in Ray."""

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
import yaml
from digits_experiment import timeless_rows
from processes import in_child, left, wait, wait_for

from lit_cfl import load_experiment, run_many
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
        str(file.relative_to(path)): [row | {"seconds": None} for row in timeless_rows(file)]
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
    wait_for(Path("c/FedAvg/seed-1/metrics.csv"), "\n1,")
    os.kill(child, signal.SIGSTOP)  # else it might end first
    assert main(["compare", "--resume", "c", "--num_cpus", "1"]) == 2
    assert f"in use by process {child}" in capsys.readouterr().err
    os.kill(child, signal.SIGTERM)
    os.kill(child, signal.SIGCONT)
    assert wait(child) == 128 + signal.SIGTERM
    assert "Resume with: lit-cfl compare --resume c\n" in output.read_text()
    assert Path("c/FedAvg/seed-1/checkpoint.pt").exists()
    assert main(["compare", "--resume", "c", "--num_cpus", "1"]) == 0
    assert contents(Path("c")) == contents(whole)


@pytest.mark.ray
@pytest.mark.nightly
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


SMALL = ["--data.num_clients", "8", "--cohort_size", "2", "--rounds", "2", "--local.epochs", "1"]
SMALL += ["--pictures.formats", "[]", "--algorithm", "FedAvg"]


def test_every_seed_runs_once_in_its_folder_and_failures_are_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    good = load_experiment("quickstart", [*SMALL, "--seed", "3"])
    two = load_experiment(good.to_dict(), ["--seeds", "[3, 4]", "--task.optimizer.lr", "0.2"])
    bad = load_experiment("quickstart", [*SMALL, "--seed", "3", "--cohort_size", "99"])
    runs = {tmp_path / "slow": good, tmp_path / "fast": two, tmp_path / "wild": bad}
    ended: list[Path] = []

    def note(directory: Path) -> str:
        ended.append(directory)
        return f"is number {len(ended)}"

    failed = run_many(runs, num_cpus=1, ended=note)
    assert ended == [tmp_path / "slow" / "seed-3", tmp_path / "fast" / "seed-3", tmp_path / "fast" / "seed-4"]
    assert list(failed) == [tmp_path / "wild" / "seed-3"]
    assert "99" in failed[tmp_path / "wild" / "seed-3"]
    assert "fast seed 4  is number 3" in capsys.readouterr().out
    assert two.rounds == 2  # run_many ran its seeds separately, but did not change the given experiment
    losses = [read_table(directory / "metrics.csv")[-1]["train/loss"] for directory in ended]
    assert len(set(losses)) == 3
    assert load_experiment(str(tmp_path / "slow" / "config.yaml")).to_dict()["plan"]["threads"] == 1

    written = {directory: (directory / "summary.json").stat().st_mtime_ns for directory in ended}
    del runs[tmp_path / "wild"]
    assert run_many(runs, num_cpus=1) == {}
    assert {directory: (directory / "summary.json").stat().st_mtime_ns for directory in ended} == written


@pytest.mark.nightly
@pytest.mark.ray
def test_runs_side_by_side_have_the_same_bits_and_are_told_apart(
    tmp_path: Path, cluster: None, capsys: pytest.CaptureFixture[str]
):
    experiment = load_experiment("quickstart", [*SMALL, "--seeds", "[3, 4]"])
    folders = [tmp_path / name for name in ("a/same", "b/same", "after")]
    assert run_many(dict.fromkeys(folders[:2], experiment), num_cpus=2) == {}
    shown = capsys.readouterr().out
    assert [f"{name}/same seed {seed}" in shown for name in "ab" for seed in (3, 4)] == [True] * 4
    assert run_many({folders[2]: experiment}, num_cpus=1) == {}
    for seed in (3, 4):
        one, two, after = (timeless_rows(folder / f"seed-{seed}" / "metrics.csv") for folder in folders)
        assert one == after == two


MODULE = """
from pathlib import Path
from lit_cfl.datamodules import Digits

class Counted(Digits):
    def load(self):
        with Path(__file__).with_name("loads.txt").open("a") as file:
            file.write("loaded\\n")
        return super().load()
"""


@pytest.mark.ray
@pytest.mark.nightly
def test_data_are_loaded_once_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: None):
    (tmp_path / "counted_digits.py").write_text(MODULE)
    data = {"class_path": "counted_digits.Counted", "init_args": {"num_clients": 8}}
    content = {"data": data, "rounds": 1, "cohort_size": 4, "pictures": {"formats": []}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    configs = ("--config", "quickstart", "--config", "own.yaml", "--num_cpus", "2", "--quiet")
    options = ("--algorithms", "FedAvg", "FedProx", "--FedProx.mu", "0", "--seeds", "3", "4", "--compare_dir", "all")
    assert main(["compare", *configs, *options]) == 0
    assert (tmp_path / "loads.txt").read_text() == "loaded\n"
    one, other = (read_table(tmp_path / "all" / name / "seed-4" / "metrics.csv") for name in ("FedAvg", "FedProx"))
    assert one[-1]["test/loss"] == other[-1]["test/loss"]  # without a proximal term, on the same examples
