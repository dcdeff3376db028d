"""Tests `border_cases.py`: how it runs a case, and which part of the output it shows."""

from pathlib import Path

import pytest
from benchmark_scripts import loaded

border_cases = loaded("border_cases")


@pytest.mark.parametrize(
    ("output", "seen"),
    [
        ("loading\nlit-cfl: error: no such file\n", "lit-cfl: error: no such file"),
        ("Traceback (most recent call last):\n  File x\nValueError: bad\n", "TRACEBACK: ValueError: bad"),
        (
            "Note: one thing.\n        weighted accuracy   mean\nFedAvg    0.342  0.342  0.200\nFiles: runs/x\n",
            "Note: one thing. | FedAvg 0.342",
        ),
        ("a\nb\n", "a | b"),
        ("x" * 300, "x" * 219 + "…"),
    ],
)
def test_what_matters_of_an_output_is_shown(output: str, seen: str):
    assert border_cases.select_output(output) == seen


def test_a_case_is_made_run_as_a_user_would_and_left_unchanged(tmp_path: Path):
    case = tmp_path / "one-misspelt"
    case.mkdir()
    (case / "make.py").write_text("open('made.yaml', 'w').write('rouds: 3\\n')\n")
    found = border_cases.run_case(case)
    assert str(found).split()[:2] == ["one-misspelt", "2"]
    assert found.seen == "lit-cfl: error: there is no option 'rouds' (did you mean --rounds?). See lit-cfl run --help"
    assert [file.name for file in case.iterdir()] == ["make.py"]


def test_a_script_gets_the_command_and_the_file_that_it_asks_for(tmp_path: Path):
    (tmp_path / "run.sh").write_text('# bash run.sh PATH/slurm.sh\nbasename "$1"\ncommand -v lit-cfl\nexit 7\n')
    found = border_cases.run_case(tmp_path)
    assert found.code == 7
    assert found.seen.startswith("slurm.sh | /")
    assert found.seen.endswith("/bin/lit-cfl")


def test_a_case_that_takes_too_long_is_ended(tmp_path: Path):
    (tmp_path / "run.sh").write_text("sleep 60\n")
    assert border_cases.run_case(tmp_path, seconds=0.2).code is None
