"""Tests that help texts are cached, and made again when an installed file changes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lit_cfl.cli import help_cache
from lit_cfl.cli.help_cache import is_help, show_help

FOLDER = "cache"


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LITCFL_CACHE", FOLDER)
    Path("ours/cli").mkdir(parents=True)
    Path("ours/cli/own.py").write_text("x = 1\n")
    monkeypatch.setattr(help_cache, "_OURS", Path("ours"))


def answers(
    words: str, capsys: pytest.CaptureFixture[str], made: Callable[[], int] | None = None, times: int = 3
) -> tuple[list[str], int]:
    """Asks for help several times; returns the printed texts, and how often the text was generated."""
    count, printed = 0, []

    def make() -> int:
        nonlocal count
        count += 1
        print(f"text of {words}")
        raise SystemExit(0)

    for _ in range(times):
        assert show_help("run", words.split(), made or make) == 0
        printed.append(capsys.readouterr().out)
    return printed, count


@pytest.mark.parametrize("words", ["--help", "-h", "--algorithm.help FedGroup", "--task.net.help=torch.nn.Linear"])
def test_a_help_text_is_made_once(words: str, capsys: pytest.CaptureFixture[str]):
    assert answers(words, capsys) == ([f"text of {words}\n"] * 3, 1)
    assert answers("--data.help", capsys)[1] == 1  # each question has a separate cache entry
    assert answers(words, capsys)[1] == 0


def test_a_changed_or_added_file_and_another_width_make_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert answers("--help", capsys)[1] == 1
    os.utime("ours/cli/own.py", ns=(0, 0))
    assert answers("--help", capsys)[1] == 1
    Path("ours/cli/new.py").write_text("")
    assert answers("--help", capsys)[1] == 1
    monkeypatch.setattr(help_cache, "version", lambda package: "another")
    assert answers("--help", capsys)[1] == 1
    monkeypatch.setenv("COLUMNS", "33")
    assert answers("--help", capsys)[1] == 1


@pytest.mark.parametrize("words", ["--algorithm.help my_file.Mine", "--config my.yaml --help", "--tiny --help"])
def test_what_may_show_files_of_the_users_is_never_kept(words: str, capsys: pytest.CaptureFixture[str]):
    assert answers(words, capsys)[1] == 3
    assert not Path(FOLDER).exists()


@pytest.mark.parametrize("place", ["off", "/proc/nowhere", "ours/cli/own.py"])
def test_it_works_where_no_folder_can_be_written(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LITCFL_CACHE", place)
    assert answers("--help", capsys) == (["text of --help\n"] * 3, 3)


def test_it_works_for_a_user_without_a_home_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
):
    monkeypatch.delenv("LITCFL_CACHE")
    monkeypatch.setattr(Path, "expanduser", lambda self: (_ for _ in ()).throw(RuntimeError()))
    assert answers("--help", capsys)[1] == 3
    assert not recwarn.list


def test_an_unreadable_text_and_a_failure_are_not_cached(capsys: pytest.CaptureFixture[str]):
    assert show_help("run", ["--help"], lambda: 2) == 2
    assert answers("--help", capsys)[1] == 1
    (kept,) = Path(FOLDER, "help").iterdir()
    kept.write_bytes(b"\xff\xfe")
    assert answers("--help", capsys) == (["text of --help\n"] * 3, 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--help", True),
        ("--data.skew.help X", True),
        ("--x.help=Y", True),
        ("--helpful", False),
        ("--name help", False),
    ],
)
def test_words_that_ask_for_help_are_distinguished_from_others(words: str, expected: bool):
    assert is_help(words.split()) == expected
