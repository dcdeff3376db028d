"""Tests that a run of another format is refused in one line, and that its configuration may start a new run."""

from pathlib import Path

import pytest
import torch
import yaml
from made_runs import made_run

from lit_cfl.cli.main import main
from lit_cfl.compare.arguments import RECORD
from lit_cfl.errors import InputError
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.config_file import as_yaml, stored_config


def set_format(path: Path, number: object) -> None:
    """Writes a number into a run's configuration; None leaves the number out."""
    read = yaml.safe_load((path / "config.yaml").read_text())
    kept = {name: value for name, value in read.items() if name != "format"}
    (path / "config.yaml").write_text(as_yaml(({} if number is None else {"format": number}) | kept))


def compared(path: Path) -> Path:
    """Writes a comparison with one algorithm and one run."""
    made_run(path / "CFL" / "seed-0")
    record = {"name": "mine", "algorithms": ["CFL"], "seeds": [0], "target": None}
    (path / RECORD).write_text(yaml.safe_dump(record))
    (path / "CFL" / "config.yaml").write_bytes((path / "CFL" / "seed-0" / "config.yaml").read_bytes())
    return path


def files_below(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != ".lock"}


@pytest.mark.parametrize("number", [None, 2])
@pytest.mark.parametrize(
    "command",
    [
        "run --resume RUN --rounds 9 --new_plan",
        "run --resume RUN --config quickstart",
        "evaluate RUN",
        "assign RUN --data.num_clients 4",
        "report RUN",
        "report COMPARED",
        "compare --resume COMPARED",
    ],
)
def test_a_run_of_another_format_is_refused_in_one_line_and_stays_as_it_is(
    command: str, number: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)  # the page of a report would be written here
    path = compared(tmp_path / "compared")
    for folder in (path / "CFL", run := path / "CFL" / "seed-0"):
        set_format(folder, number)
    before = files_below(tmp_path)
    places = {"RUN": run, "COMPARED": path}
    assert main([str(places.get(word, word)) for word in command.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"config.yaml has {'no format number' if number is None else 'format 2'}" in line
    assert files_below(tmp_path) == before


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path):
    Checkpoint(tmp_path).save({"round": 1}, {"count": 1})
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    unnumbered = {name: value for name, value in content.items() if name != "format"}
    for other, named in ((content | {"format": 2}, "format 2"), (unnumbered, "is not a checkpoint")):
        torch.save(other, tmp_path / "checkpoint.pt")
        with pytest.raises(InputError, match=rf"checkpoint\.pt .*{named}"):
            Checkpoint(tmp_path).load()


@pytest.mark.parametrize("number", [1, None])
def test_a_configuration_with_or_without_a_format_starts_a_new_run(number: object, tmp_path: Path):
    words = ["--rounds", "1", "--data.num_clients", "12", "--baseline", "null", "--quiet"]
    assert main(["run", "--config", "quickstart", *words, "--run_dir", str(tmp_path / "run")]) == 0
    set_format(tmp_path / "run", number)
    config = str(tmp_path / "run" / "config.yaml")
    assert main(["run", "--config", config, "--run_dir", str(tmp_path / "again"), "--quiet"]) == 0
    assert (stored_config(tmp_path / "again") or {})["rounds"] == 1
