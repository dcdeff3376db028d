"""Tests `lit-cfl run`, `data`, `doctor` and `--version`: output, help, notes, ends, and paths that they are given."""

import platform
import pwd
import re
import signal
import warnings
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from compiled_steps import steps_of
from digits_experiment import timeless_rows
from PIL import Image
from rich.console import Console

import lit_cfl
from lit_cfl.cli import doctor
from lit_cfl.cli import main as command_line
from lit_cfl.cli.data_summary import show
from lit_cfl.cli.doctor import _cache
from lit_cfl.cli.main import _with_home, main
from lit_cfl.config.parser import parse_data, parse_run
from lit_cfl.data.partition_file import load_partition, partition_hash
from lit_cfl.datamodules import Digits
from lit_cfl.errors import InputError, Notice
from lit_cfl.storage.cache_folder import cache_folder
from lit_cfl.storage.given_paths import require_folder_name

pytestmark = pytest.mark.usefixtures("in_empty_folder")

FAST = ["--rounds", "2", "--data.num_clients", "12", "--cohort_size", "4", "--algorithm.pretrain_scale", "2"]


def test_printed_and_recorded_configurations_repeat_the_run(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "quickstart", "--print_config", *FAST]) == 0
    Path("printed.yaml").write_text(capsys.readouterr().out)
    handler = signal.getsignal(signal.SIGTERM)
    for config, folder in (("printed.yaml", "a"), ("a/config.yaml", "b")):
        assert main(["run", "--config", config, "--run_dir", folder]) == 0
    assert signal.getsignal(signal.SIGTERM) == handler  # a run replaces it only until its end
    assert timeless_rows(Path("a/metrics.csv")) == timeless_rows(Path("b/metrics.csv"))
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
def test_help_lists_options_with_their_meaning(words: str, shown: list[str], not_shown: list[str], capsys):
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


def test_ctrl_c_before_a_run_handles_it_prints_one_line(monkeypatch: pytest.MonkeyPatch, capsys):
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "_run", interrupted)
    monkeypatch.setattr(command_line.atexit, "register", lambda *arguments: None)
    assert command_line.main() == 130
    assert capsys.readouterr().err == "lit-cfl: interrupted\n"


PARTS = "lit-cfl python cores torch device chains lightning ray wandb data cache disk"


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["doctor"]) == 0
    return {line[:12].strip(): line[12:] for line in capsys.readouterr().out.splitlines()}


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lit-cfl {lit_cfl.__version__}\n" == f"lit-cfl {version('lit-cfl')}\n"


def test_doctor_names_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("LITCFL_CACHE", str(tmp_path / "new" / "cache"))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    found = printed(capsys)
    assert " ".join(found) == PARTS
    assert found["python"].startswith(platform.python_version())
    assert found["torch"].startswith(torch.__version__)
    assert found["ray"] == f"{version('ray')}, RAY_ADDRESS 10.0.0.1:6379"
    assert found["wandb"] == f"{version('wandb')}, WANDB_MODE disabled"
    assert found["cache"].startswith(f"{tmp_path / 'new' / 'cache'}, writable, ")
    assert found["disk"].endswith(str(Path().resolve()))
    assert "fails" not in "".join(found.values())


def test_parts_that_fail_or_are_missing_say_so_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken() -> str:
        raise OSError("no such driver")

    monkeypatch.setattr(doctor, "_device", broken)
    monkeypatch.setenv("LITCFL_CACHE", "/proc/version/cache")
    with steps_of(tmp_path):
        found = printed(capsys)
    assert " ".join(found) == PARTS
    assert found["device"] == "fails: OSError: no such driver"
    assert "NOT writable" in found["cache"]
    assert found["chains"].startswith("NOT compiled")
    assert "install g++" in found["chains"]


def test_table_pictures_and_partition_file_say_who_has_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = ("--data.num_clients", "9", "--data.newcomers", "0.3", "--seed", "5")
    out = tmp_path / "d"
    assert main(["data", "--config", "quickstart", *options, "--out", str(out)]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "written" not in line)
    assert lines["data"] == "Digits: 1,797 examples of shape (1, 8, 8), 10 labels"
    assert lines["clients"] == "6 in training, 3 newcomers"
    assert lines["examples"] == "1,293 train, 144 validation, 360 test"
    assert lines["true"].split(maxsplit=1)[1] == "4, with 2 to 3 clients each"
    assert lines["skew"] == "of inputs"  # the skew is by rotations
    module = Digits(9, newcomers=0.3, validation=0.1)
    saved = load_partition(out / "partition.npz", module.examples)
    assert lines["fingerprint"] == partition_hash(module.federated(5)) == partition_hash(saved)
    pictures = sorted(path for path in out.iterdir() if path.suffix == ".png")
    assert [path.stem for path in pictures] == ["clusters", "labels", "sizes"]
    for path in pictures:
        with Image.open(path) as picture:
            assert len(set(picture.convert("L").tobytes())) > 10  # the picture is not empty


@pytest.mark.parametrize(
    ("clusters", "words"),
    [
        ([0, 0, 0, 0, 1, 1], "2, with 2 to 4 clients each"),
        ([0, 1, 2, 3, 4, 5], "6, with 1 client each"),
        ([-1] * 6, "unknown, so agreement with them cannot be measured"),
    ],
)
def test_sizes_of_the_true_clusters_are_a_range_only_if_they_differ(clusters: list[int], words: str):
    data = replace(Digits(6).federated(0), true_clusters=torch.tensor(clusters))
    output = StringIO()
    show(Console(file=output, width=200), "Digits", data, ())
    assert f"true clusters      {words}\n" in output.getvalue()
    assert "names of clusters" not in output.getvalue()
    show(Console(file=output, width=200), "Digits", replace(data, cluster_names=("east", "north")), ())
    assert "names of clusters  0 east, 1 north\n" in output.getvalue()


def test_options_of_an_experiment_that_the_data_do_not_use_are_named():
    with pytest.warns(Notice, match=r"does not use --rounds, --algorithm, --local.epochs$"):
        parse_data(["--config", "quickstart", "--rounds", "3", "--algorithm=IFCA", "--seed=1", "--local.epochs", "2"])


def test_a_command_shows_each_note_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # the command replaces it
    main(["data"])
    shown = [warnings.formatwarning(text, Notice, "file.py", 1) for text in ("a", "b", "a")]
    assert shown == ["Note: a.\n", "Note: b.\n", ""]


def test_a_user_without_a_home_folder_can_run_but_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in a container whose user id has no entry."""

    def unknown(_: int) -> Any:
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "LITCFL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert main(["run", "--config", "quickstart", "--tiny", "--run_dir", str(tmp_path / "run")]) == 0
    with pytest.warns(Notice, match="no home folder, so nothing is kept for later runs; set LITCFL_CACHE"):
        assert _cache() == "off (no home folder)"
    monkeypatch.setenv("LITCFL_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.setenv("LITCFL_CACHE", "~/x")
    with pytest.raises(InputError, match="'~/x' begins with ~"):
        cache_folder()


@pytest.mark.parametrize(
    ("name", "fits"),
    [*((name, False) for name in ("", "a/b", "..", "a\nb", "a\0b", "\ud800", "ö" * 91)), ("ö" * 90, True)],
)
def test_a_name_that_no_folder_can_have_is_refused(name: str, fits: bool, tmp_path: Path):
    with nullcontext() if fits else pytest.raises(InputError, match=r"^name is "):
        require_folder_name(name, "name")
        (tmp_path / f"{name}-20260101-120000").mkdir()


def test_home_is_expanded_in_directories_and_in_the_folders_of_loggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert main(["data", "--data", "Digits", "--data.num_clients", "4", "--out=~/d"]) == 0
    assert (tmp_path / "home" / "d" / "partition.npz").exists()
    assert not Path("~").exists()
    logger = "[{class_path: CSVLogger, init_args: {save_dir: ~/logs, name: a~b}}]"
    experiment = parse_run(["--config", "quickstart", "--tracking.loggers", logger]).experiment
    (made,) = experiment.to_dict()["tracking"]["loggers"]
    assert (made["init_args"]["save_dir"], made["init_args"]["name"]) == (str(tmp_path / "home" / "logs"), "a~b")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--out=~/d", "--out=/home/me/d"),
        ("--stop=~", "--stop=~"),  # ~ is YAML's null
        ("--out=~x/d", "--out=~x/d"),
        ("--name=a~/b", "--name=a~/b"),
        ("~/d", "~/d"),  # a shell would have expanded it, unless it was quoted
        ("--out", "--out"),
    ],
)
def test_home_is_expanded_after_an_option(word: str, expected: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert _with_home(word) == expected


def test_each_text_file_is_opened_in_utf8():
    """By default, `read_text()` uses the locale's encoding, which differs between machines."""
    folders = [Path(__file__).parents[2] / name for name in ("lit_cfl", "tune", "datamodules")]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    opened = re.compile(r"\.(?:read_text|write_text)\([^\n]*|\bopen\([^\n]*['\"][wra]['\"][^\n]*")
    calls = [call for file in files for call in opened.findall(file.read_text("utf-8"))]
    assert len(calls) > 20
    assert [call for call in calls if "utf-8" not in call] == []
