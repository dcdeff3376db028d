"""Tests the forms of options that the command line and files accept, and how files and words are merged."""

import os
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from lit_cfl.config import catalogue
from lit_cfl.config.files import code_folders, read_config
from lit_cfl.config.parser import parse_data, parse_run
from lit_cfl.config.variants import build
from lit_cfl.datamodules.shift import LabelDrift, SwapAll
from lit_cfl.datamodules.skew import LabelShifts, Rotations
from lit_cfl.errors import InputError
from lit_cfl.storage.config_file import as_yaml

pytestmark = pytest.mark.usefixtures("in_empty_folder")

QUICK = ["--config", "quickstart"]
SEVERAL = [
    ("skew", "Rotations", (Rotations([0, 90, 180, 270]),)),
    ("skew", "LabelShifts --data.skew.shifts [0,1]", (LabelShifts([0, 1]),)),
    ("skew", "[Rotations,LabelShifts]", (Rotations([0, 90, 180, 270]), LabelShifts([0, 3, 6, 9]))),
    ("shift", "SwapAll --data.shift.probability 0.3", (SwapAll(0.3),)),
    ("shift", "[SwapAll,LabelDrift]", (SwapAll(), LabelDrift())),
    ("shift", "[]", ()),
]


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


def read(*words: str) -> dict[str, Any]:
    return parse_run(words).experiment.to_dict()


def test_a_group_written_as_yaml_changes_the_options_it_names():
    assert read("--config", "quickstart")["local"]["epochs"] == 3  # not the default
    found = read(*QUICK, "--stop.patience", "3", "--local", "{batch_size: 5}", "--stop", "{target: .5}")
    assert (found["local"]["epochs"], found["local"]["batch_size"]) == (3, 5)
    assert (found["stop"]["patience"], found["stop"]["target"]) == (3, 0.5)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--algorithm", "{num_clusters: 3}"], ("FedGroup", 3)),
        (["--algorithm.init_args.num_clusters=3"], ("FedGroup", 3)),
        (["--algorithm=IFCA"], ("IFCA", 4)),  # another class keeps what it can have, too
        (["--algorithm.class_path", "IFCA", "--algorithm.num_clusters", "2"], ("IFCA", 2)),
        (["--algorithm.num_clusters", "2", "--algorithm", "IFCA"], ("IFCA", 2)),
        (["--algorithm", "IFCA", "--algorithm", "FedGroup", "--algorithm.num_clusters", "5"], ("FedGroup", 5)),
    ],
)
def test_a_class_may_come_before_or_after_its_options(words: list[str], expected: tuple[str, int]):
    found = read("--config", "quickstart", *words)["algorithm"]
    assert (found["class_path"].rpartition(".")[2], found["init_args"]["num_clusters"]) == expected


MODULE = """
from torch import nn

class Layers(nn.Module):
    def __init__(self, width: int, sizes=None, ratio: float = 0.5):
        super().__init__()

class Deep(Layers):
    def __init__(self, depth: int = 1, **more):
        super().__init__(3, **more)
"""


def test_options_of_a_users_classes_in_files_and_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path.cwd())
    Path("own_layers.py").write_text(MODULE)
    Path("own.yaml").write_text("task: {class_path: Classification, init_args: {net: own_layers.Layers}}\n")
    found = read("--config", "quickstart", "--config", "own.yaml", "--task.net.width=7", "--task.net.sizes=[1, 2]")
    assert found["task"]["init_args"]["net"]["init_args"] == {"width": 7, "sizes": [1, 2], "ratio": 0.5}
    words = ["--task.net.ratio=0.25", "--task.net=own_layers.Deep"]  # a class need not be given what it gives its base
    net = read("--config", "quickstart", "--config", "own.yaml", *words)["task"]["init_args"]["net"]
    assert (net["class_path"], net["init_args"]) == ("own_layers.Deep", {"depth": 1, "sizes": None, "ratio": 0.25})


def test_an_option_below_a_list_of_classes_is_that_of_the_last_class():
    two = "[{class_path: SwapAll, init_args: {}}, {class_path: LabelDrift, init_args: {share: 0.5}}]"
    for words in (["--data.shift.start", "3"], ["--data.shift", two, "--data.shift.start", "3"]):
        found = read("--config", "feddrift/digits", *words)["data"]["init_args"]["shift"]
        assert (found[-1]["class_path"].rpartition(".")[2], found[-1]["init_args"]["start"]) == ("LabelDrift", 3)
    assert (len(found), found[-1]["init_args"]["share"]) == (2, 0.5)


def test_another_algorithm_leaves_a_list_of_classes_as_it_is():
    found = read("--config", "flexcfl/digits", "--algorithm", "FedAvg")
    assert found["data"]["init_args"]["shift"] == read("--config", "flexcfl/digits")["data"]["init_args"]["shift"] != []
    with pytest.raises(InputError, match=r"task\.optimizer\.lr is 'abc'"):
        read("--config", "flexcfl/digits", "--task.optimizer.lr", "abc")


@pytest.mark.parametrize("word", ["-rounds=3", "-q", "--tiny=false", "--dry-run=no", "--config="])
def test_words_without_effect_are_refused(word: str):
    with pytest.raises(InputError, match=r"-rounds=3|-q|false|no|empty"):
        read("--config", "quickstart", word)


def test_null_stands_for_an_option_of_the_command_that_is_not_given():
    request = parse_run(["--config", "quickstart", "--run_dir", "null", "--seed", "null"])
    assert (request.options.run_dir, request.experiment.seeds) == (None, read("--config", "quickstart")["seeds"])
