"""What a run shows in a terminal, and where a terminal is not one that a person watches."""

import io
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from test_progress import FAST, TINY, row

from lit_cfl.activity import Activity
from lit_cfl.cli.main import main
from lit_cfl.progress.live import TerminalDisplay
from lit_cfl.progress.screen import Screen

VARIABLES = ("CI", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS")


@pytest.fixture(autouse=True)
def plain_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> Iterator[list[str]]:
    """Standard output is a terminal within the block; afterwards the list holds what it got."""
    shown: list[str] = []
    ours, theirs = os.openpty()
    reader = threading.Thread(target=lambda: shown.append(_all_of(ours)))
    reader.start()
    with os.fdopen(theirs, "w") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        patch.setenv("COLUMNS", str(columns))
        yield shown
    reader.join(10)
    os.close(ours)


def _all_of(terminal: int) -> str:
    data = b""
    while True:
        try:
            data += os.read(terminal, 4096)
        except OSError:  # its other end was closed
            return data.decode()


def left_standing(shown: str) -> list[str]:
    """The lines that a terminal shows in the end: each as it was drawn last."""
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in shown.replace("\r\n", "\n").split("\n")]
    return [line.rpartition("\r")[2] for line in lines]


def test_a_run_is_one_line_that_is_redrawn(monkeypatch: pytest.MonkeyPatch):
    with terminal(monkeypatch) as shown:
        assert main([*FAST, "--run_dir", "here"]) == 0
    lines = left_standing(shown[0])
    runs = [line for line in lines if re.search(r"round +\d", line)]
    assert [re.sub(r"\s+", " ", line).split(" ")[:3] for line in runs] == [
        ["FedGroup", "round", "3/3"],
        ["FedAvg", "round", "3/3"],
    ]
    assert all(re.search(r"accuracy 0\.\d\d +clusters \d", line) for line in runs)  # they stay with their figures
    assert "\x1b[2K" in shown[0]
    assert any(line.startswith("Files: here") for line in lines)
    assert any(line.startswith("As a page: lit-cfl report here") for line in lines)
    assert [line for line in lines if len(line) > 100] == []


def drawn(display: TerminalDisplay) -> str:
    """The lines that a person sees now."""
    file = display.console.file = io.StringIO()
    assert display.shown is not None
    display.shown.refresh()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", file.getvalue()).strip()


def test_the_line_says_what_is_done_from_the_loading_of_the_data_on():
    with TerminalDisplay(Console(file=io.StringIO(), force_terminal=True, width=100)) as display:
        display.activity("", Activity("loading the data"))
        assert re.search(r"loading the data +0:00:00", drawn(display))
        display.started("FedGroup", 0, 9)
        assert re.match(r"FedGroup round 0/9 starting", drawn(display))
        display.activity("FedGroup", Activity("pre-training", 0, 3, 60))
        assert re.match(r"FedGroup round 0/9 pre-training 3 of 60 clients +--:-- left$", drawn(display))
        display.row("FedGroup", row(1))
        assert re.match(r"FedGroup round 1/9 test accuracy 0.50  clusters 2 ", drawn(display))
        display.activity("FedGroup", Activity("training", 1, 3, 20))
        assert re.match(r"FedGroup round 1/9 test accuracy 0.50  clusters 2  training 3 of 20 clients", drawn(display))
        display.ended("FedGroup")
        display.activity("", Activity("loading the data"))
        assert re.match(r"loading the data +0:00:00", drawn(display))
    assert display.shown is None


def test_a_line_that_is_too_long_loses_the_end_of_its_status():
    with TerminalDisplay(Console(file=io.StringIO(), force_terminal=True, width=72)) as display:
        display.started("FedGroup", 0, 9)
        display.row("FedGroup", row(1))
        display.activity("FedGroup", Activity("training", 1, 3, 20))
        line = drawn(display)
        assert len(line) <= 72
        assert re.match(r"FedGroup round 1/9 test accuracy 0.50  clusters 2  trai.*… --:-- left$", line)


def test_an_error_while_the_data_are_loaded_leaves_the_cursor_where_it_was(monkeypatch: pytest.MonkeyPatch):
    with terminal(monkeypatch) as shown:
        assert main([*FAST, "--run_dir", "here", "--data.num_clients", "3"]) == 2
    assert "loading the data" in shown[0] or "dividing" in shown[0]
    assert shown[0].rfind("\x1b[?25h") > shown[0].rfind("\x1b[?25l") >= 0  # it was hidden, and is shown again


@pytest.mark.long
def test_a_comparison_shows_its_runs_and_then_its_table(monkeypatch: pytest.MonkeyPatch):
    words = ["compare", *TINY[1:], "--rounds", "2", "--num_cpus", "1", "--algorithms", "FedAvg", "Ditto"]
    with terminal(monkeypatch) as shown:
        assert main([*words, "--compare_dir", "c"]) == 0
    lines = left_standing(shown[0])
    assert any(re.match(r"runs .* 2/2 .*0 running, 0 failed", line) for line in lines)
    assert [line.split()[0] for line in lines if re.match(r"(FedAvg|Ditto) .*0\.", line)] == ["FedAvg", "Ditto"]
    assert "FedAvg seed 0" in shown[0]  # while it went on
    assert not any("seed 0" in line for line in lines)


@pytest.mark.parametrize(
    ("variable", "value", "live"),
    [
        ("TERM", "xterm", True),
        ("TERM", "dumb", False),
        ("CI", "true", False),
        ("CI", "", True),
        ("NO_COLOR", "1", True),
    ],
)
def test_a_line_is_redrawn_only_where_a_person_watches(
    variable: str, value: str, live: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(variable, value)
    with terminal(monkeypatch):
        assert Screen().live is live


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"])
def test_a_pipe_that_takes_colours_is_still_a_pipe(variable: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not Screen().live
