"""Lit-CFL's types reach a user's own type checker."""

import subprocess
import sys
from pathlib import Path

import pytest

import lit_cfl

FILE = """
from lit_cfl import load_run
from lit_cfl.algorithms import FedGroup

algorithm = FedGroup(num_clusters="four")
reveal_type(algorithm.num_clusters)
reveal_type(load_run("runs/mine").round)
"""


def test_the_package_says_that_it_is_typed():
    assert (Path(lit_cfl.__file__).parent / "py.typed").is_file()


@pytest.mark.slow
def test_mypy_checks_a_users_file_against_our_types(tmp_path: Path):
    (tmp_path / "mine.py").write_text(FILE)
    options = [
        "--python-executable",
        sys.executable,
        "--ignore-missing-imports",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "mine.py"], cwd=tmp_path, capture_output=True, text=True
    )
    found = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("mine.py")]
    assert found == [
        'error: Argument "num_clusters" to "FedGroup" has incompatible type "str"; expected "int"  [arg-type]',
        'note: Revealed type is "int"',
        'note: Revealed type is "int"',
    ]
