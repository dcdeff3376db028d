"""Tests that the key of every recorded run is found again, also after options have been added, removed or renamed."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from experiments import recorded_configs, result_key
from experiments.cells import Setting
from experiments.changed_options import reword
from experiments.command import ANSWER, TABLES
from experiments.ledger import Ledger
from experiments.recorded_configs import find_changed_keys, read_configs, rebuild_configs, record_configs
from experiments.result_key import compute_key

ROOT = Path(__file__).parents[2]
FEDPROX = Setting("", "", "", "", "which_method/mixture", ("--algorithm", "FedProx", "--algorithm.mu", "0.1"), (3,))


@pytest.mark.parametrize("folder", [TABLES, ANSWER])
def test_every_recorded_key_is_that_of_the_recorded_and_of_todays_configuration(folder: str):
    """`changed_options` says what to do about keys that have changed."""
    assert len(read_configs(ROOT / folder)) > 1_000
    assert find_changed_keys(ROOT / folder) == []


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Records two runs of FedProx, whose configurations differ in one value and the seed."""
    other = Setting("", "", "", "", FEDPROX.config, (*FEDPROX.words[:3], "1.0"), (4,))
    ledger = Ledger.read(tmp_path)
    for setting in (FEDPROX, other):
        (seed,) = setting.seeds
        key = compute_key(setting.configs([seed])[seed])
        ledger = ledger.with_run({"run": key, "seed": seed, "algorithm": "FedProx", "command": setting.command(seed)})
    assert record_configs(tmp_path) == 2
    assert record_configs(tmp_path) == 0
    return tmp_path


def test_todays_configurations_have_the_values_of_their_commands(recorded: Path):
    found = [config["algorithm"]["init_args"]["mu"] for _, config in rebuild_configs(recorded)]
    assert sorted(found) == [0.1, 1.0]
    assert find_changed_keys(recorded) == []


def without(config: Mapping[str, Any], section: str, option: str) -> dict[str, Any]:
    """Returns a configuration as classes complete it that no longer have this option."""
    left = deepcopy(dict(config))
    part = left[section]
    del part.get("init_args", part)[option]
    return left


@pytest.mark.parametrize(
    ("section", "owner", "option"),
    [("algorithm", "FedProx", "straggler_work"), ("data", "SyntheticMixture", "allow_unseen_labels"),
     ("local", "local", "on_divergence")],
)  # fmt: skip
def test_key_of_a_run_from_before_an_option_was_removed_is_found(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, section: str, owner: str, option: str
):
    build = Setting.configs
    configs = {seed: without(config, section, option) for seed, config in build(FEDPROX, [3]).items()}
    assert option not in str(configs)
    monkeypatch.setattr(Setting, "configs", lambda setting, seeds: {
        seed: without(config, section, option) for seed, config in build(setting, seeds).items()
    })  # fmt: skip
    assert len(find_changed_keys(recorded)) == 2
    init_args = build(FEDPROX, [3])[3][section]
    default = init_args.get("init_args", init_args)[option]
    monkeypatch.setattr(result_key, "REMOVED", {owner: {option: default}})
    assert find_changed_keys(recorded) == []
    monkeypatch.setattr(result_key, "REMOVED", {owner: {option: "another"}})
    assert len(find_changed_keys(recorded)) == 2


def test_key_of_a_run_from_before_an_option_of_the_experiment_was_removed_is_found(monkeypatch: pytest.MonkeyPatch):
    config = FEDPROX.configs([3])[3]
    left = {name: part for name, part in config.items() if name != "dropout"}
    assert compute_key(left) != compute_key(config)
    monkeypatch.setattr(result_key, "REMOVED", {"Experiment": {"dropout": 0.0}})
    assert compute_key(left) == compute_key(config)


def test_class_that_behaves_as_a_removed_option_has_the_recorded_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result_key, "RECORDED_AS", {("class_path", "Published"): "IFCA"})
    monkeypatch.setattr(result_key, "REMOVED", {"IFCA": {"order": "paper"}, "Published": {"order": "code"}})
    recorded_key = compute_key({"algorithm": {"class_path": "IFCA", "init_args": {"k": 2, "order": "code"}}})
    assert compute_key({"algorithm": {"class_path": "experiments.x.Published", "init_args": {"k": 2}}}) == recorded_key
    assert compute_key({"algorithm": {"class_path": "IFCA", "init_args": {"k": 2}}}) != recorded_key


def test_words_of_a_recorded_command_are_those_of_today(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("experiments.changed_options.REWORDED", {"--algorithm.mu 0.1": "", "--lr 1": "--rate 1"})
    words = ["--algorithm.mu", "0.1", "--algorithm.mu", "0.15", "--lr", "1", "--data.shift", "[{a: b}]"]
    assert reword(words, "FedProx") == ["--algorithm.mu", "0.15", "--rate", "1", "--data.shift", "[{a: b}]"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--algorithm.weights equal", "--algorithm.weights equal"),
        ("--rounds 2 --algorithm.centers random", "--algorithm {}FlexCFL --rounds 2 --algorithm.centers random"),
        ("--algorithm FeSEM --algorithm.start_partition same", "--algorithm {}FeSEM --algorithm.start_partition same"),
        ("--algorithm FedAvg --algorithm IFCA --algorithm.weights drawn_first",
         "--algorithm FedAvg --algorithm {}IFCA --algorithm.weights drawn_first"),
    ],
)  # fmt: skip
def test_published_options_are_given_to_the_published_variant(words: str, expected: str):
    assert reword(words.split(), "FlexCFL") == expected.format("experiments.published.Published").split()


def test_folder_of_a_users_file_does_not_count():
    def of(source: str) -> str:
        return compute_key({"data": {"class_path": "ArrayData", "init_args": {"source": source}}})

    assert of("/home/me/a.npz") == of("/data/a.npz") == of("a.npz") != of("b.npz")


def test_recorded_file_is_the_same_whenever_it_is_written(recorded: Path):
    file = recorded / recorded_configs.FILE
    before = file.read_bytes()
    file.unlink()
    assert record_configs(recorded) == 2
    assert file.read_bytes() == before
