"""Tests the displays of a run: a live line in a terminal, lines in a pipe, JSON, and quiet output."""

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lit_cfl.activity import Activity
from lit_cfl.cli.main import loading, main
from lit_cfl.progress.live import JsonLines, LogDisplay, TerminalDisplay, describe
from lit_cfl.progress.screen import Screen
from lit_cfl.storage.csv_log import read_table

pytestmark = pytest.mark.nightly  # a table of tests states these facts

TINY = ("run", "--config", "quickstart", "--data.num_clients", "8", "--cohort_size", "4", "--local.epochs", "1")
FAST = (*TINY, "--algorithm.pretrain_scale", "2", "--rounds", "3")


class Clock:
    """Clock whose time is set by the test."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def row(round: int, **more: Any) -> dict[str, Any]:
    row = {"round": round, "val/weighted_accuracy": None, "test/weighted_accuracy": 0.5, "clusters/count": 2}
    return row | {"clusters/ari": None, "clusters/unobserved": 0} | more


def lines(seconds: list[float], rounds: int | None = None, reason: str | None = None) -> list[str]:
    """Returns the lines printed for rounds that end at these times."""
    clock, out = Clock(), StringIO()
    display = LogDisplay(Console(file=out, width=200), clock=clock)
    display.started("FedAvg", 0, rounds or len(seconds))
    for number, moment in enumerate(seconds, 1):
        clock.now = 5.0 + moment
        display.row("FedAvg", row(number))
    display.ended("FedAvg", reason)
    return out.getvalue().splitlines()


def test_a_pipe_receives_a_line_per_row_and_the_reason_of_an_early_stop():
    found = lines([0.1, 0.2, 0.3], rounds=90, reason="Stopped early.")
    assert [line.split()[2] for line in found[:3]] == ["1/90", "2/90", "3/90"]
    assert found[3:] == ["Stopped early."]


def test_the_rounds_left_are_timed_by_those_that_were_run():
    assert lines([3.0], rounds=5) == ["FedAvg  round 1/5  test accuracy 0.50  clusters 2  12 s left"]


def test_a_resumed_run_is_timed_by_its_own_rounds_alone():
    clock, out = Clock(), StringIO()
    display = LogDisplay(Console(file=out, width=200), clock=clock)
    display.started("FedAvg", 4, 10)
    clock.now += 3.0
    display.row("FedAvg", row(6))  # two rounds took three seconds, and four are left
    assert out.getvalue() == "FedAvg  round 6/10  test accuracy 0.50  clusters 2  6 s left\n"


def test_runs_of_a_comparison_are_counted_with_those_that_were_over_before():
    out = StringIO()
    display = LogDisplay(Console(file=out, width=200), 6, 3, clock=Clock())
    for seed, failed in enumerate((False, True, False)):
        display.started(f"A seed {seed}", 0, 3)
        display.ended(f"A seed {seed}", "gone" if failed else "over", failed)
    assert out.getvalue().splitlines() == ["4/6  A seed 0  over", "5/6  A seed 1  gone", "6/6  A seed 2  over"]


def test_a_pipe_receives_the_first_activity_and_then_the_rounds():
    out = StringIO()
    display = LogDisplay(Console(file=out, width=200), clock=Clock())
    for activity in (Activity("loading the data"), Activity("compiling")):
        display.activity("", activity)
    display.started("FedAvg", 0, 3)
    display.activity("FedAvg", Activity("training", 0, 3, 5))
    display.row("FedAvg", row(1))
    display.ended("FedAvg")
    assert [line.split("  ")[:2] for line in out.getvalue().splitlines()] == [
        ["loading the data"],
        ["FedAvg", "round 1/3"],
    ]


def test_a_row_is_described_with_what_is_known():
    whole = row(1, **{"val/weighted_accuracy": 0.25, "clusters/ari": 1.0, "clusters/unobserved": 7})
    assert describe(whole) == "val accuracy 0.25  clusters 2  ARI 1.00  7 unplaced"
    assert describe(row(1, **{"test/weighted_accuracy": None})) == "test accuracy -  clusters 2"


def test_a_row_is_described_by_the_main_score_of_its_task():
    scores = {"val/weighted_mae": None, "test/weighted_mae": 1.25, "val/weighted_bias": None, "test/weighted_bias": 3.0}
    assert describe({"round": 1, "clusters/count": 2, "clusters/ari": None, "clusters/unobserved": 0} | scores) == (
        "test MAE 1.25  clusters 2"
    )


def test_json_has_null_for_nan_and_infinity():
    out = StringIO()
    display = JsonLines(out)
    display.started("Fed[bold]Avg", 0, 3, 9)
    display.row(row(1, **{"train/loss": float("nan"), "clusters/inertia": float("inf")}))
    (line,) = out.getvalue().splitlines()
    found = json.loads(line, parse_constant=pytest.fail)
    assert found["algorithm"] == "Fed[bold]Avg"
    assert found["seed"] == 9
    assert [found["train/loss"], found["clusters/inertia"], found["val/weighted_accuracy"]] == [None] * 3


def json_lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[dict[str, Any]], str]:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    return [json.loads(line, parse_constant=pytest.fail) for line in captured.out.splitlines()], captured.err


def test_json_is_the_rows_of_the_tables_and_nothing_else(capsys: pytest.CaptureFixture[str]):
    found, _ = json_lines(capsys, *FAST, "--json", "--run_dir", "here", "--seeds", "[2, 5]")
    rounds = [line for line in found if line["event"] == "round"]
    expected = []
    for seed in (2, 5):
        for name, folder in (("FedGroup", ""), ("FedAvg", "baseline")):
            known = {"event": "round", "algorithm": name, "seed": seed}
            expected += [known | row for row in read_table(Path("here", f"seed-{seed}", folder, "metrics.csv"))]
    assert rounds == expected
    ends = [(line["event"], line["algorithm"], line["seed"], line["path"]) for line in found[len(rounds) :]]
    assert ends == [
        ("summary", "FedGroup", 2, "here/seed-2"),
        ("summary", "FedAvg", 2, "here/seed-2/baseline"),
        ("summary", "FedGroup", 5, "here/seed-5"),
        ("summary", "FedAvg", 5, "here/seed-5/baseline"),
    ]


def test_json_of_a_resumed_run_has_the_new_rounds(capsys: pytest.CaptureFixture[str]):
    assert main([*FAST, "--run_dir", "here"]) == 0
    capsys.readouterr()
    found, _ = json_lines(capsys, "run", "--resume", "here", "--rounds", "5", "--json")
    rounds = [(line["algorithm"], line["round"]) for line in found if line["event"] == "round"]
    assert rounds == [("FedGroup", 4), ("FedGroup", 5), ("FedAvg", 4), ("FedAvg", 5)]
    assert {line["seed"] for line in found} == {0}
    again, _ = json_lines(capsys, "run", "--resume", "here", "--json", "--quiet")
    assert [line["event"] for line in again] == ["summary", "summary"]


def test_notices_are_printed_apart_from_the_json(capsys: pytest.CaptureFixture[str]):
    found, aside = json_lines(capsys, *TINY, "--json", "--algorithm", "FedProx", "--rounds", "1")
    assert len(found) == 4
    assert "algorithm is now FedProx" in aside


def test_quiet_prints_the_run_directory_alone(capsys: pytest.CaptureFixture[str]):
    assert main([*FAST, "--quiet", "--run_dir", "a[b]"]) == 0
    assert capsys.readouterr().out == "a[b]\n"
    assert main(["run", "--resume", "a[b]", "--rounds", "4", "--quiet"]) == 0
    assert capsys.readouterr().out == "a[b]\n"
    assert main(["run", "--resume", "a[b]", "--rounds", "2", "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "but rounds is 2" in captured.err


def test_a_reader_that_leaves_ends_the_run_without_a_traceback(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-m", "lit_cfl", *FAST, "--rounds", "400", "--json", "--run_dir", "here"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["round"] == 1
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait(60) == 141
    assert len(read_table(tmp_path / "here" / "metrics.csv")) < 400


@pytest.mark.parametrize(
    ("words", "said"), [((), "loading PyTorch and Lightning\n"), (("--json",), ""), (("--quiet",), ""), (("-h",), "")]
)
def test_the_import_of_pytorch_is_announced_apart_from_the_output(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with loading(words):  # PyTorch is loaded already
        pass
    assert capsys.readouterr() == ("", "")
    monkeypatch.delitem(sys.modules, "torch")
    with loading(["--config", "quickstart", *words]):
        assert capsys.readouterr() == ("", said)


VARIABLES = ("CI", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS")


@pytest.fixture(autouse=True)
def plain_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> Iterator[list[str]]:
    """Makes standard output a terminal within the block; yields a list that receives the output."""
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
        except OSError:  # the other end was closed
            return data.decode()


def left_standing(shown: str) -> list[str]:
    """Returns the lines that a terminal shows in the end."""
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in shown.replace("\r\n", "\n").split("\n")]
    return [line.rpartition("\r")[2] for line in lines]


def test_a_run_is_one_line_that_is_redrawn(monkeypatch: pytest.MonkeyPatch):
    with terminal(monkeypatch) as shown:
        assert main([*FAST, "--run_dir", "here"]) == 0
    lines = left_standing(shown[0])
    runs = [line for line in lines if re.search(r"^Fed\w+ +\d/3", line)]
    # the rows of finished runs stay, with their figures
    assert [line.split()[:2] for line in runs[-2:]] == [["FedGroup", "3/3"], ["FedAvg", "3/3"]]
    assert all(re.search(r"accuracy 0\.\d\d +clusters \d", line) for line in runs[-2:])
    assert "\x1b[2K" in shown[0]
    assert any(line.startswith("Files: here") for line in lines)
    assert any(line.startswith("As a page: lit-cfl report here") for line in lines)
    assert [line for line in lines if len(line) > 100] == []


def drawn(display: TerminalDisplay) -> str:
    """Returns the lines that are currently visible."""
    file = display.console.file = io.StringIO()
    display.shown.refresh()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", file.getvalue()).strip()


def test_the_line_says_what_is_done_from_the_loading_of_the_data_on():
    with TerminalDisplay(Console(file=io.StringIO(), force_terminal=True, width=100)) as display:
        display.activity("", Activity("loading the data"))
        assert "loading the data" in drawn(display)
        display.started("FedGroup", 0, 9)
        assert re.match(r"FedGroup 0/9 starting", drawn(display))
        display.activity("FedGroup", Activity("pre-training", 0, 3, 60))
        assert re.match(r"FedGroup 0/9 pre-training 3 of 60 clients +-:--:--$", drawn(display))
        display.row("FedGroup", row(1))
        assert re.match(r"FedGroup 1/9 test accuracy 0.50  clusters 2 ", drawn(display))
        display.activity("FedGroup", Activity("training", 1, 3, 20))
        assert re.match(r"FedGroup 1/9 test accuracy 0.50  clusters 2  training 3 of 20 clients", drawn(display))
        display.ended("FedGroup")
        display.activity("", Activity("loading the data"))
        assert drawn(display).splitlines()[0].startswith("FedGroup 1/9")
        assert "loading the data" in drawn(display).splitlines()[1]
    assert "loading" not in drawn(display)


def test_a_line_that_is_too_long_loses_the_end_of_its_status():
    with TerminalDisplay(Console(file=io.StringIO(), force_terminal=True, width=66)) as display:
        display.started("FedGroup", 0, 9)
        display.row("FedGroup", row(1))
        display.activity("FedGroup", Activity("training", 1, 3, 20))
        line = drawn(display)
        assert len(line) <= 66
        assert re.match(r"FedGroup 1/9 test accuracy 0.50  clusters 2  trai.*… -:--:--$", line)


def test_an_error_while_the_data_are_loaded_leaves_the_cursor_where_it_was(monkeypatch: pytest.MonkeyPatch):
    with terminal(monkeypatch) as shown:
        assert main([*FAST, "--run_dir", "here", "--data.num_clients", "3"]) == 2
    assert "0/?" in shown[0]
    assert shown[0].rfind("\x1b[?25h") > shown[0].rfind("\x1b[?25l") >= 0  # the cursor was hidden, and is shown again


def test_a_comparison_shows_its_runs_and_then_its_table(monkeypatch: pytest.MonkeyPatch):
    words = ["compare", *TINY[1:], "--rounds", "2", "--num_cpus", "1", "--algorithms", "FedAvg", "Ditto"]
    with terminal(monkeypatch) as shown:
        assert main([*words, "--compare_dir", "c"]) == 0
    lines = left_standing(shown[0])
    assert any(re.match(r"runs .*2/2 .*0 running, 0 failed", line) for line in lines)
    assert [line.split()[0] for line in lines if re.match(r"(FedAvg|Ditto) .*0\.", line)] == ["FedAvg", "Ditto"]
    assert "FedAvg seed 0" in shown[0]  # shown while the run trained
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
