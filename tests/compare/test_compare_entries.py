"""Tests which options each algorithm of a comparison has, before anything runs."""

from pathlib import Path

import pytest
import yaml
from small_comparison import SMALL

from lit_cfl import load_experiment
from lit_cfl.compare.arguments import ComparedAlgorithm, read_arguments, read_entries, with_options
from lit_cfl.compare.comparison import Comparison, plan_comparison, training_differences
from lit_cfl.config.parser import parse_run

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def planned(*words: str) -> Comparison:
    return plan_comparison(read_arguments([*SMALL[1:], *words]))[0]


def test_an_entry_is_a_class_a_configuration_or_a_file():
    Path("mine.yaml").write_text("class_path: IFCA\ninit_args: {num_clusters: 7}\n")
    Path("x=1.yaml").write_text("name: whole\nalgorithm: FedProx\n")
    own = {"class_path": "FedGroup", "init_args": {"num_clusters": 4}}
    found = read_entries(["FedAvg", "FedGroup", "ifca/digits", "seven=mine.yaml", "x=1.yaml", "me=a.B"], own)
    assert [(entry.name, entry.section["class_path"]) for entry in found] == [
        ("FedAvg", "FedAvg"),
        ("FedGroup", "FedGroup"),
        ("IFCA", "IFCA"),
        ("seven", "IFCA"),
        ("FedProx", "FedProx"),
        ("me", "a.B"),
    ]
    clusters = [entry.section.get("init_args", {}).get("num_clusters") for entry in found]
    assert clusters == [None, 4, 8, 7, None, None]


def test_an_entry_from_a_file_has_its_server_and_personal_layers():
    server = "{class_path: torch.optim.SGD, init_args: {lr: 1.0, momentum: 0.9}}"
    Path("mine.yaml").write_text(f"algorithm: FedAvg\npersonal: [bn*]\nshared: null\nserver: {server}\nrounds: 9\n")
    words = ["--task.net=MLP", "--algorithms", "FedAvg", "FedBN=mine.yaml", "--FedBN.personal", "['*fc1*']"]
    plain, own = (one.to_dict() for one in planned(*words).experiments.values())
    assert (plain["server"], plain["personal"]) == (None, None)
    assert own["server"]["init_args"]["momentum"] == 0.9
    assert own["personal"] == ["*fc1*"]
    assert plain["rounds"] == own["rounds"] == 3


def test_an_algorithm_may_have_an_optimizer_and_local_work_of_its_own():
    words = ["--algorithms", "FedAvg", "IFCA", "slow=FedAvg", "--local.epochs", "3", "--IFCA.local.epochs=2"]
    words += ["--IFCA.task.optimizer.lr", "0.03", "--slow.task.optimizer", "torch.optim.Adagrad"]
    found = planned(*words).experiments
    assert {name: one.local.epochs for name, one in found.items()} == {"FedAvg": 3, "IFCA": 2, "slow": 3}
    assert {name: one.plan.engine for name, one in found.items() if one.plan} == {
        "FedAvg": "chain",
        "IFCA": "chain",
        "slow": "trainer",
    }
    first, changed, other = found.values()
    assert training_differences(first, changed) == ["task.optimizer.lr 0.03 (0.1)", "local.epochs 2 (3)"]
    assert training_differences(first, other) == ["task.optimizer torch.optim.Adagrad (torch.optim.SGD)"]


def test_the_seeds_of_a_comparison_replace_the_one_of_the_file():
    content = load_experiment("quickstart").to_dict()
    del content["seeds"]
    Path("mine.yaml").write_text(yaml.safe_dump(content | {"seed": 3}))
    words = ["--config", "mine.yaml", "--algorithms", "FedAvg"]
    assert plan_comparison(read_arguments(words))[0].seeds == [3]
    assert plan_comparison(read_arguments([*words, "--seeds", "0", "1"]))[0].seeds == [0, 1]


def test_a_tiny_comparison_has_as_many_clients_as_each_algorithm_has_clusters():
    found = planned("--algorithms", "FedAvg", "IFCA", "--IFCA.num_clusters", "7", "--tiny").experiments
    assert {name: one.data.federated(0).num_clients for name, one in found.items()} == {"FedAvg": 4, "IFCA": 7}


def test_options_go_to_the_algorithm_that_they_name():
    entries = [ComparedAlgorithm(name, {"class_path": name[:4]}) for name in ("IFCA", "IFCA.B", "Ditto")]
    words = ["--rounds", "3", "--IFCA.x", "-1", "--IFCA.init_args.num_clusters=2", "--IFCA.B.z", "[1, 2]", "--tiny"]
    words += ["--IFCA.server=SGD", "--IFCA.server.lr", "1", "--IFCA.localised", "1", "--Ditto.personal.length", "2"]
    words += ["--IFCA.task.optimizer", "torch.optim.Adam", "--IFCA.local", "{epochs: 2}", "--dropout=0.5"]
    entries[2] = ComparedAlgorithm("Ditto", {"class_path": "Ditto"})
    (first, second, third), rest = with_options(entries, words)
    assert first.words == (
        *("--algorithm.x", "-1", "--algorithm.num_clusters=2", "--server=SGD", "--server.lr", "1"),
        *("--algorithm.localised", "1", "--task.optimizer", "torch.optim.Adam", "--local", "{epochs: 2}"),
    )
    assert second.words == ("--algorithm.z", "[1, 2]")
    assert third.words == ("--algorithm.personal.length", "2")  # an option of Ditto itself
    assert rest == ["--rounds", "3", "--tiny", "--dropout=0.5"]


def test_later_files_replace_options_of_earlier_ones_as_in_a_run():
    Path("later.yaml").write_text("data: {class_path: Synthetic}\nalgorithm: IFCA\nlocal: {epochs: 1}\n")
    files = ["--config", "quickstart", "--config", "later.yaml", "--data.num_clients=12", "--cohort_size=4"]
    comparison, notices = plan_comparison(read_arguments([*files, "--algorithms", "FedAvg", "FedGroup"]))
    compared, alone = comparison.first.to_dict(), parse_run(files).experiment.to_dict()
    for option in ("data", "task", "local"):
        assert compared[option] == alone[option]
    assert compared["data"]["class_path"].endswith("Synthetic")
    # another class keeps the options of the earlier class that it has, too
    assert (compared["data"]["init_args"]["test"], compared["data"]["init_args"]["validation"]) == (0.2, 0.1)
    assert (compared["local"]["epochs"], compared["local"]["batch_size"]) == (1, 10)
    assert notices == ["FedGroup runs with num_clusters 4, like the file's algorithm"]


def test_algorithms_may_be_given_one_by_one():
    words = ["--config", "quickstart", "--algorithms", "FedAvg", "--algorithms", "IFCA", "--seeds", "3", "--seeds", "4"]
    given = read_arguments(words)
    assert (given.algorithms, given.seeds) == (["FedAvg", "IFCA"], [4])
