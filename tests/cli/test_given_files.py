"""Tests paths and names given to commands: `~`, a missing home folder, UTF-8."""

import ast
import pwd
from pathlib import Path
from typing import Any

import pytest

from lit_cfl.cli.doctor import _cache
from lit_cfl.cli.main import _with_home, main
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError, Notice
from lit_cfl.storage.cache_folder import cache_folder
from lit_cfl.storage.given_paths import expand_home, require_folder_name, resolve_directory

ROOT = Path(__file__).parents[2]
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
    logger = "[{class_path: CSVLogger, init_args: {save_dir: ~/logs, name: a~b}}]"
    experiment = parse_run(["--config", "quickstart", "--tracking.loggers", logger]).experiment
    (logger,) = experiment.to_dict()["tracking"]["loggers"]
    assert logger["init_args"]["save_dir"] == "/home/me/logs"
    assert logger["init_args"]["name"] == "a~b"


@pytest.mark.parametrize("path", [" ", "a\0b", "x" * 256])
def test_a_directory_that_cannot_be_is_refused(path: str):
    with pytest.raises(InputError, match="--run_dir"):
        resolve_directory(path, "--run_dir")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\nb", "a\0b", "\ud800", "ö" * 91])
def test_a_name_that_no_folder_can_have_is_refused(name: str):
    with pytest.raises(InputError, match=r"^name is "):
        require_folder_name(name, "name")


def test_a_name_that_a_folder_can_have_is_taken(tmp_path: Path):
    for name in ("ö" * 90, "a b", "x*?[1]"):
        require_folder_name(name, "name")
        (tmp_path / f"{name}-20260101-120000").mkdir()


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
