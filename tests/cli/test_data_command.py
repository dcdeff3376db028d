"""Tests `lit-cfl data`: the table that it prints and the files that it writes."""

import warnings
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

from lit_cfl.cli.data_summary import show
from lit_cfl.cli.main import main
from lit_cfl.config.parser import parse_data
from lit_cfl.data.partition_file import load_partition, partition_hash
from lit_cfl.datamodules import Digits
from lit_cfl.errors import Notice


def test_table_pictures_and_partition_file_say_who_has_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = ("--data.num_clients", "9", "--data.newcomers", "0.3", "--seed", "5")
    out = tmp_path / "d"
    assert main(["data", "--config", "quickstart", *options, "--out", str(out)]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "written" not in line)
    assert lines["data"] == "Digits: 1,797 examples of shape (1, 8, 8), 10 labels"
    assert lines["clients"] == "6 in training, 3 newcomers"
    assert lines["examples"] == "1,293 train, 144 validation, 360 test"
    assert lines["true"].split(maxsplit=1)[1] == "4, with 2 to 3 clients each"
    assert lines["skew"] == "of inputs"  # the skew is by rotations
    module = Digits(9, newcomers=0.3, validation=0.1)
    saved = load_partition(out / "partition.npz", module.examples)
    assert lines["fingerprint"] == partition_hash(module.federated(5)) == partition_hash(saved)
    pictures = sorted(path for path in out.iterdir() if path.suffix == ".png")
    assert [path.stem for path in pictures] == ["clusters", "labels", "sizes"]
    for path in pictures:
        with Image.open(path) as picture:
            assert len(set(picture.convert("L").tobytes())) > 10  # the picture is not empty


@pytest.mark.parametrize(
    ("clusters", "words"),
    [
        ([0, 0, 0, 0, 1, 1], "2, with 2 to 4 clients each"),
        ([0, 1, 2, 3, 4, 5], "6, with 1 client each"),
        ([-1] * 6, "unknown, so agreement with them cannot be measured"),
    ],
)
def test_sizes_of_the_true_clusters_are_a_range_only_if_they_differ(clusters: list[int], words: str):
    data = replace(Digits(6).federated(0), true_clusters=torch.tensor(clusters))
    output = StringIO()
    show(Console(file=output, width=200), "Digits", data, ())
    assert f"true clusters      {words}\n" in output.getvalue()
    assert "names of clusters" not in output.getvalue()
    show(Console(file=output, width=200), "Digits", replace(data, cluster_names=("east", "north")), ())
    assert "names of clusters  0 east, 1 north\n" in output.getvalue()


def test_options_of_an_experiment_that_the_data_do_not_use_are_named():
    with pytest.warns(Notice, match=r"does not use --rounds, --algorithm, --local.epochs$"):
        parse_data(
            ["--config", "quickstart", "--rounds", "3", "--algorithm=IFCA", "--seed", "1", "--local.epochs", "2"]
        )


def test_a_command_shows_each_note_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # the command replaces it
    main(["data"])
    shown = [warnings.formatwarning(text, Notice, "file.py", 1) for text in ("a", "b", "a")]
    assert shown == ["Note: a.\n", "Note: b.\n", ""]
