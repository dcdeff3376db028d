"""Kills a comparison with searches at ten drawn moments of a real process: the results stay the same."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import left
from small_comparison import OPTIONS

from lit_cfl.storage.csv_log import read_table

WORDS = ["compare", *OPTIONS.split(), "--algorithms", "FedAvg", "StoCFL", "--seeds", "0", "1"]
SEARCH = ["--search.trials", "5", "--search.stopping.first", "1", "--checkpoint.every_seconds", "0"]
MOMENTS = 10
TABLES = ("results.csv", "runs.csv", "search.csv")


def start(folder: Path, mark: str) -> "subprocess.Popen[bytes]":
    """Starts or resumes the comparison in `c` with one trial or run at a time."""
    words = ["compare", "--resume", "c", "--num_cpus", "1"]
    if not (folder / "c" / "compare.yaml").exists():
        words = [*WORDS, *SEARCH, "--compare_dir", "c"]
    name, _, value = mark.partition("=")
    with (folder / "output.txt").open("a") as out:
        command = [sys.executable, "-m", "lit_cfl", *words]
        return subprocess.Popen(command, cwd=folder, env=os.environ | {name: value}, stdout=out, stderr=out)


def results(path: Path) -> dict[str, list[dict[str, object]]]:
    """Reads the tables without the times, and the trials of each search."""
    files = [*(path / name for name in TABLES), *sorted(path.glob("searches/*/trials.csv"))]
    text = ("algorithm", "setting", "trial", "trial_id", "repeats")
    return {
        str(file.relative_to(path)): [
            {name: value for name, value in row.items() if "seconds" not in name} for row in read_table(file, text=text)
        ]
        for file in files
    }


@pytest.mark.nightly
@pytest.mark.ray
def test_killed_at_ten_drawn_moments_it_has_the_results_of_one_that_nobody_disturbed(tmp_path: Path):
    whole, killed, rng = tmp_path / "whole", tmp_path / "killed", random.Random(75)
    for folder in (whole, killed):
        folder.mkdir()
    begun = time.monotonic()
    assert start(whole, f"LITCFL_TEST_MARK={whole}").wait() == 0, (whole / "output.txt").read_text()
    seconds, moments = time.monotonic() - begun, list[str]()
    for number in range(MOMENTS):
        mark = f"LITCFL_TEST_MARK={killed}-{number}"
        process = start(killed, mark)
        try:
            # a resume repeats the start of Python and Ray, so that moments lie beyond a whole comparison's tenth
            process.wait(timeout=(0.15 + 0.5 * rng.random()) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        record = killed / "c" / "compare.yaml"
        moments.append(
            "before" if not record.exists() else "search" if "searched: null" in record.read_text() else "runs"
        )
        assert left(mark, agents=False) == []
    assert start(killed, "LITCFL_TEST_MARK=last").wait() == 0, (killed / "output.txt").read_text()
    assert results(killed / "c") == results(whole / "c")
    assert {"search"} <= set(moments)
