"""Files that were changed, cut off or are not ours, and directories that are in use: named, and nothing is lost."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from processes import contents, in_child, resume, same_but_saves, start, wait, wait_for

from lit_cfl.cli import main

pytestmark = pytest.mark.usefixtures("output")


def test_second_process_on_a_run_is_refused(tmp_path: Path, capsys):
    path = tmp_path / "run"
    path.mkdir()
    with (path / ".lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(start(path)) == 2
    assert f"{path} is in use by process 4711" in capsys.readouterr().err


def test_second_real_process_is_refused_and_the_first_goes_on(tmp_path: Path, capsys):
    path = tmp_path / "run"
    child = in_child(start(path))
    wait_for(path / "metrics.csv", "\n1,")
    assert main(resume(path)) == 2
    assert f"{path} is in use by process {child}" in capsys.readouterr().err
    assert wait(child) == 0


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda p: (p / "checkpoint.pt").write_bytes((p / "checkpoint.pt").read_bytes()[:900]), "truncated"),
        (lambda p: (p / "checkpoint.pt").write_bytes(b""), "truncated"),
        (lambda p: torch.save({"weights": torch.ones(3)}, p / "checkpoint.pt"), "is no checkpoint of Lit-CFL"),
        (
            lambda p: edit_checkpoint(p, format=99, version="7.0"),
            "of a run of a later version, whose files this version does not read (its format is 3)",
        ),
        (lambda p: edit_config_in_checkpoint(p), "local.epochs: 9 -> 3"),
        (lambda p: replace_text(p / "metrics.csv", "\n1,0.", "\n1,1."), "metrics.csv was changed since its checkpoint"),
        (lambda p: (p / "metrics.csv").unlink(), "metrics.csv was changed since its checkpoint"),
        (lambda p: replace_text(p / "config.yaml", "epochs: 3", "epochs: 4"), "local.epochs: 3 -> 4"),
        (lambda p: (p / "config.yaml").write_text("a: [1"), "config.yaml"),
        (lambda p: replace_text(p / "config.yaml", "device: cpu", "device: cuda:31"), "which this machine cannot run"),
    ],
    ids=["truncated", "empty", "foreign", "format", "other run's", "metrics", "no metrics", "config", "yaml", "plan"],
)
def test_damage_is_named_and_nothing_is_lost(damage, expected: str, whole: Path, tmp_path: Path, capsys):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "summary.json").unlink()  # as if it had been killed just before the end
    damage(path)
    before = {p.name: p.read_bytes() for p in path.iterdir() if p.is_file() and p.name != ".lock"}
    assert main(resume(path)) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1
    assert {p.name: p.read_bytes() for p in path.iterdir() if p.is_file() and p.name != ".lock"} == before


def edit_checkpoint(path: Path, **changes: object) -> None:
    torch.save(torch.load(path / "checkpoint.pt", weights_only=True) | changes, path / "checkpoint.pt")


def edit_config_in_checkpoint(path: Path) -> None:
    config = json.loads(torch.load(path / "checkpoint.pt", weights_only=True)["config"])
    config["local"]["epochs"] = 9
    edit_checkpoint(path, config=json.dumps(config))


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_plan_for_another_machine_is_taken_only_if_asked_for(whole: Path, tmp_path: Path, capsys):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "summary.json").unlink()
    replace_text(path / "config.yaml", "device: cpu", "device: cuda:31")
    assert main(resume(path)) == 2
    assert "device cuda:31" in capsys.readouterr().err
    assert main(resume(path, "--new_plan")) == 0
    assert yaml.safe_load((path / "config.yaml").read_text())["plan"]["device"] == "cpu"
    assert same_but_saves(contents(path), contents(whole))


def test_half_written_directory_starts_again(whole: Path, tmp_path: Path):
    path = tmp_path / "run"
    path.mkdir()
    shutil.copy(whole / "config.yaml", path)  # killed right after the first file
    assert main(resume(path)) == 0
    assert same_but_saves(contents(path), contents(whole))
