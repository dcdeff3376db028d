"""Tests which spaces a study may search, the settings that its searcher chooses, and which trials a scheduler stops."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ray.tune.schedulers import TrialScheduler
from studies import ALGORITHMS, STUDY, base, study_file

from lit_cfl.cli.main import main
from lit_cfl.config.variants import base_config, build
from lit_cfl.errors import InputError
from lit_cfl.tune.check import PreparedStudy, prepare
from lit_cfl.tune.journal import NUMBER
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.searchers import learns, sampler_of, scheduler_of
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.spaces import as_word, corners
from lit_cfl.tune.study import Limits, Resources, Stopping, Study


def check(space: dict[str, Any], **changes: Any) -> PreparedStudy:
    """Runs all checks that a study must pass before its start."""
    return prepare(Study(base(**changes), space), Path("study"))


def ask(study: Study, number: int) -> dict[str, Any]:
    """Returns the setting of a trial that the searcher chooses."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return study.search_space.suggest_setting(optuna.create_study(sampler=sampler_of(study)(number)).ask())


def test_each_distribution_is_read():
    space = parse_space(
        {
            "a": {"uniform": [0, 2]},
            "b": {"loguniform": [0.1, 1]},
            "c": {"randint": [2, 5]},
            "d": {"choice": [["conv*"], None]},
            "e": {"lograndint": [1, 65]},
        }
    )
    ends = [[0, 2], [0.1, 1], [2, 4], ['["conv*"]', "null"], [1, 64]]
    assert [corners(parameter.distribution) for parameter in space.parameters] == ends
    assert not space.grid
    assert len(parse_space({"a": {"grid": [1, 2]}, "b": {"grid": [3, 4, 5]}}).combinations()) == 6


def test_values_become_options_of_their_own_algorithm_alone():
    space = parse_space({"algorithm": ALGORITHMS, "local.epochs": {"randint": [1, 3]}})
    values = {"algorithm": "IFCA", "IFCA.num_clusters": 3, "FedGroup.num_clusters": 2, "local.epochs": 1}
    assert space.words(values) == ["--algorithm", "IFCA", "--local.epochs=1", "--algorithm.num_clusters=3"]
    experiment = build(base(), space.words(values))
    assert (type(experiment.algorithm).__name__, experiment.algorithm.num_clusters) == ("IFCA", 3)
    other = build(base(), space.words(values | {"algorithm": "FedGroup", "FedGroup.eta_g": 0.05}))
    assert (other.algorithm.num_clusters, other.algorithm.eta_g, other.algorithm.pretrain.length) == (2, 0.05, 2)
    assert other.algorithm.pretrain_scale == 3  # the base's own value, since this is the base's algorithm


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.lists(st.text("abc*", min_size=1)))
def test_a_value_comes_back_exactly_from_its_word(value: object):
    assert yaml.safe_load(as_word(value)) == value or float(as_word(value)) == value


def test_every_choice_is_a_corner_even_where_there_are_many():
    corners = parse_space({f"o{k}": {"choice": list(range(k + 2))} for k in range(4)}).corners()
    assert len(corners) == 1 + 1 + 2 + 3 + 4
    found = {(key, value) for point in corners for key, value in point.items()}
    assert found == {(f"o{k}", value) for k in range(4) for value in range(k + 2)}


def test_small_negative_values_are_not_taken_for_options():
    words = parse_space({"algorithm.tau": {"choice": [-5e-05, 0.5]}}).words({"algorithm.tau": -5e-05})
    assert build(base(algorithm={"class_path": "StoCFL"}), words).algorithm.tau == -5e-05


def test_a_study_without_validation_data_is_refused():
    with pytest.raises(InputError, match=r"no validation part.*set data.validation"):
        check(STUDY["space"], data={"class_path": "Digits", "init_args": {"num_clients": 12, "validation": 0.0}})


def test_a_space_over_the_data_and_a_grid_get_a_note():
    assert check({"algorithm.eta_g": {"uniform": [0, 1]}}).notices == []
    note, whole = check({"data.rotations": {"grid": [[0, 90], [0, 180]]}}).notices
    assert note.startswith("data.rotations may change who the clients are")
    assert whole.startswith("no trial is stopped early")


def test_values_of_a_step_are_decimal_so_that_the_bases_value_is_not_tried_twice():
    space = {"algorithm.eta_g": {"uniform": [0.1, 0.8], "step": 0.05}}
    study = Study(base(), space, limits=Limits(trials=64))
    drawn = {ask(study, number)["algorithm.eta_g"] for number in range(200)}
    assert drawn == {0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8}
    (point,) = replace(study, points=[{"algorithm.eta_g": 0.1 + 0.2}]).own_settings
    assert point == {"algorithm.eta_g": 0.3}


def test_classes_with_their_arguments_are_searched_unchanged(tmp_path: Path):
    """The parser would fill in all defaults of a class named by its full path, even `params: None` of Adam."""
    adam = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.001}}
    sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
    space = {
        "task.optimizer.lr": {"loguniform": [0.01, 0.1]},
        "task.optimizer": {"choice": [adam, sgd]},
        "task.net": {"choice": [{"class_path": "lit_cfl.nets.MLP", "init_args": {"hidden": 8}}, "MCLR"]},
        "algorithm": {"choice": ["FedAvg", {"class_path": "lit_cfl.algorithms.FedProx", "init_args": {"mu": 0.5}}]},
    }
    study = parse_study(["--config", str(study_file(tmp_path, space=space))]).study
    assert study.space == space
    corners = prepare(study, tmp_path).corners.values()
    assert len({(type(one.algorithm), type(one.task().net)) for one in corners}) == 4
    rates = [one.to_dict()["task"]["init_args"]["optimizer"] for one in corners]
    assert [(one["class_path"].rpartition(".")[2], one["init_args"]["lr"]) for one in rates] == [
        *(("Adam", 0.01), ("Adam", 0.01), ("SGD", 0.01), ("Adam", 0.1)) * 2
    ]
    assert study.whole_base == base_config(base(), tmp_path)  # the base is unchanged


def test_a_base_is_found_by_name_and_its_baseline_is_dropped(tmp_path: Path):
    packaged = parse_study(["--config", str(study_file(tmp_path, base="fedgroup/digits"))]).study.base
    assert packaged["name"] == "fedgroup-digits"
    assert base_config(base(baseline="FedAvg"))["baseline"] is None


def test_a_later_file_keeps_the_base_and_words_replace_what_files_say(tmp_path: Path):
    """A base is found next to the file of its study."""
    folders = [tmp_path / name for name in ("studies", "mine")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "base-of-study.yaml").write_text(yaml.safe_dump(base(rounds=7)))
    searcher = {"class_path": "TPESampler", "init_args": {"seed": 3}}
    study = study_file(folders[0], base="base-of-study.yaml", searcher=searcher)
    (folders[1] / "limits.yaml").write_text("limits: {trials: 5}\n")
    words = ["--config", str(study), "--config", str(folders[1] / "limits.yaml"), "--ray.address", "auto"]
    request = parse_study([*words, "--searcher", "{class_path: optuna.samplers.TPESampler, init_args: {seed: 4}}"])
    found = request.study
    assert (found.whole_base["rounds"], found.limits.trials, request.address) == (7, 5, "auto")
    assert found.space == STUDY["space"]
    assert found.searcher == {"class_path": "optuna.samplers.TPESampler", "init_args": {"seed": 4}}
    assert str(folders[0]) in found.base["code"]


def test_no_trial_is_stopped_before_the_clusters_of_every_algorithm_have_trained():
    space = {
        "algorithm": {"choice": ["FedAvg", {"class_path": "FLHC", "space": {"warmup_rounds": {"choice": [1, 3]}}}]}
    }
    rule = check(space, rounds=8).rule
    assert rule is not None
    assert rule.first == 5
    study = Study(base(rounds=8), space, stopping=Stopping(first=3))
    with pytest.raises(InputError, match=r"stopping\.first is 3, but .* clusters only in round 4; give 5 or more"):
        prepare(study, Path("study"))


@pytest.mark.parametrize(
    ("gpus", "resources", "device", "words"),
    [
        (2, Resources(gpus=0.5), "cuda:1", ["device", "'cuda:1'", "give cuda"]),  # Ray gives each trial one GPU
        (1, Resources(), "auto", ["resources.gpus", "0", "cuda:0"]),  # all trials would train on one
    ],
)
def test_trials_share_no_gpu_that_nobody_divides(
    gpus: int, resources: Resources, device: str, words: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lit_cfl.engines.choose_plan.count_gpus", lambda: gpus)
    with pytest.raises(InputError) as error:
        prepare(replace(Study(base(device=device), STUDY["space"]), resources=resources), Path("study"))
    assert [word for word in words if word not in str(error.value)] == [], error.value


ETA = {"algorithm.eta_g": {"uniform": [0.0, 1.0]}}


@pytest.mark.parametrize("name", [None, "TPESampler", "optuna.samplers.NSGAIISampler"])
def test_a_setting_follows_from_the_number_of_the_trial_and_the_seed(name: str | None):
    asked = Study(base(), {"algorithm": ALGORITHMS}, searcher=name)
    drawn = [ask(asked, number) for number in range(6)]
    assert len({str(values) for values in drawn}) > 3
    assert ask(asked, 4) == drawn[4]
    assert [ask(replace(asked, search_seed=1), number) for number in range(6)] != drawn
    assert learns(asked) == (name is not None)


def decisions(scheduler: TrialScheduler, scores: list[float]) -> list[str]:
    """Returns what a scheduler says to trials that report these scores after round 4, in the order of their numbers."""
    controller, found = Mock(get_live_trials=set), []
    for number, score in enumerate(scores):
        trial = Mock(trial_id=str(number), config={NUMBER: number}, status="RUNNING")
        scheduler.on_trial_add(controller, trial)
        result = {Objective().metric: score, "rounds": 4, "training_iteration": 1, "time_total_s": 1.0}
        found.append(scheduler.on_trial_result(controller, trial, result))
    return found


@pytest.mark.parametrize("name", ["ray.tune.schedulers.ASHAScheduler", "MedianStoppingRule"])
def test_a_scheduler_of_ray_counts_rounds_and_spares_the_base(name: str):
    options = {"min_samples_required": 1} if name == "MedianStoppingRule" else {"reduction_factor": 2}
    asked = Study(base(), ETA, scheduler={"class_path": name, "init_args": options})
    scheduler = scheduler_of(asked, Objective(), 16, 4)
    assert scheduler is not None
    assert decisions(scheduler, [0.0, 0.9, 0.8, 0.1, 0.95])[::2] == ["CONTINUE", "STOP", "CONTINUE"]
    later = scheduler_of(asked, Objective(), 16, 5)
    assert later
    assert set(decisions(later, [0.9, 0.9, 0.1])) == {"CONTINUE"}  # not before its first round


@pytest.mark.parametrize(
    "changes", [{"scheduler": None}, {"second_metric": "traffic/mib"}, {"space": {"algorithm.eta_g": {"grid": [0]}}}]
)
def test_no_scheduler_stops_trials_of_a_grid_or_with_two_objectives(changes: dict[str, Any]):
    asked = replace(Study(base(), ETA, scheduler="ASHAScheduler"), **changes)
    assert scheduler_of(asked, Objective(), 16, 4) is None


def test_a_dry_run_has_a_line_per_corner_and_point_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    points = [{"algorithm": "IFCA", "IFCA.num_clusters": 3}]
    study = study_file(tmp_path, space={"algorithm": ALGORITHMS}, points=points, seeds=[3, 4], num_repeats=5)
    assert main(["tune", "--config", str(study), "--dry-run"]) == 0
    first, then, _, *corners = capsys.readouterr().out.splitlines()
    assert first.startswith("3 trials of 4 rounds under the seeds 3, 4 each, over algorithm, IFCA.num_clusters, FedG")
    assert then == "At the end: the best and the default setting on 5 new seeds."
    assert corners == [
        "  IFCA: algorithm = IFCA, IFCA.num_clusters = 2",
        "  IFCA: algorithm = IFCA, IFCA.num_clusters = 3",
        *(
            f"  FedGroup: algorithm = FedGroup, FedGroup.eta_g = {rate:g}, FedGroup.num_clusters = {number}"
            for rate, number in ((0.001, 2), (0.1, 2), (0.001, 3))
        ),
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["study-to-run.yaml"]
