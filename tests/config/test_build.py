"""Tests that an experiment is built from its configuration alone, also after options were changed."""

import pytest

from lit_cfl.algorithms import FedAvg
from lit_cfl.config.build import OPTIONS, ConfiguredExperiment, build_experiment
from lit_cfl.config.parser import parse_run
from lit_cfl.config.variants import build
from lit_cfl.datamodules import Digits
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.experiment import Experiment

WORDS = ["--config", "quickstart", "--data.num_clients", "6", "--cohort_size", "3"]


@pytest.fixture(scope="module")
def configured() -> ConfiguredExperiment:
    return parse_run(WORDS).experiment


def objects(experiment: Experiment) -> dict[str, object]:
    return {name: getattr(experiment, name) for name in OPTIONS}


def test_the_same_configuration_gives_the_same_experiment(configured: ConfiguredExperiment):
    again = build_experiment(configured.to_dict())
    assert again.to_dict() == configured.to_dict() == build(configured.to_dict()).to_dict()
    alike = [name for name in OPTIONS if name not in ("data", "task")]  # data and task have no equality
    assert [repr(getattr(again, name)) for name in alike] == [repr(getattr(configured, name)) for name in alike]
    assert {name for name in configured.to_dict() if name in OPTIONS} == set(OPTIONS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rounds": 7, "name": "1e-3"}, {"rounds": 7, "name": "1e-3"}),
        ({"plan": {"threads": 2}}, {"plan": PlanOptions(threads=2)}),
        ({"algorithm": "FedAvg"}, {"algorithm": FedAvg()}),
        ({"baseline": None}, {"baseline": None}),
        ({}, {}),
    ],
)
def test_a_change_is_in_the_configuration_and_in_the_object(configured: ConfiguredExperiment, changes, expected):
    changed = configured.with_options(**changes)
    before, after = objects(configured), objects(changed)
    assert {name: after[name] for name in after if after[name] != before[name]} == expected
    whole = build_experiment(changed.to_dict())
    assert whole.to_dict() == changed.to_dict()
    assert {name: getattr(whole, name) for name in expected} == expected
    assert changed.data is configured.data  # shares the loaded examples
    assert changed.task is configured.task


def test_of_a_group_only_what_is_given_changes(configured: ConfiguredExperiment):
    once = configured.with_options(tracking={"notes": "a"}, plan={"lanes": 3})
    twice = once.with_options(tracking={"group": "g"}, plan={"threads": 2})
    assert (twice.tracking.notes, twice.tracking.group) == ("a", "g")
    assert twice.plan == PlanOptions(lanes=3, threads=2)
    assert twice.to_dict()["plan"] == vars(twice.plan)


def test_other_data_go_with_a_task_that_asks_them_for_their_shape(configured: ConfiguredExperiment):
    changed = configured.with_options(data={"class_path": "Digits", "init_args": {"num_clients": 4}})
    assert changed.data.federated(0).num_clients == 4
    assert changed.task is not configured.task


def test_seeds_and_baseline_of_a_configured_experiment_and_of_one_made_in_python_are_named_alike(configured):
    made = Experiment(Digits(6), configured.task, configured.algorithm, name="quickstart", baseline=configured.baseline)
    for experiment in (configured, made):
        several = experiment.with_options(seeds=[3, 4], plan={"threads": 1})
        assert [several.for_seed(seed).name for seed in (3, 4)] == ["quickstart-seed-3", "quickstart-seed-4"]
        assert several.for_seed(4).seeds == [4]
        baseline = several.for_baseline()
        assert (type(baseline.algorithm).__name__, baseline.baseline) == ("FedAvg", None)
        assert baseline.to_dict()["name"] == baseline.name == "quickstart-baseline"
        assert baseline.to_dict()["algorithm"]["class_path"].endswith("FedAvg")


def test_a_tiny_experiment_stays_as_tiny_whatever_changes():
    tiny = parse_run([*WORDS, "--tiny"]).experiment
    assert (tiny.rounds, tiny.local.epochs, tiny.local.batch_size) == (1, 1, 10)  # two steps over 20 examples
    for changed in (tiny.for_seed(0), tiny.for_baseline(), tiny.with_options(tracking={"notes": "x"})):
        assert changed.prepare(0).data.num_clients == 4
        assert changed.rounds == 1
        assert changed.tracking.wandb == "disabled"
        # the configuration of the whole experiment, and a mark that it was shrunk
        assert changed.to_dict()["rounds"] == 20
