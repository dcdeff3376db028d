"""Tests time limits of trials, and messages about dead workers and silent studies, without Ray."""

import os
import re
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from signal import SIGKILL
from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial
from studies import study_file
from tune_trials import new_trials

from lit_cfl.engines.ray import cluster as ray_cluster
from lit_cfl.errors import InputError
from lit_cfl.tune.callbacks import StudyCallback
from lit_cfl.tune.cluster import connect_to_ray
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.progress_lines import ProgressLines
from lit_cfl.tune.record import NUMBER, ROUNDS, read_limit
from lit_cfl.tune.search import describe_progress, describe_repeats
from lit_cfl.tune.study import Resources
from lit_cfl.tune.trial import limit_time


def in_a_process(path: Path, trial: Callable[[], object]) -> int | None:
    """Runs a trial limited to 0.6 seconds in a fork; returns its exit code, or the negative signal number."""

    def begin() -> None:
        with limit_time(path, 0.01):
            trial()

    process = get_context("fork").Process(target=begin)
    process.start()
    process.join(100)
    return process.exitcode


def hang() -> None:
    """Hangs in C code, which never releases Python's lock."""
    re.match("(a+)+$", "a" * 64 + "b")


def test_a_trial_whose_time_could_not_be_noted_on_a_full_disk_continues(tmp_path: Path):
    (tmp_path / "too_long.txt").write_text("")
    assert read_limit(tmp_path) is None
    with limit_time(tmp_path, 1.0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_hangs_in_c_is_killed_and_not_restarted(tmp_path: Path):
    assert in_a_process(tmp_path, hang) == 1
    assert re.search(r'test_tune_limits\.py", line \d+ in hang\n', (tmp_path / "too_long.txt").read_text())
    with (
        pytest.raises(
            InputError, match=r"took longer than limits.trial_minutes allows \(0.01\).*shows where it was stopped"
        ),
        limit_time(tmp_path, 0.01),
    ):
        pytest.fail("begun again")
    with limit_time(tmp_path, 0.02):
        pass  # with a larger limit, the trial may continue
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_ends_in_time_leaves_no_file(tmp_path: Path):
    with limit_time(tmp_path / "new", 10.0):
        pass
    with pytest.raises(ZeroDivisionError), limit_time(tmp_path / "new", 10.0):
        raise ZeroDivisionError
    with limit_time(tmp_path / "new", None):
        pass
    assert list((tmp_path / "new").iterdir()) == []


def test_a_trial_whose_process_was_killed_within_its_time_is_restarted(tmp_path: Path):
    assert in_a_process(tmp_path, lambda: os.kill(os.getpid(), SIGKILL)) == -SIGKILL
    with limit_time(tmp_path, 10.0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_time_limit_of_0_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"limits.trial_minutes is 0\.0; give a number above 0"):
        parse_study(["--config", str(study_file(tmp_path)), "--limits.trial_minutes", "0"])


def test_a_restarted_trial_is_reported_in_one_line():
    said: list[str] = []
    trial = SimpleNamespace(status=Trial.RUNNING, last_result={ROUNDS: 2}, config={NUMBER: 3})
    call = StudyCallback(said.append, after_step=lambda: None)
    call.on_trial_recover(1, [trial], trial)
    assert said == ["0003: its worker died after 2 rounds; the trial continues from its last checkpoint"]


def test_ray_records_a_study_as_often_as_it_sees_fit_and_prints_no_tracebacks(monkeypatch: pytest.MonkeyPatch):
    """A record per second would write 32 MB per second with 1,000 trials."""
    monkeypatch.setattr(ray_cluster, "connect", lambda plan: None)
    monkeypatch.setattr(ray_cluster, "disconnect", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("TUNE_PRINT_ALL_TRIAL_ERRORS", raising=False)  # a process that has run a study may have set it
    with connect_to_ray(None, Resources()):
        assert "TUNE_GLOBAL_CHECKPOINT_S" not in os.environ
        assert os.environ["TUNE_PRINT_ALL_TRIAL_ERRORS"] == "0"
    assert "TUNE_PRINT_ALL_TRIAL_ERRORS" not in os.environ


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_silence_is_broken_again_and_again_until_the_end():
    said: list[str] = []
    lines = ProgressLines(said.append, seconds=0.05)
    with lines.breaking_silence():
        wait_for(lambda: len(said) >= 2)
        lines.describe_progress = lambda: "halfway"
        wait_for(lambda: said[-1] == "0:00 halfway" or said[-1].endswith(" halfway"))
    count = len(said)
    time.sleep(0.2)
    assert len(said) == count
    assert said[0].split(" ", 1)[1] == "checking the study"


def test_a_printed_line_postpones_the_next_progress_line():
    said: list[str] = []
    lines = ProgressLines(said.append, seconds=3600)
    with lines.breaking_silence():
        lines("1/8 0000 finished")
        time.sleep(0.1)
    assert said == ["1/8 0000 finished"]


def test_how_far_a_study_is_counts_trials_and_names_the_rounds_of_those_that_run(tmp_path: Path):
    trials = new_trials(tmp_path, [{"x": x} for x in (1, 2, 3)], limit=4)
    assert describe_progress(trials, 12) == "0 of 4 trials have finished; running: none yet"
    for _ in range(3):
        assert trials.next() is not None
    trials.report(1, {"rounds": 7})
    trials.end(0, {"rounds": 12, "finished": True, "val/weighted_accuracy": 0.5})
    assert (
        describe_progress(trials, 12)
        == "1 of 4 trials have finished; running: 0001 round 7 of 12; 1 waiting or in round 1"
    )
    summary = trials.folder / "0001/seed-0/summary.json"
    summary.parent.mkdir(parents=True)
    summary.touch()  # the trial's other seeds report no rounds, so that a round would seem to hang
    assert "running: 0001 seed 2 of 3; 1 waiting" in describe_progress(trials, 12, seeds=3)


def test_runs_on_new_seeds_are_counted(tmp_path: Path):
    assert describe_repeats(tmp_path / "repeats", 4) == "training on new seeds: 0 of 4 runs have finished"
    for part in ("best/seed-1", "best/seed-2", "default/seed-1"):
        (tmp_path / "repeats" / part).mkdir(parents=True)
    (tmp_path / "repeats/best/seed-1/summary.json").touch()
    (tmp_path / "repeats/default/seed-1/summary.json").touch()
    assert describe_repeats(tmp_path / "repeats", 4) == "training on new seeds: 2 of 4 runs have finished"
