"""Options of files and of a command line are merged, one after the other, as a user who reads them would."""

from typing import Any

import pytest

from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError


def read(*words: str) -> dict[str, Any]:
    return parse_run(words).experiment.to_dict()


def test_a_group_written_as_yaml_changes_the_options_it_names():
    assert read("--config", "quickstart")["local"]["epochs"] == 3  # not the default
    found = read(
        "--config", "quickstart", "--stop.patience", "3", "--local", "{batch_size: 5}", "--stop", "{target: .5}"
    )
    assert (found["local"]["epochs"], found["local"]["batch_size"]) == (3, 5)
    assert (found["stop"]["patience"], found["stop"]["target"]) == (3, 0.5)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--algorithm", "{num_clusters: 3}"], ("FedGroup", 3)),
        (["--algorithm.class_path", "IFCA", "--algorithm.num_clusters", "2"], ("IFCA", 2)),
        (["--algorithm.num_clusters", "2", "--algorithm", "IFCA"], ("IFCA", 2)),
        (["--algorithm", "IFCA", "--algorithm", "FedGroup", "--algorithm.num_clusters", "5"], ("FedGroup", 5)),
    ],
)
def test_a_class_may_come_before_or_after_its_options(words: list[str], expected: tuple[str, int]):
    found = read("--config", "quickstart", *words)["algorithm"]
    assert (found["class_path"].rpartition(".")[2], found["init_args"]["num_clusters"]) == expected


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
