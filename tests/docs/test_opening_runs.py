"""Tests the page on finished runs: its commands and Python blocks run in order, and its tables are complete."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from lit_cfl.cli.main import main
from lit_cfl.runs.load_run import SavedRun

PAGE = (Path(__file__).parents[2] / "docs" / "opening_runs.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def write_hospital() -> None:
    """Writes three wards with 60 digits each; those of the second ward are rotated by 90 degrees."""
    images, labels = load_digits(return_X_y=True)
    images = (images[:180] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    client = np.repeat(["ward-a", "ward-b", "ward-c"], 60)
    images[60:120] = np.rot90(images[60:120], 1, (2, 3))
    np.savez("hospital.npz", x=images, y=labels[:180], client=client)


def test_commands_and_code_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    write_hospital()
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    shown = capsys.readouterr().out
    for table in blocks("text"):
        for line in table.splitlines():
            assert line.split() in [row.split() for row in shown.splitlines()], line
    (code,) = blocks("python")
    exec(compile(code, "opening_runs.md", "exec"), {})  # noqa: S102  # our own documentation
    *_, share = capsys.readouterr().out.split()
    assert float(re.findall(r"[\d.]+", share)[0]) > 0.5


def test_every_attribute_of_a_run_is_on_the_page():
    named = set(re.findall(r"^\| `(\w+)(?:\(.*?\))?`(?:, `(\w+)`)? \|", PAGE, flags=re.MULTILINE))
    public = {name for name in vars(SavedRun) if not name.startswith("_")} | {one.name for one in fields(SavedRun)}
    internal = {"path", "lists", "table", "prepared"}
    assert {name for pair in named for name in pair if name} == public - internal
