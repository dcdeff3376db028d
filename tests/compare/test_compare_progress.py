"""What a comparison shows of each of its runs while it goes on."""

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from lit_cfl.activity import Activity
from lit_cfl.cli.main import main
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.jobs import Job
from lit_cfl.compare.view import Lines, Live

TINY = (
    "--config",
    "quickstart",
    "--data.num_clients",
    "8",
    "--cohort_size",
    "4",
    "--local.epochs",
    "1",
    "--rounds",
    "1",
)
ONE, TWO = (Job(Path("c"), name, 1) for name in ("FedAvg", "IFCA"))


def comparison() -> Comparison:
    nine = SimpleNamespace(rounds=9)
    return cast(
        Comparison, SimpleNamespace(names=["FedAvg", "IFCA"], seeds=[1], experiments={"FedAvg": nine, "IFCA": nine})
    )


def row(round: int) -> dict[str, Any]:
    row = {"round": round, "val/weighted_accuracy": None, "test/weighted_accuracy": 0.5, "clusters/count": 2}
    return row | {"clusters/ari": None, "clusters/unobserved": 0}


def test_lines_say_at_once_and_after_ten_quiet_seconds_what_each_run_does():
    seconds, out = [5.0], io.StringIO()
    lines = Lines(Console(file=out, width=200), comparison(), 0, lambda: seconds[0])
    lines.beat()  # nothing has begun
    lines.began(ONE)
    lines.began(TWO)
    lines.doing(ONE, Activity("loading the data"))
    lines.doing(ONE, Activity("training", 2, 3, 8))
    seconds[0] = 14.9
    lines.beat()
    seconds[0] = 15.0
    lines.beat()
    lines.over(ONE, "no licence")
    seconds[0] = 25.0
    lines.beat()
    assert out.getvalue().splitlines() == [
        "FedAvg seed 1  loading the data",
        "IFCA seed 1  starting",
        "FedAvg seed 1  round 3/9  training 3 of 8 clients  10 s so far",
        "IFCA seed 1  starting  10 s so far",
        "1/2  FedAvg seed 1  failed: no licence",
        "IFCA seed 1  starting  20 s so far",
    ]


def test_a_terminal_shows_what_each_run_does():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    live = Live(console, comparison(), 0)

    def drawn() -> list[str]:
        file = console.file = io.StringIO()
        live.progress.refresh()
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", file.getvalue()).splitlines()
        return [re.sub("[ ━╸╺]+", " ", line) for line in lines]

    with live:
        live.began(ONE)
        live.began(TWO)
        live.doing(ONE, Activity("pre-training", 0, 3, 8))
        assert drawn()[1:] == [
            "FedAvg seed 1 0/9 pre-training 3 of 8 clients 0:00:00",
            "IFCA seed 1 0/9 starting 0:00:00",
        ]
        live.row(ONE, row(1))
        live.doing(ONE, Activity("training", 1, 5, 8))
        assert drawn()[1].startswith("FedAvg seed 1 1/9 test accuracy 0.50 clusters 2 training 5 of 8 clients")
        live.over(ONE, None)
        live.over(TWO, "no licence")
        assert not live.running


def test_a_run_in_this_process_says_what_it_does_from_the_loading_of_its_data_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *TINY, "--num_cpus", "1", "--algorithms", "FedAvg", "IFCA", "--compare_dir", "c"]) == 0
    assert "FedAvg seed 0  loading the data" in capsys.readouterr().out.splitlines()


def test_a_worker_writes_what_it_does_for_the_driver_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray")
    from lit_cfl.compare import side_by_side

    def run_job(job: Job, callbacks: Any) -> None:
        for done in range(3):
            callbacks.activity(Activity("training", 2, done, 8))

    monkeypatch.setattr(side_by_side, "run_job", run_job)
    assert side_by_side.in_worker(ONE, tmp_path / "nowhere/note.json") == (None, [])
    seen: list[Activity] = []
    view = SimpleNamespace(doing=lambda job, activity: seen.append(activity))
    side_by_side._show(ONE, tmp_path / "note.json", view)  # nothing was written yet
    assert side_by_side.in_worker(ONE, tmp_path / "note.json") == (None, [])
    assert json.loads((tmp_path / "note.json").read_text())["done"] == 0  # not for each client
    side_by_side._show(ONE, tmp_path / "note.json", view)
    assert seen == [Activity("training", 2, 0, 8)]
