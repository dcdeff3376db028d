"""Tests what a comparison shows about its runs while they are running."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from lit_cfl.activity import Activity
from lit_cfl.progress.live import TerminalDisplay

pytestmark = pytest.mark.usefixtures("no_figures")

ONE, TWO = "FedAvg seed 1", "IFCA seed 1"


def row(round: int) -> dict[str, Any]:
    row = {"round": round, "val/weighted_accuracy": None, "test/weighted_accuracy": 0.5, "clusters/count": 2}
    return row | {"clusters/ari": None, "clusters/unobserved": 0}


def test_a_terminal_shows_what_each_run_does():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    live = TerminalDisplay(console, 2)

    def drawn() -> list[str]:
        file = console.file = io.StringIO()
        live.shown.refresh()
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", file.getvalue()).splitlines()
        return [re.sub("[ ━╸╺]+", " ", line) for line in lines]

    with live:
        live.started(ONE, 0, 9)
        live.started(TWO, 0, 9)
        live.activity(ONE, Activity("pre-training", 0, 3, 8))
        assert drawn()[1:] == [
            "FedAvg seed 1 0/9 pre-training 3 of 8 clients -:--:--",
            "IFCA seed 1 0/9 starting -:--:--",
        ]
        live.row(ONE, row(1))
        live.activity(ONE, Activity("training", 1, 5, 8))
        assert drawn()[1].startswith("FedAvg seed 1 1/9 test accuracy 0.50 clusters 2 training 5 of 8 clients")
        live.ended(ONE, "test accuracy 0.50")
        live.ended(TWO, "failed: no licence", failed=True)
        shown = drawn()
        assert shown[-1].startswith("runs 2/2 0 running, 1 failed ")
