"""Tests the forms of options that the command line and files accept."""

import os
from pathlib import Path
from threading import Thread

import pytest
import yaml

from lit_cfl.config import catalogue
from lit_cfl.config.files import code_folders, read_config
from lit_cfl.config.parser import parse_data, parse_run
from lit_cfl.config.variants import build
from lit_cfl.datamodules.shift import LabelDrift, SwapAll
from lit_cfl.datamodules.skew import LabelShifts, Rotations
from lit_cfl.storage.config_file import as_yaml

QUICK = ["--config", "quickstart"]
SEVERAL = [
    ("skew", "Rotations", (Rotations([0, 90, 180, 270]),)),
    ("skew", "LabelShifts --data.skew.shifts [0,1]", (LabelShifts([0, 1]),)),
    ("skew", "[Rotations,LabelShifts]", (Rotations([0, 90, 180, 270]), LabelShifts([0, 3, 6, 9]))),
    ("shift", "SwapAll --data.shift.probability 0.3", (SwapAll(0.3),)),
    ("shift", "[SwapAll,LabelDrift]", (SwapAll(), LabelDrift())),
    ("shift", "[]", ()),
]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("option", "words", "expected"), SEVERAL)
def test_a_skew_or_shift_may_be_one_or_a_list(option: str, words: str, expected: tuple[object, ...]):
    module = parse_data(["--data", "MNIST", f"--data.{option}", *words.split()]).module
    assert getattr(module, option) == expected


@pytest.mark.parametrize("name", ["1e-3", "1.5e3", "7", "null", "a-1e-3"])
def test_a_text_that_looks_like_a_number_stays_a_text(name: str):
    experiment = parse_run([*QUICK, "--name", name]).experiment
    assert build(experiment.to_dict()).name == name
    content = {"a": name, "b": [1e-5, 2.0, 3, 1e22, None]}
    assert yaml.safe_load(as_yaml(content)) == content


@pytest.mark.parametrize("word", ["10", "0", "0x1F", "1_000", "1e-3", "'010'", "2024-01-01", "12:30 h", "-0.07"])
def test_numbers_that_mean_what_they_say_are_read(word: str):
    Path("plain.yaml").write_text(f"a: &x {{b: {word}}}\nc: *x\n")
    content = read_config("plain.yaml")
    assert content["a"] == content["c"] == yaml.safe_load(f"b: {word}")


def test_a_configuration_may_come_from_a_pipe(tmp_path: Path):
    os.mkfifo("fifo")
    content = yaml.safe_load(catalogue.configs()["quickstart"].read_text("utf-8")) | {"name": "pröbe"}
    thread = Thread(target=Path("fifo").write_text, args=(yaml.safe_dump(content), "utf-8"))
    thread.start()
    words = ["--config", "fifo", "--rounds", "3"]
    experiment = parse_run(words).experiment
    thread.join()
    assert (experiment.name, experiment.rounds) == ("pröbe", 3)
    assert parse_run(words).experiment.name == "pröbe"  # a second call has the same content
    assert code_folders(words) == [str(tmp_path)]  # the folder of the pipe does not count
