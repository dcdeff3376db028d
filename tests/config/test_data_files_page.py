"""Tests the page on data files: its commands run, and clusters beat FedAvg in each of its three runs."""

import runpy
import shlex
from pathlib import Path

import pytest
from own_pages import unpack

from lit_cfl.cli.main import main
from lit_cfl.config.parser import parse_run
from lit_cfl.storage import read_table


@pytest.mark.nightly
def test_commands_of_the_page_run_and_their_clusters_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LITCFL_CACHE", str(tmp_path / "cache"))
    make, *commands = unpack("data_files")
    assert make == "python make_visits.py"
    runpy.run_path("make_visits.py")
    runs = 0
    for command in commands:
        words = shlex.split(command)[1:]
        if words[0] == "run":
            runs += 1
            words += ["--run_dir", f"run{runs}", "--pictures.formats", "[]"]
        assert main(words) == 0
    assert runs == 3
    for number in range(1, 4):
        ours, fedavg = (
            read_table(tmp_path / path / "metrics.csv")[-1] for path in (f"run{number}", f"run{number}/baseline")
        )
        assert ours["test/weighted_accuracy"] > fedavg["test/weighted_accuracy"] + 0.2
        assert ours["clusters/ari"] == (1 if number == 2 else None)  # only the arrays have true clusters


def test_images_of_the_hub_are_described_by_existing_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    unpack("data_files")
    data = parse_run(["--config", "visits.yaml", "--config", "images.yaml"]).experiment.data
    assert (data.source, data.inputs, data.images.mode) == ("ylecun/mnist", ["image"], "L")
