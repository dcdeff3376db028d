"""Tests paths and names given to commands: `~`, a missing home folder, UTF-8."""

import pwd
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lit_cfl.cli.doctor import _cache
from lit_cfl.cli.main import _with_home, main
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError, Notice
from lit_cfl.storage.cache_folder import cache_folder
from lit_cfl.storage.given_paths import require_folder_name

ROOT = Path(__file__).parents[2]


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
    files = [file for folder in ("lit_cfl", "tune", "datamodules") for file in (ROOT / folder).rglob("*.py")]
    opened = re.compile(r"\.(?:read_text|write_text)\([^\n]*|\bopen\([^\n]*['\"][wra]['\"][^\n]*")
    calls = [call for file in files for call in opened.findall(file.read_text("utf-8"))]
    assert len(calls) > 20
    assert [call for call in calls if "utf-8" not in call] == []
