"""Tests the displays of a run in a terminal, JSON, and quiet output; golden output has the lines in a pipe."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lit_cfl.activity import Activity
from lit_cfl.cli.main import main
from lit_cfl.progress.live import JsonLines, TerminalDisplay, describe
from lit_cfl.progress.screen import Screen
from lit_cfl.progress.tables import mebibytes
from lit_cfl.storage.csv_log import read_table

pytestmark = pytest.mark.nightly  # golden output states most of what is printed

TINY = ("run", "--config", "quickstart", "--data.num_clients", "8", "--cohort_size", "4", "--local.epochs", "1")
FAST = (*TINY, "--algorithm.pretrain_scale", "2", "--rounds", "3")
ROW: dict[str, Any] = {"round": 1, "val/weighted_accuracy": None, "test/weighted_accuracy": 0.5, "clusters/count": 2}
ROW |= {"clusters/ari": None, "clusters/unobserved": 0}


@pytest.fixture(autouse=True)
def plain_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CI", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_row_is_described_by_the_main_score_and_little_traffic_does_not_look_like_none():
    mae = {"val/weighted_mae": None, "test/weighted_mae": 1.25, "val/weighted_bias": None, "test/weighted_bias": 3.0}
    others = {name: value for name, value in ROW.items() if "accuracy" not in name}
    assert describe(others | mae) == "test MAE 1.25  clusters 2"
    assert describe(ROW | {"test/weighted_accuracy": None}) == "test accuracy -  clusters 2"
    assert [mebibytes(mib) for mib in (0.0, 0.034, 0.25, 0.0097, 12.34)] == ["0.0", "0.034", "0.25", "0.0097", "12.3"]


def test_json_has_null_for_nan_and_infinity():
    display = JsonLines(out := io.StringIO())
    display.started("Fed[bold]Avg", 0, 3, 9)
    display.row(ROW | {"train/loss": float("nan"), "clusters/inertia": float("inf")})
    found = json.loads(out.getvalue(), parse_constant=pytest.fail)
    assert (found["algorithm"], found["seed"]) == ("Fed[bold]Avg", 9)
    assert [found["train/loss"], found["clusters/inertia"], found["val/weighted_accuracy"]] == [None] * 3


def test_json_is_the_rows_of_the_tables_also_of_a_resumed_run_and_notices_are_apart(capsys: pytest.CaptureFixture[str]):
    def lines(*words: str) -> tuple[list[dict[str, Any]], str]:
        assert main([*words, "--json"]) == 0
        captured = capsys.readouterr()
        return [json.loads(line, parse_constant=pytest.fail) for line in captured.out.splitlines()], captured.err

    words = (*TINY, "--rounds", "2", "--algorithm", "FedProx", "--seeds", "[2, 5]", "--run_dir", "here")
    found, aside = lines(*words)
    assert "algorithm is now FedProx" in aside
    runs = [(name, seed, path) for seed in (2, 5) for name, path in (("FedProx", ""), ("FedAvg", "/baseline"))]
    rounds = [
        {"event": "round", "algorithm": name, "seed": seed} | row
        for name, seed, path in runs
        for row in read_table(Path(f"here/seed-{seed}{path}/metrics.csv"))
    ]
    assert found[: len(rounds)] == rounds
    ends = [(line["event"], line["algorithm"], line["seed"], line["path"]) for line in found[len(rounds) :]]
    assert ends == [("summary", name, seed, f"here/seed-{seed}{path}") for name, seed, path in runs]
    assert main([*FAST, "--quiet", "--run_dir", "a[b]"]) == 0
    assert capsys.readouterr().out == "a[b]\n"
    found, _ = lines("run", "--resume", "a[b]", "--rounds", "5")
    rounds = [(line["algorithm"], line["round"]) for line in found if line["event"] == "round"]
    assert rounds == [("FedGroup", 4), ("FedGroup", 5), ("FedAvg", 4), ("FedAvg", 5)]


def test_a_reader_that_leaves_ends_the_run_without_a_traceback(tmp_path: Path):
    words = [sys.executable, "-m", "lit_cfl", *FAST, "--rounds", "400", "--json", "--run_dir", "here"]
    pipe: Any = subprocess.PIPE
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=pipe, stderr=pipe, text=True)
    assert json.loads(process.stdout.readline())["round"] == 1
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait(60) == 141
    assert len(read_table(tmp_path / "here" / "metrics.csv")) < 400


def test_the_line_says_what_is_done_from_the_loading_of_the_data_on_and_is_cut_off_at_its_end():
    def drawn() -> str:
        file = display.console.file = io.StringIO()
        display.shown.refresh()
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", file.getvalue()).strip()  # without the codes of a terminal

    with TerminalDisplay(Console(file=io.StringIO(), force_terminal=True, width=66)) as display:
        display.activity("", Activity("loading the data"))
        assert "loading the data" in drawn()
        display.started("FedGroup", 0, 9)
        display.activity("FedGroup", Activity("pre-training", 0, 3, 60))
        assert re.match(r"FedGroup 0/9 pre-training 3 of 60 clients +-:--:--$", drawn())
        display.row("FedGroup", ROW)
        display.activity("FedGroup", Activity("training", 1, 3, 20))
        assert re.match(r"FedGroup 1/9 test accuracy 0.50  clusters 2  trai.*… -:--:--$", drawn())
        display.ended("FedGroup")
        display.activity("", Activity("loading the data"))
        assert drawn().splitlines()[0].startswith("FedGroup 1/9")
        assert "loading the data" in drawn().splitlines()[1]
    assert "loading" not in drawn()


@pytest.mark.parametrize(
    ("name", "value", "live"), [("TERM", "xterm", True), ("TERM", "dumb", False), ("CI", "1", False)]
)
def test_a_line_is_redrawn_if_a_person_watches(name: str, value: str, live: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    monkeypatch.setattr(out, "isatty", lambda: True)
    assert Screen().live is live
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(out, "isatty", lambda: False)
    assert not Screen().live  # a pipe that takes colours is still a pipe
