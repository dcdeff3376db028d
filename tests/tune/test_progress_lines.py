"""What a study says where nothing happens for a while."""

import time
from collections.abc import Callable
from pathlib import Path

from tune_trials import new_trials

from lit_cfl.tune.progress_lines import ProgressLines
from lit_cfl.tune.search import describe_progress, describe_repeats


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


def test_a_line_that_is_said_puts_off_the_next_one():
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


def test_runs_on_new_seeds_are_counted(tmp_path: Path):
    assert describe_repeats(tmp_path / "repeats", 4) == "training on new seeds: 0 of 4 runs have finished"
    for part in ("best/seed-1", "best/seed-2", "default/seed-1"):
        (tmp_path / "repeats" / part).mkdir(parents=True)
    (tmp_path / "repeats/best/seed-1/summary.json").touch()
    (tmp_path / "repeats/default/seed-1/summary.json").touch()
    assert describe_repeats(tmp_path / "repeats", 4) == "training on new seeds: 2 of 4 runs have finished"
