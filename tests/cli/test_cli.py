"""Tests `lit-cfl run`: its output, its help, its notes, and how it ends."""

import signal
from pathlib import Path

import pytest
import yaml
from digits_experiment import timeless_rows

from lit_cfl.cli import main as command_line
from lit_cfl.cli.main import main
from lit_cfl.config.parser import parse_run

FAST = ["--rounds", "2", "--data.num_clients", "12", "--cohort_size", "4", "--algorithm.pretrain_scale", "2"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_printed_and_recorded_configurations_repeat_the_run(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--print_config", *FAST]) == 0
    Path("printed.yaml").write_text(capsys.readouterr().out)
    handler = signal.getsignal(signal.SIGTERM)
    for config, folder in (("printed.yaml", "a"), ("a/config.yaml", "b")):
        assert main(["run", "--config", config, "--run_dir", folder]) == 0
    assert signal.getsignal(signal.SIGTERM) == handler  # a run replaces it only until its end
    assert timeless_rows(Path("a")) == timeless_rows(Path("b"))
    first, second = (yaml.safe_load(Path(d, "config.yaml").read_text()) | {"code": None} for d in "ab")
    assert first == second


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        ("--algorithm FLUX", ["algorithm is now FLUX: the file's", "FLUX runs with the file's num_clusters 4"]),
        ("--algorithm FLUX --algorithm.num_clusters auto", ["algorithm is now FLUX: the file's options for FedGroup"]),
        (
            "--config momentum.yaml --task.optimizer Adam",
            ["Adam runs with the file's lr 0.1", "task.optimizer is now Adam: the file's options for SGD do not"],
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


@pytest.mark.parametrize(
    ("words", "shown", "not_shown"),
    [
        (
            "run --help",
            ["--cohort_size", "--local.epochs", "--tiny", "--task NAME Class of the task", "Clients per round K"],
            ["<class 'lightning", "--code", "--format", "--data_commit"],  # the last three are written by runs
        ),
        ("run --data.help ArrayData", ["--data.columns"], []),
        ("data --data.help=Digits", ["--data.num_clients"], []),
        ("data --config quickstart --print_config", ["num_clients: 40"], ["epochs:"]),
        # not of subclasses of a type that no option may name
        ("run --algorithm.help FedGroup", ["--algorithm.num_clusters", "Number of epochs or steps"], ["Tensor"]),
    ],
)
def test_help_lists_options_with_their_meaning(
    words: str, shown: list[str], not_shown: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main(words.split()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert [text for text in shown if text not in out] == []
    assert [text for text in not_shown if text in out] == []


def test_a_resumed_run_keeps_its_plan_but_for_options_given_with_new_plan():
    begin = "run --config quickstart --baseline null --rounds 1 --plan.lanes 3 --run_dir run"
    assert main(begin.split()) == 0
    begun = yaml.safe_load(Path("run/config.yaml").read_text())["plan"]
    assert begun["lanes"] == 3
    assert main(["run", "--config", "run/config.yaml", "--resume", "run", "--plan.lanes", "3", "--rounds", "2"]) == 0
    assert yaml.safe_load(Path("run/config.yaml").read_text())["plan"] == begun
    assert main(["run", "--resume", "run", "--rounds", "3", "--new_plan", "--plan.rows_mib", "7"]) == 0
    now = yaml.safe_load(Path("run/config.yaml").read_text())["plan"]
    assert now["rows_mib"] == 7
    assert now["lanes"] != 3  # options that are not given are chosen by rule


def test_ctrl_c_before_a_run_handles_it_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "_run", interrupted)
    monkeypatch.setattr(command_line.atexit, "register", lambda *arguments: None)
    assert command_line.main() == 130
    assert capsys.readouterr().err == "lit-cfl: interrupted\n"
