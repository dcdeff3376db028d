"""A fixed share of `benchmarks/kills.py`: killed, or on a full disk, a run goes on to all of its files."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def test_run_hurt_at_some_of_its_file_operations_leaves_what_an_unhurt_run_leaves():
    words = ["--what", "run", "--first", "4", "--every", "24"]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for how in ("kill", "full"):
        assert f"run, {how}: 3 of 3 equal" in done.stdout
