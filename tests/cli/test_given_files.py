"""Tests paths given to commands: `~`, names of configurations, pipes, a missing home folder, UTF-8."""

import ast
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from lit_cfl.cli.doctor import _cache
from lit_cfl.cli.main import _with_home, main
from lit_cfl.config import catalogue
from lit_cfl.config.catalogue import config_files, copy_piped_configs
from lit_cfl.config.files import code_folders, read_config
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError, Notice
from lit_cfl.storage.cache_folder import cache_folder
from lit_cfl.storage.given_paths import expand_home, require_folder_name, resolve_directory

ROOT = Path(__file__).parents[2]
QUICK = yaml.safe_load(catalogue.configs()["quickstart"].read_text("utf-8"))
DATA = ["data", "--config", "quickstart", "--data.num_clients", "4"]


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the user's home folder unknown, as in a container whose user id has no entry."""

    def unknown(_: int) -> Any:
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "LITCFL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_folder_has_no_cache_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch):
    with pytest.warns(Notice, match="no home folder, so nothing is kept for later runs; set LITCFL_CACHE"):
        assert cache_folder() is None
    with pytest.warns(Notice):
        assert _cache() == "off (no home folder)"
    monkeypatch.setenv("LITCFL_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.setenv("LITCFL_CACHE", "~/x")
    with pytest.raises(InputError, match="'~/x' begins with ~, but this user has no home folder; give a full path"):
        cache_folder()


@pytest.mark.usefixtures("no_home")
def test_a_run_needs_no_home_folder(tmp_path: Path):
    assert main(["run", "--config", "quickstart", "--tiny", "--run_dir", str(tmp_path / "run")]) == 0


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


def test_files_go_into_the_home_folder_and_not_into_one_named_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert main([*DATA, "--out=~/d"]) == 0
    assert (tmp_path / "home" / "d" / "partition.npz").exists()
    assert not Path("~").exists()
    assert resolve_directory("~/r", "--run_dir") == tmp_path / "home" / "r" == expand_home("~/r")


def test_home_is_put_into_the_folders_of_loggers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    words = [
        "--config",
        "quickstart",
        "--baseline",
        "null",
        "--tracking.loggers",
        "[{class_path: CSVLogger, init_args: ",
    ]
    experiment = parse_run([*words[:-1], words[-1] + "{save_dir: ~/logs, name: a~b}}]"]).experiment
    (logger,) = experiment.to_dict()["tracking"]["loggers"]
    assert logger["init_args"]["save_dir"] == "/home/me/logs"
    assert logger["init_args"]["name"] == "a~b"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "--run_dir is ''; give a folder"),
        (" ", "give a folder"),
        ("a\0b", "give a folder"),
        ("x" * 256, "256 bytes"),
    ],
)
def test_a_directory_that_cannot_be_is_refused(path: str, said: str):
    with pytest.raises(InputError, match=said):
        resolve_directory(path, "--run_dir")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "without slashes"),
        ("a/b", "without slashes"),
        ("..", "without slashes"),
        ("a\nb", "cannot be printed"),
        ("a\0b", "cannot be printed"),
        ("\ud800", "cannot be printed"),
        ("ö" * 91, "give 180 bytes or fewer, not 182"),
    ],
)
def test_a_name_that_no_folder_can_have_is_refused(name: str, said: str, tmp_path: Path):
    with pytest.raises(InputError, match=f"^name is .*it names a folder in runs/, so .*{said}"):
        require_folder_name(name, "name")
    file = tmp_path / "named.yaml"
    file.write_text(yaml.safe_dump(QUICK | {"name": name}))
    if name != "\ud800":  # YAML itself refuses this name
        with pytest.raises(InputError, match="it names a folder in runs/"):
            parse_run(["--config", str(file)])


def test_a_name_that_a_folder_can_have_is_taken(tmp_path: Path):
    for name in ("ö" * 90, "a b", "x*?[1]"):
        require_folder_name(name, "name")
        (tmp_path / f"{name}-20260101-120000").mkdir()


def piped(write: Callable[[Path], None], path: Path) -> list[str]:
    os.mkfifo(path)
    thread = Thread(target=write, args=(path,))
    thread.start()
    words = copy_piped_configs(["--config", str(path), "--rounds", "3"])
    thread.join()
    return words


def test_a_configuration_may_come_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = piped(lambda path: path.write_text(yaml.safe_dump(QUICK | {"name": "pröbe"}), "utf-8"), tmp_path / "fifo")
    assert words[0::2] == ["--config", "--rounds"]
    request = parse_run(words)
    assert (request.experiment.name, request.experiment.rounds) == ("pröbe", 3)
    assert parse_run(words).experiment.name == "pröbe"  # a second call reads it again
    assert code_folders(words) == [str(tmp_path)]  # the folder of the pipe does not count
    (tmp_path / "plain.yaml").write_text("rounds: 3\n")
    assert copy_piped_configs(["--config=plain.yaml"]) == ["--config=plain.yaml"]
    read, write = os.pipe()
    os.write(write, b"rounds: 5\n")
    os.close(write)
    (word,) = copy_piped_configs([f"--config=/dev/fd/{read}"])
    assert read_config(word.partition("=")[2]) == {"rounds": 5}


def test_a_folder_is_refused_as_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", str(tmp_path)]) == 2
    assert "is a folder; name a file in it, but it holds no .yaml file" in capsys.readouterr().err
    (tmp_path / "config.yaml").touch()
    assert main(["run", "--config", str(tmp_path)]) == 2
    assert f"is a folder; name a file in it, such as {tmp_path / 'config.yaml'}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a: &x {b: *x}\n", "a: &x [1, *x]\n", "a: &x {b: {c: [*x]}}\n"])
def test_an_alias_of_what_it_stands_in_is_refused(text: str, tmp_path: Path):
    (tmp_path / "round.yaml").write_text(text)
    with pytest.raises(InputError, match=r"round\.yaml is not a YAML file: line 1: an alias refers to the value"):
        read_config(tmp_path / "round.yaml")
    (tmp_path / "twice.yaml").write_text("a: &x {b: 1}\nc: *x\nd: [*x, *x]\n")
    assert read_config(tmp_path / "twice.yaml")["d"] == [{"b": 1}, {"b": 1}]


def test_each_text_file_is_opened_in_utf8():
    """By default, `read_text()` uses the locale's encoding, which differs between machines."""
    wrong, seen = [], 0
    for folder in ("lit_cfl", "tune", "datamodules"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
                    continue
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                given = [ast.unparse(part) for part in (*node.args, *(word.value for word in node.keywords))]
                if name in ("read_text", "write_text") and isinstance(node.func, ast.Attribute):
                    seen += 1
                    wrong += [] if any("utf-8" in part for part in given) else [f"{file}:{node.lineno}"]
                if name == "open" and any(part in ("'w'", "'r'", "'a'") for part in given):
                    wrong += [] if any("utf-8" in part for part in given) else [f"{file}:{node.lineno}"]
    assert wrong == []
    assert seen > 20


def test_a_text_that_mentions_config_names_no_file():
    words = ["--config", "a.yaml", "--tracking.notes", "as with --config=b.yaml", "--config=c=d.yaml", "--config="]
    assert config_files(words) == ["a.yaml", "c=d.yaml"]
