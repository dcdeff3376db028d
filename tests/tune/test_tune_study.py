"""Tests whole studies in real Ray, killed and resumed; the first part of each study runs in a separate process."""

import contextlib
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from processes import left
from studies import SLOW, STUDY, base, study_file

import lit_cfl
from lit_cfl.cli.main import main
from lit_cfl.storage.yaml_files import parse_yaml

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("no_figures")]
Whole = tuple[Path, int, str, list[int]]  # a study's directory, exit code, output and remaining processes
SPACE_OF_SLOW = {"rate": {"uniform": [0.7, 0.9]}}
# rates that train without failing; the default, 0, is not among them
SPACE = {"algorithm.rate": {"uniform": [0.7, 1.0]}}


class Command:
    """Study in a separate process, whose descendants are found by a mark in their environment."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.mark = f"LITCFL_TEST_MARK={folder}-{time.monotonic_ns()}"
        name, _, value = self.mark.partition("=")
        environment = os.environ | {name: value}
        # not a pipe, which would stay open as long as Ray's agents live
        self.said = folder / f"said-{time.monotonic_ns()}.txt"
        with self.said.open("w") as said:
            command = [sys.executable, "-m", "lit_cfl", "tune", *words]
            self.process = subprocess.Popen(command, env=environment, cwd=folder, stdout=said, stderr=subprocess.STDOUT)

    def end(self) -> tuple[int, str]:
        """Waits for the study to end; returns its exit code and output."""
        return self.process.wait(timeout=900), self.said.read_text()

    def kill(self) -> None:
        """Kills the study, which ends all its processes; Ray's agents end later."""
        self.process.kill()
        self.process.wait()
        assert left(self.mark, agents=False) == []


def wait_until(condition: Callable[[], object], command: Command) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert command.process.poll() is None, command.end()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rows_of(path: Path) -> list[dict[str, str]]:
    with (path / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def rounds_in(folder: Path) -> list[list[str]]:
    log = folder / "log.txt"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def prepared_folder(tmp: Path, pause: float, **changes: Any) -> Path:
    """Makes a folder with a study over the slow algorithm, and the algorithm's file."""
    shutil.copy(Path(__file__).with_name("own_slow.py"), tmp)
    algorithm = SLOW | {"init_args": {"rate": 0.0, "pause": pause, "log": str(tmp / "log.txt")}}
    own = {"stopping": {"eta": 1}, "space": SPACE, "seeds": [3, 1], "limits": {"trials": 4}}
    study_file(tmp, base=base(algorithm=algorithm, checkpoint={"every_seconds": 0}), **(own | changes))
    return tmp


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Runs a study without interruption; returns its directory, exit code, output and remaining processes."""
    limits = {"trials": 4, "concurrent": 1}
    folder = prepared_folder(tmp_path_factory.mktemp("whole"), 0.0, num_repeats=2, limits=limits)
    command = Command(folder, "--config", "study-to-run.yaml", "--study_dir", "study")
    code, output = command.end()
    return folder / "study", code, output, left(command.mark)


def test_a_study_ends_with_its_table_and_leaves_no_process(whole: Whole):
    path, code, output, left = whole
    assert (code, left) == (0, []), output
    assert "4 trials: 4 finished" in output
    assert output.count(" finished: val/weighted_accuracy 0.") == 4
    assert "Best: algorithm.rate" in output
    best = max(float(row["val/weighted_accuracy"]) for row in rows_of(path))
    assert f"val/weighted_accuracy of its trial: {best:.4f}" in output
    assert "difference to" in output
    # relative paths in settings name the same files as when they were checked
    assert set((path.parent / "log.txt.folders").read_text().splitlines()) == {str(path.parent)}
    rows = rows_of(path)
    assert [(row["status"], row["rounds"]) for row in rows] == [("finished", "4")] * 4
    assert len({row["algorithm.rate"] for row in rows}) == 4
    for row in rows:
        parts = [path / "trials" / row["trial_id"] / f"seed-{seed}" / "summary.json" for seed in (3, 1)]
        own = [json.loads(part.read_text())["val/weighted_accuracy"] for part in parts]
        assert [float(row["seed 3"]), float(row["seed 1"])] == own
        assert float(row["val/weighted_accuracy"]) == sum(own) / 2
    with (path / "repeats" / "runs.csv").open() as table:
        assert {row["seed"] for row in csv.DictReader(table)} == {"4", "5"}  # only new seeds are tested
    for file in ("study.log", "trials.csv"):
        assert "test/" not in (path / file).read_text()


def test_best_yaml_reproduces_the_trial_exactly(whole: Whole, tmp_path: Path):
    path = whole[0]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["run", "--config", str(path / "best.yaml"), "--run_dir", str(tmp_path / "run")]) == 0
    best = max(rows_of(path), key=lambda row: row["val/weighted_accuracy"])
    assert best["trial_id"] in (path / "best.yaml").read_text().splitlines()[0]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["val/weighted_accuracy"] == float(best["val/weighted_accuracy"])


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
def test_a_killed_study_has_the_trials_of_one_that_nobody_disturbed(whole: Whole, tmp_path: Path):
    folder, study = prepared_folder(tmp_path, 0.3), tmp_path / "study"
    command = Command(folder, "--config", "study-to-run.yaml", "--study_dir", "study")
    wait_until(lambda: len(rounds_in(folder)) >= 5, command)
    command.kill()
    done = len(rounds_in(folder))
    assert main(["tune", "--resume", str(study), "--limits.concurrent", "1"]) == 0
    same = ("algorithm.rate", "status", "rounds", "seed 3", "seed 1", "val/weighted_accuracy")
    undisturbed = sorted([row[name] for name in same] for row in rows_of(whole[0]))
    assert sorted([row[name] for name in same] for row in rows_of(study)) == undisturbed
    assert {row["trial_id"] for row in rows_of(study)} == {path.name for path in (study / "trials").iterdir()}
    assert len(rounds_in(folder)) - done < 4 * 2 * 4  # finished rounds were not trained again
    assert left(command.mark) == []


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
def test_an_interrupted_study_of_several_algorithms_resumes_with_optuna_and_is_extended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Optuna suggests values of one algorithm per trial, and keeps what it learned before the signal."""
    slow = SLOW | {"init_args": {"pause": 0.2}, "space": SPACE_OF_SLOW}
    space = {"algorithm": {"choice": [slow, {"class_path": "IFCA", "space": {"num_clusters": {"randint": [2, 4]}}}]}}
    limits = {"trials": 4, "concurrent": 1}
    folder = prepared_folder(tmp_path, 0.2, space=space, searcher="TPESampler", seeds=[0], limits=limits)
    study = tmp_path / "study"
    command = Command(folder, "--config", "study-to-run.yaml", "--study_dir", "study")
    wait_until(lambda: len(list((study / "trials").glob("*/summary.json"))) >= 2, command)
    wait_until((study / "best.yaml").exists, command)
    assert "finished" in [row["status"] for row in rows_of(study)]  # the record is written before the study ends
    command.process.send_signal(signal.SIGTERM)
    code, output = command.end()
    assert code == 128 + signal.SIGTERM, output
    assert "lit-cfl tune --resume" in output
    assert left(command.mark) == []
    before = {path.parent.name: path.read_bytes() for path in (study / "trials").glob("*/summary.json")}
    assert main(["tune", "--resume", str(study)]) == 0
    rows = rows_of(study)
    assert [(row["status"], row["rounds"]) for row in rows] == [("finished", "4")] * 4
    assert before.keys() <= {row["trial_id"] for row in rows}
    for trial, content in before.items():  # no trial was trained again
        assert (study / "trials" / trial / "summary.json").read_bytes() == content
    assert main(["tune", "--resume", str(study), "--limits.trials", "5", "--limits.concurrent", "1"]) == 0
    assert "5 trials: 5 finished" in capsys.readouterr().out
    longer = rows_of(study)
    assert longer[:4] == rows
    for trial, content in before.items():
        assert (study / "trials" / trial / "summary.json").read_bytes() == content
    for row in longer[1:]:  # values of the row's own algorithm only
        own = "own_slow.Slow.rate" if row["algorithm"] == "own_slow.Slow" else "IFCA.num_clusters"
        assert [key for key in ("own_slow.Slow.rate", "IFCA.num_clusters") if row[key]] == [own]


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
def test_trials_that_fail_or_take_too_long_are_listed_and_the_others_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Leaves out `limits.trials`, since the grid determines the number of trials."""
    space = {"algorithm.rate": {"grid": [0.1, 0.5]}, "algorithm.pause": {"grid": [0.0, 9.0]}}
    folder = prepared_folder(tmp_path, 0.0, space=space, limits={"trial_minutes": 0.25}, seeds=[0])
    study = folder / "study"
    assert main(["tune", "--config", str(folder / "study-to-run.yaml"), "--study_dir", str(study)]) == 0
    output = capsys.readouterr().out
    assert "5 trials: 2 finished, 0 stopped early, 3 failed" in output
    assert "RuntimeError: rate 0.5 fails" in output
    assert "Traceback" not in output
    rows = {(row["algorithm.rate"], row["algorithm.pause"]): row for row in rows_of(study)}
    assert [row["status"] for row in rows.values()] == ["finished", "finished", "failed", "failed", "failed"]
    failed = rows["0.5", "0.0"]
    assert (failed["rounds"], failed["val/weighted_accuracy"]) == ("2", "")
    assert "Traceback" in (study / "trials" / failed["trial_id"] / "error.txt").read_text()
    assert rows["0.1", "9.0"]["error"].startswith("the trial took longer than limits.trial_minutes allows (0.25)")


@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
def test_content_of_a_study_is_searched_and_its_tables_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Through `lit_cfl.tune` in Python."""
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    found = lit_cfl.tune(STUDY | {"num_repeats": 2}, ["--limits.trials", "2"], study_dir="study", say=lines.append)
    assert found.path == Path("study")
    assert list(found.trials["trial_id"]) == ["0000", "0001"]
    assert found.trials["status"].eq("finished").any()
    pd.testing.assert_frame_equal(
        found.trials, pd.read_csv("study/trials.csv", dtype={"trial_id": str, "repeats": str})
    )
    assert found.best is not None
    assert found.best["val/weighted_accuracy"] == found.trials["val/weighted_accuracy"].max()
    assert found.repeated is not None
    assert {run["seed"] for run in found.repeated.runs} == {1, 2}
    recorded = parse_yaml(Path("study/study.yaml").read_text())
    assert [folder for folder in recorded["base"]["code"] if "lit-cfl-" in folder] == []
    again = lit_cfl.tune(resume="study", say=lines.append)
    pd.testing.assert_frame_equal(again.trials, found.trials)
