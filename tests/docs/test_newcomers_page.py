"""Tests the example of docs/newcomers.md, in which unlabelled newcomers are machines of two makes."""

import shlex
from pathlib import Path

import pytest
from own_pages import unpack

from lit_cfl.cli.main import main


def test_machines_without_labels_join_the_cluster_of_their_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    commands = [shlex.split(line)[1:] for line in unpack("newcomers") if "machines" in line]
    assert [words[0] for words in commands] == ["run", "assign"]
    for words in commands:
        assert main(words) == 0
    table = capsys.readouterr().out
    assert "ARI with their true clusters: 1.00" in table
    assert "weighted" not in table.partition("newcomer  cluster")[2]  # nothing is scored
