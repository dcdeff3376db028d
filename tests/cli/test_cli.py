"""Tests the command line: its output, and its one-line errors for bad input (exit code 2, no traceback)."""

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
from lit_cfl.engines.trainer import TrainerWay
from lit_cfl.storage.csv_log import read_table

FAST = ["--rounds", "2", "--data.num_clients", "12", "--cohort_size", "4", "--algorithm.pretrain_scale", "2"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert captured.err.startswith("lit-cfl: error: ")
    assert captured.err.count("\n") == 1
    assert not Path("runs").exists() or not list(Path("runs").rglob("metrics.csv"))
    return captured.err


def test_run_shows_progress_and_ends_with_a_table(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--run_dir", "here", *FAST]) == 0
    out = capsys.readouterr().out
    for word in (
        "round 2/2",
        "  ARI 0.",
        "clusters 4",
        "s left",
        "weighted accuracy",
        "worst 10 %",
        "traffic MiB",
    ):
        assert word in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith("Fed") and "round" not in line] == [
        "FedGroup",
        "FedAvg",
    ]
    assert len(read_table(Path("here/baseline/metrics.csv"))) == 2


def test_recorded_configuration_repeats_the_run(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--run_dir", "a", *FAST]) == 0
    assert main(["run", "--config", "a/config.yaml", "--run_dir", "b"]) == 0
    assert timeless_rows(Path("a")) == timeless_rows(Path("b"))
    first, second = (yaml.safe_load(Path(d, "config.yaml").read_text()) | {"code": None} for d in "ab")
    assert first == second


def test_default_directory_has_name_and_time():
    assert main(["run", "--config", "quickstart", "--tiny"]) == 0
    (path,) = Path("runs").iterdir()
    assert path.name.startswith("quickstart-2")


def test_dry_run_says_what_would_run_and_writes_nothing(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "40 in training" in out
    assert "about 4,800" in out  # 2 runs x 20 rounds x 10 clients x 3 epochs x 4 batches
    assert "650 parameters" in out
    assert list(Path().iterdir()) == []


def test_options_lost_by_changing_the_class_are_named(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--tiny", "--algorithm", "FedAvg"]) == 0
    assert "do not apply (num_clusters, pretrain_scale, pretrain)" in capsys.readouterr().out


def test_options_that_another_optimizer_takes_from_the_file_are_named(capsys: pytest.CaptureFixture[str]):
    Path("momentum.yaml").write_text("task: {init_args: {optimizer: {init_args: {momentum: 0.9}}}}\n")
    files = ["--config", "quickstart", "--config", "momentum.yaml"]
    assert main(["run", *files, "--dry-run", "--task.optimizer", "Adam"]) == 0
    out = capsys.readouterr().out
    assert "Note: Adam runs with the file's lr 0.1" in out


def test_options_that_another_algorithm_takes_from_the_file_are_named(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--dry-run", "--algorithm", "FLUX"]) == 0
    assert "FLUX runs with the file's num_clusters 4" in capsys.readouterr().out
    main(["run", "--config", "quickstart", "--dry-run", "--algorithm", "FLUX", "--algorithm.num_clusters", "auto"])
    assert "with the file's" not in capsys.readouterr().out


def test_print_config_is_a_configuration(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--print_config"]) == 0
    Path("printed.yaml").write_text(capsys.readouterr().out)
    assert main(["run", "--config", "printed.yaml", "--tiny"]) == 0


def test_help_names_every_option_with_its_meaning(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for text in (
        "--cohort_size",
        "Clients per round K",
        "--local.epochs",
        "full passes over the client",
        "--tiny",
        "--dry-run",
        "--local CONFIG Path to a configuration file.",
        "The LightningModule that each client trains: --task.help",
        "--task NAME Class of the task, such as Classification",
    ):
        assert text in out
    assert "<class 'lightning" not in out


@pytest.mark.parametrize("algorithm", ["FedGroup", "StoCFL"])
def test_help_of_an_algorithm_lists_no_subclasses_of_tensor(algorithm: str, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--algorithm.help", algorithm]) == 0
    out = capsys.readouterr().out
    assert "Tensor" not in out
    assert "Number of epochs or steps, 1 or more" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["run", "--data.help", "ArrayData"], "--data.columns"),
        (["data", "--data.help=Digits"], "--data.num_clients"),
        (["run", "--algorithm.help", "IFCA"], "--algorithm.num_clusters"),
    ],
)
def test_help_of_a_class_lists_its_options(words: list[str], option: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 0
    assert option in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--data.help", "Digitz"], "data: 'Digitz' is not known (did you mean Digits?). Known: ArrayData,"),
        (["data", "--data.help", "Digitz"], "data: 'Digitz' is not known (did you mean Digits?)"),
        (["run", "--config", "quickstart", "--data.partition.help", "IDD"], "data.partition: 'IDD' is not known (did"),
        (["run", "--data.partition.help", "IID"], "data names no class; write data: {class_path: NAME, "),
        (["run", "--task.net.help", "MLP"], "task names no class; write task: {class_path: NAME, "),
    ],
)
def test_help_of_what_is_not_there_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_help_shows_no_option_that_only_runs_write(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    assert not [name for name in ("--code", "--format", "--data_commit") if name in out]


QUICK = ("run", "--config", "quickstart")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("help", "run"), "there is no command 'help'. Known commands: run, compare, "),
        (("runn",), "there is no command 'runn' (did you mean run?)"),
        (("run", "--config", "quickstrat"), "(did you mean quickstart?)"),
        (("run",), "data"),
        ((*QUICK, "--cohort_siz", "3"), "'cohort_siz' (did you mean --cohort_size?)"),
        ((*QUICK, "--algorithm", "FedGruop"), "'FedGruop' is not known (did you mean FedGroup?)"),
        ((*QUICK, "--baseline", "FedAvgg"), "baseline: 'FedAvgg' is not known (did you mean FedAvg?)"),
        ((*QUICK, "--data", "Digit"), "data: 'Digit' is not known (did you mean Digits?)"),
        ((*QUICK, "--task.net", "MPL"), "task.net: 'MPL' is not known (did you mean MLP?)"),
        ((*QUICK, "--task.optimizer", "torch.optim.SDG"), "torch.optim has no class 'SDG' (did you mean SGD?)"),
        ((*QUICK, "--algorithm.num_cluster", "3"), "FedGroup has no option 'num_cluster' (did you mean num_clusters?)"),
        ((*QUICK, "--task.optimizer.lrr", "3"), "SGD has no option 'lrr' (did you mean lr?)"),
        ((*QUICK, "--evaluation.evry", "3"), "evaluation has no option 'evry' (did you mean every?)"),
        ((*QUICK, "--rounds", "many"), "rounds is 'many'; give a whole number"),
        ((*QUICK, "--algorithm.num_clusters", "four"), "algorithm.num_clusters is 'four'; give auto or a whole number"),
        ((*QUICK, "--task.optimizer.lr", "abc"), "task.optimizer.lr is 'abc'; give a number"),
        ((*QUICK, "--algorithm.measure", "cosine"), "algorithm.measure is 'cosine'; give edc or madc"),
        ((*QUICK, "--engine", "fast"), "engine is 'fast'; give auto, trainer, loop, chain, stack or ray"),
        (
            (*QUICK, "--evaluation.clients", "some"),
            "is 'some'; give assigned, all or a whole number",
        ),
        ((*QUICK, "--algorithm.num_clusters", "0"), "num_clusters is 0; it must be 1 or more"),
        ((*QUICK, "--algorithm.num_clusters", "41"), "num_clusters is 41, but only 40 clients"),
        ((*QUICK, "--cohort_size", "41"), "cohort_size is 41, but there are 40 clients"),
        ((*QUICK, "--rounds", "0"), "rounds is 0"),
        ((*QUICK, "--local.epochs", "0"), "epochs is 0; give 1 or more"),
        ((*QUICK, "--local.batch_size", "0"), "batch_size is 0; give 1 or more"),
        ((*QUICK, "--dropout", "1"), "dropout is 1.0"),
        ((*QUICK, "--seeds", "[1, 1]"), "seeds is [1, 1]"),
        ((*QUICK, "--data.num_clients", "1798"), "1798 clients cannot share 1797 examples"),
        ((*QUICK, "--data.rotations", "[30]"), "30 degrees would blur the images; give whole multiples of 90"),
        ((*QUICK, "--device", "cuda:64"), "this machine has"),
        ((*QUICK, "--device", "gpu"), "'gpu' is not known; choose auto, cpu, cuda"),
        (
            (*QUICK, "--stop.metric", "test/weighted_accuracy"),
            "test data are for reports only; use val/weighted_accuracy",
        ),
        ((*QUICK, "--stop.metric", "val/weighted_acuracy"), "(did you mean val/weighted_accuracy?)"),
        ((*QUICK, "--task.optimizer.lr", "1e38"), "diverged in round 1"),
    ],
    ids=lambda value: " ".join(value[3:] or value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_quoted_with_its_remedy(capsys, arguments: tuple[str, ...], expected: str):
    assert expected in error_of(capsys, *arguments)


def test_used_and_unwritable_directories_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--tiny", "--run_dir", "a"]) == 0
    capsys.readouterr()
    assert main(["run", "--config", "quickstart", "--tiny", "--run_dir", "a"]) == 2
    assert "a already holds a run; choose another --run_dir" in capsys.readouterr().err
    Path("file").write_text("")
    assert main(["run", "--config", "quickstart", "--tiny", "--run_dir", "file/run"]) == 2
    assert "file/run cannot be written" in capsys.readouterr().err


def test_mistakes_in_a_file_are_quoted(capsys: pytest.CaptureFixture[str]):
    good = yaml.safe_load(Path(__file__).parents[2].joinpath("configs/quickstart.yaml").read_text())
    Path("a.yaml").write_text(yaml.safe_dump(good | {"round": 3}))
    assert "'round' (did you mean --rounds?)" in error_of(capsys, "run", "--config", "a.yaml")
    good["algorithm"]["init_args"]["num_clustrs"] = 3
    Path("b.yaml").write_text(yaml.safe_dump(good))
    assert "'num_clustrs' (did you mean num_clusters?)" in error_of(capsys, "run", "--config", "b.yaml")
    Path("c.yaml").write_text("rounds: [1\nname: x")
    assert "line 2" in error_of(capsys, "run", "--config", "c.yaml")


OTHER_PLAN = {"plan": {"rows_mib": 7}}


def test_plan_with_resume_is_used_with_new_plan_and_otherwise_refused(capsys: pytest.CaptureFixture[str]):
    begin = "run --config quickstart --baseline null --rounds 1 --plan.lanes 3 --run_dir run"
    assert main(begin.split()) == 0
    begun = yaml.safe_load(Path("run/config.yaml").read_text())["plan"]
    assert begun["lanes"] == 3
    assert main(["run", "--resume", "run", "--rounds", "2", "--plan.rows_mib", "7"]) == 2
    refused = "plan.rows_mib is 7, but a resumed run keeps the plan that it was started with"
    assert refused in capsys.readouterr().err
    Path("other.yaml").write_text(yaml.safe_dump(yaml.safe_load(Path("run/config.yaml").read_text()) | OTHER_PLAN))
    said = error_of(capsys, "run", "--config", "other.yaml", "--resume", "run", "--rounds", "2")
    assert refused in said
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
