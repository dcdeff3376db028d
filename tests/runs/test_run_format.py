"""Tests that a run of another format is refused in one line."""

from pathlib import Path

import pytest
import torch
import yaml
from made_runs import made_run
from processes import replace_text

from lit_cfl.cli.main import main
from lit_cfl.compare.arguments import RECORD
from lit_cfl.errors import InputError
from lit_cfl.storage.checkpoint import Checkpoint


def files_below(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != ".lock"}


@pytest.mark.parametrize(("line", "named"), [("", "no format number"), ("format: 2\n", "format 2")])
@pytest.mark.parametrize(
    "command",
    [
        "run --resume RUN --new_plan",
        "evaluate RUN",
        "assign RUN --data.num_clients 4",
        "report COMPARED",
        "compare --resume COMPARED",
    ],
)
def test_a_run_of_another_format_is_refused_in_one_line_and_stays_as_it_is(
    command: str, line: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)  # the page of a report would be written here
    path = tmp_path / "compared"
    run = made_run(path / "CFL" / "seed-0")
    record = {"name": "mine", "algorithms": ["CFL"], "seeds": [0], "target": None}
    (path / RECORD).write_text(yaml.safe_dump(record))
    replace_text(run / "config.yaml", "format: 1\n", line)
    (path / "CFL" / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    before = files_below(tmp_path)
    places = {"RUN": run, "COMPARED": path}
    assert main([str(places.get(word, word)) for word in command.split()]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"config.yaml has {named}" in said
    assert files_below(tmp_path) == before


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path):
    Checkpoint(tmp_path).save({"round": 1}, {"count": 1})
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    unnumbered = {name: value for name, value in content.items() if name != "format"}
    for other, named in ((content | {"format": 2}, "format 2"), (unnumbered, "is not a checkpoint")):
        torch.save(other, tmp_path / "checkpoint.pt")
        with pytest.raises(InputError, match=rf"checkpoint\.pt .*{named}"):
            Checkpoint(tmp_path).load()
