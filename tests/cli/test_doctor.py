"""Tests `lit-cfl doctor` and `--version`."""

import platform
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from compiled_steps import steps_of

import lit_cfl
from lit_cfl.cli import doctor
from lit_cfl.cli.main import main

NAMES = "lit-cfl python cores torch device chains lightning ray wandb data cache disk"
PARTS = NAMES.split()


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
    assert list(found) == PARTS
    assert found["python"].startswith(platform.python_version())
    assert found["torch"].startswith(torch.__version__)
    assert found["ray"] == f"{version('ray')}, RAY_ADDRESS 10.0.0.1:6379"
    assert found["wandb"] == f"{version('wandb')}, WANDB_MODE disabled"
    assert found["cache"].startswith(f"{tmp_path / 'new' / 'cache'}, writable, ")
    assert found["disk"].endswith(str(Path().resolve()))
    assert "fails" not in "".join(found.values())


def test_parts_that_fail_or_are_missing_say_so_and_the_others_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken() -> str:
        raise OSError("no such driver")

    monkeypatch.setattr(doctor, "_device", broken)
    monkeypatch.setenv("LITCFL_CACHE", "/proc/version/cache")
    with steps_of(tmp_path):
        found = printed(capsys)
    assert list(found) == PARTS
    assert found["device"] == "fails: OSError: no such driver"
    assert "NOT writable" in found["cache"]
    assert found["chains"].startswith("NOT compiled")
    assert "install g++" in found["chains"]
