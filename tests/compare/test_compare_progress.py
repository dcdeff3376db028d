"""Tests what a comparison shows about its runs while they are running."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from lit_cfl.activity import Activity
from lit_cfl.progress.live import LogDisplay, TerminalDisplay

pytestmark = pytest.mark.usefixtures("no_figures")

ONE, TWO = "FedAvg seed 1", "IFCA seed 1"


def row(round: int) -> dict[str, Any]:
    row = {"round": round, "val/weighted_accuracy": None, "test/weighted_accuracy": 0.5, "clusters/count": 2}
    return row | {"clusters/ari": None, "clusters/unobserved": 0}


def test_lines_say_at_once_and_after_ten_quiet_seconds_what_each_run_does():
    seconds, out = [5.0], io.StringIO()
    lines = LogDisplay(Console(file=out, width=200), 3, clock=lambda: seconds[0])
    lines.beat()  # no run has started
    lines.started(ONE, 0, 9)
    lines.started(TWO, 0, 9)
    lines.activity(ONE, Activity("loading the data"))
    lines.activity(ONE, Activity("training", 2, 3, 8))
    seconds[0] = 14.9
    lines.beat()
    seconds[0] = 15.0
    lines.beat()
    lines.ended(ONE, "failed: no licence", failed=True)
    lines.row(TWO, row(1))  # rounds of parallel runs are not printed
    seconds[0] = 25.0
    lines.beat()
    lines.ended(TWO, "test accuracy 0.50")
    assert out.getvalue().splitlines() == [
        "FedAvg seed 1  loading the data",
        "IFCA seed 1  starting",
        "FedAvg seed 1  round 3/9  training 3 of 8 clients  10 s so far",
        "IFCA seed 1  starting  10 s so far",
        "1/3  FedAvg seed 1  failed: no licence",
        "IFCA seed 1  starting  20 s so far",
        "2/3  IFCA seed 1  test accuracy 0.50",
    ]


def test_a_terminal_shows_what_each_run_does():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    live = TerminalDisplay(console, 2)

    def drawn() -> list[str]:
        file = console.file = io.StringIO()
        assert live.shown is not None
        live.shown.refresh()
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", file.getvalue()).splitlines()
        return [re.sub("[ ━╸╺]+", " ", line) for line in lines]

    with live:
        live.started(ONE, 0, 9)
        live.started(TWO, 0, 9)
        live.activity(ONE, Activity("pre-training", 0, 3, 8))
        assert drawn()[1:] == [
            "FedAvg seed 1 round 0/9 pre-training 3 of 8 clients --:-- left",
            "IFCA seed 1 round 0/9 starting --:-- left",
        ]
        live.row(ONE, row(1))
        live.activity(ONE, Activity("training", 1, 5, 8))
        assert drawn()[1].startswith("FedAvg seed 1 round 1/9 test accuracy 0.50 clusters 2 training 5 of 8 clients")
        live.ended(ONE, "test accuracy 0.50")
        live.ended(TWO, "failed: no licence", failed=True)
        shown = drawn()
        assert shown[-1].startswith("runs 2/2 0 running, 1 failed ")
        assert not live.running
