"""Tests `lit-cfl run`: its output, its help, its notes, and how it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from digits_experiment import timeless_rows
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lit_cfl.cli import main as command_line
from lit_cfl.cli.main import main
from lit_cfl.config.parser import parse_run
from lit_cfl.engines.trainer import TrainerWay
from lit_cfl.storage.csv_log import read_table

FAST = ["--rounds", "2", "--data.num_clients", "12", "--cohort_size", "4", "--algorithm.pretrain_scale", "2"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_run_shows_progress_and_ends_with_a_table(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--run_dir", "here", *FAST]) == 0
    out = capsys.readouterr().out
    for word in ("round 2/2", "  ARI 0.", "clusters 4", "s left", "weighted accuracy", "worst 10 %", "traffic MiB"):
        assert word in out
    rows = [line.split()[0] for line in out.splitlines() if line.startswith("Fed") and "round" not in line]
    assert rows == ["FedGroup", "FedAvg"]
    assert len(read_table(Path("here/baseline/metrics.csv"))) == 2


def test_recorded_configuration_repeats_the_run(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--run_dir", "a", *FAST]) == 0
    assert main(["run", "--config", "a/config.yaml", "--run_dir", "b"]) == 0
    assert timeless_rows(Path("a")) == timeless_rows(Path("b"))
    first, second = (yaml.safe_load(Path(d, "config.yaml").read_text()) | {"code": None} for d in "ab")
    assert first == second


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        (
            "--algorithm FedAvg",
            ["algorithm is now FedAvg: the file's options for FedGroup do not apply (num_"],
        ),
        ("--algorithm FLUX", ["algorithm is now FLUX: the file's", "FLUX runs with the file's num_clusters 4"]),
        ("--algorithm FLUX --algorithm.num_clusters auto", ["algorithm is now FLUX: the file's options for FedGroup"]),
        (
            "--config momentum.yaml --task.optimizer Adam",
            [
                "Adam runs with the file's lr 0.1",
                "task.optimizer is now Adam: the file's options for SGD do not apply (mo",
            ],
        ),
        ("--algorithm.num_clusters 3", []),
    ],
)
def test_options_of_the_file_that_another_class_drops_or_keeps_are_named(words: str, notes: list[str]):
    optimizer = "{class_path: torch.optim.SGD, init_args: {momentum: 0.9}}"
    Path("momentum.yaml").write_text(f"task: {{class_path: Classification, init_args: {{optimizer: {optimizer}}}}}\n")
    found = parse_run(["--config", "quickstart", *words.split()]).notices
    assert len(found) == len(notes)
    assert [note for note, expected in zip(found, notes, strict=True) if not note.startswith(expected)] == []


def test_print_config_is_a_configuration(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--print_config"]) == 0
    Path("printed.yaml").write_text(capsys.readouterr().out)
    assert main(["run", "--config", "printed.yaml", "--tiny"]) == 0


def test_help_names_every_option_with_its_meaning(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    meanings = ("Clients per round K", "full passes over the client", "The LightningModule that each client trains: -")
    for text in ("--cohort_size", "--local.epochs", "--tiny", "--dry-run", "--task NAME Class of the task", *meanings):
        assert text in out
    for text in ("<class 'lightning", "--code", "--format", "--data_commit"):  # the last three are written by runs
        assert text not in out


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("run --data.help ArrayData", "--data.columns"),
        ("data --data.help=Digits", "--data.num_clients"),
        ("run --algorithm.help IFCA", "--algorithm.num_clusters"),
        ("run --algorithm.help FedGroup", "Number of epochs or steps, 1 or more"),
        ("run --algorithm.help StoCFL", "Number of epochs or steps, 1 or more"),
    ],
)
def test_help_of_a_class_lists_its_options(words: str, option: str, capsys: pytest.CaptureFixture[str]):
    assert main(words.split()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert option in out
    assert "--algorithm" not in words or "Tensor" not in out  # subclasses of a type that no option may name


OTHER_PLAN = {"plan": {"rows_mib": 7}}


def test_plan_with_resume_is_used_with_new_plan_and_otherwise_refused(capsys: pytest.CaptureFixture[str]):
    begin = "run --config quickstart --baseline null --rounds 1 --plan.lanes 3 --run_dir run"
    assert main(begin.split()) == 0
    begun = yaml.safe_load(Path("run/config.yaml").read_text())["plan"]
    assert begun["lanes"] == 3
    assert main(["run", "--resume", "run", "--rounds", "2", "--plan.rows_mib", "7"]) == 2
    refused = "plan.rows_mib is 7"
    assert refused in capsys.readouterr().err
    Path("other.yaml").write_text(yaml.safe_dump(yaml.safe_load(Path("run/config.yaml").read_text()) | OTHER_PLAN))
    assert main(["run", "--config", "other.yaml", "--resume", "run", "--rounds", "2"]) == 2
    assert refused in capsys.readouterr().err
    assert main(["run", "--config", "run/config.yaml", "--resume", "run", "--plan.lanes", "3", "--rounds", "2"]) == 0
    assert yaml.safe_load(Path("run/config.yaml").read_text())["plan"] == begun
    assert main(["run", "--resume", "run", "--rounds", "3", "--new_plan", "--plan.rows_mib", "7"]) == 0
    now = yaml.safe_load(Path("run/config.yaml").read_text())["plan"]
    assert now["rows_mib"] == 7
    assert now["lanes"] != 3  # options that are not given are chosen by rule


AT_THE_END = """
import atexit
import sys
from lit_cfl.cli import main

def later(words):
    import torch
    atexit.register(lambda: print("handlers of libraries are called"))
    if words:
        raise ValueError("a traceback")
    print("not flushed", end=" ")
    return 7

main.COMMANDS["doctor"] = main.Command("__main__", "later", "")
sys.exit(main.main())
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "code", "out"),
    [([], 7, "not flushed handlers of libraries are called\n"), (["x"], 1, "handlers of libraries are called\n")],
)
def test_process_ends_with_the_commands_code_after_the_handlers_of_libraries(words: list[str], code: int, out: str):
    ended = subprocess.run(
        [sys.executable, "-c", AT_THE_END, "doctor", *words], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (code, out)
    assert ("ValueError: a traceback" in ended.stderr) == bool(words)
    assert "leaked" not in ended.stderr  # nanobind reports leaks of objects that are never collected


def test_ctrl_c_before_a_run_handles_it_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "_run", interrupted)
    monkeypatch.setattr(command_line.atexit, "register", lambda *arguments: None)
    assert command_line.main() == 130
    assert capsys.readouterr().err == "lit-cfl: interrupted\n"


def test_a_signal_while_the_task_is_tried_ends_the_run_as_any_other(monkeypatch: pytest.MonkeyPatch):
    def fit(way: TrainerWay, *given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        raise SIGTERMException  # as Lightning does after a mini-batch

    monkeypatch.setattr(TrainerWay, "fit", fit)
    assert main(["run", "--config", "quickstart", "--run_dir", "here"]) == 128 + signal.SIGTERM
