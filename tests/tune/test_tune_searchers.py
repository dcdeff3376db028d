"""Tests which settings searchers propose, and which results they receive, without Ray."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from studies import ALGORITHMS, base
from tune_trials import last_result

from lit_cfl.config.variants import build
from lit_cfl.errors import InputError
from lit_cfl.tune.check import first_settings, prepare
from lit_cfl.tune.record import TrialRecord
from lit_cfl.tune.searchers import Searcher, make_searcher
from lit_cfl.tune.study import Study

ETA = {"algorithm.eta_g": {"uniform": [0.0, 1.0]}}
FINISHED = TrialRecord(3, "search", {}, status="finished", last_result=last_result(0.5))
STOPPED = TrialRecord(4, "search", {}, status="stopped", last_result=last_result(0.9, rounds=2))
FAILED = TrialRecord(5, "search", {}, status="failed", last_result=last_result(0.7, rounds=3))


BRUTE_FORCE = "optuna.samplers.BruteForceSampler"


def study(space: dict[str, Any], **changes: Any) -> Study:
    return Study(base(), space, **changes)


def optuna_of(asked: Study) -> Searcher:
    found = make_searcher(asked)
    assert isinstance(found, Searcher)
    return found


def test_optuna_ranks_a_trial_that_was_stopped_early_after_all_finished_ones():
    """Ray's own searcher would report every trial as complete, with its last value."""
    optuna = optuna_of(study(ETA, searcher="TPESampler"))
    for number, result in enumerate((FINISHED, STOPPED, FAILED)):
        optuna.add(number, optuna.ask(number), result)
    finished, stopped, failed = optuna._study.trials
    assert (finished.state, finished.value) == (TrialState.COMPLETE, 0.5)
    assert (stopped.state, stopped.intermediate_values) == (TrialState.PRUNED, {2: 0.9})
    assert (failed.state, failed.intermediate_values) == (TrialState.PRUNED, {})
    assert optuna._study.best_trial.number == 0  # not the stopped trial with 0.9


def test_optuna_hears_of_settings_that_it_did_not_ask_for():
    optuna = optuna_of(study({"algorithm": ALGORITHMS}, searcher="TPESampler"))
    for result in (FINISHED, STOPPED):
        optuna.add(None, {"algorithm": "IFCA", "IFCA.num_clusters": 3}, result)
    assert [trial.state for trial in optuna._study.trials] == [TrialState.COMPLETE, TrialState.PRUNED]
    assert optuna._study.trials[0].params == {"algorithm": "IFCA", "IFCA.num_clusters": 3}


@pytest.mark.parametrize("name", [None, "TPESampler", "optuna.samplers.NSGAIISampler"])
def test_a_resumed_study_asks_for_the_same_settings(name: str | None):
    asked = study({"algorithm": ALGORITHMS}, searcher=name)
    whole = optuna_of(asked)
    drawn = [whole.ask(number) for number in range(6)]
    assert len({str(values) for values in drawn}) > 3
    assert optuna_of(asked).ask(4) == drawn[4]
    assert [optuna_of(study({"algorithm": ALGORITHMS}, searcher=name, search_seed=1)).ask(k) for k in range(6)] != drawn


def test_two_objectives_are_two_of_optunas_with_their_directions():
    optuna = optuna_of(study(ETA, second_metric="traffic/mib"))
    other = TrialRecord(4, "search", {}, None, "finished", last_result(0.4))
    for number, result in enumerate((FINISHED, other, FAILED)):
        optuna.add(number, optuna.ask(number), result)
    assert [direction.name for direction in optuna._study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert [trial.values for trial in optuna._study.trials] == [[0.5, 1.0], [0.4, 1.0], None]
    assert [trial.number for trial in optuna._study.best_trials] == [0]
    for number in range(3, 20):  # after the first draws, which are random
        optuna.add(number, optuna.ask(number), FINISHED)


def test_cma_es_without_its_package_or_with_two_objectives_is_refused(monkeypatch: pytest.MonkeyPatch):
    asked = study(ETA, searcher="optuna.samplers.CmaEsSampler")
    for there, second, remedy in ((None, None, "pip install cmaes"), ("there", "traffic/mib", "one objective only")):
        monkeypatch.setattr("lit_cfl.tune.searchers.find_spec", lambda name, there=there: there)
        with pytest.raises(InputError, match=remedy):
            make_searcher(replace(asked, second_metric=second))


def test_a_sampler_that_has_tried_everything_ends_nothing():
    optuna = optuna_of(study({"algorithm.measure": {"choice": ["edc", "madc"]}}, searcher=BRUTE_FORCE))
    asked = [optuna.ask(number) for number in range(2)]
    for number, values in enumerate(asked):
        optuna.add(number, values, FINISHED)
    assert {values["algorithm.measure"] for values in asked} == {"edc", "madc"}
    assert [trial.state for trial in optuna._study.trials] == [TrialState.COMPLETE] * 2


def test_a_grid_asks_for_every_combination():
    asked = study({"algorithm.eta_g": {"grid": [0.0, 0.5]}, "algorithm.measure": {"grid": ["edc", None]}})
    assert make_searcher(asked) is None
    _, *points = [setting.values for setting in first_settings(asked, build(base()))]
    assert points[:2] == [{"algorithm.eta_g": 0.0, "algorithm.measure": word} for word in ("edc", "null")]
    assert points[3:] == [{"algorithm.eta_g": 0.5, "algorithm.measure": "null"}]


def first_of(algorithm: dict[str, Any] | None, space: dict[str, Any], **changes: Any) -> Any:
    content = base(**({} if algorithm is None else {"algorithm": algorithm}))
    default = build(content)
    whole = Study(default.to_dict(), space, **changes)
    return first_settings(whole, default)


def test_a_default_in_the_space_is_reported_to_the_searcher():
    space = {"algorithm.eta_g": {"uniform": [0, 1]}, "algorithm.num_clusters": {"randint": [2, 4]}}
    (default,) = first_of(None, space)
    assert default.inside
    assert default.values == {"algorithm.eta_g": 0.0, "algorithm.num_clusters": 2}
    optuna = optuna_of(study(space, searcher="TPESampler"))
    optuna.add(None, default.values, FINISHED)
    (known,) = optuna._study.trials
    assert (known.state, known.value) == (TrialState.COMPLETE, 0.5)
    assert known.params == {"algorithm.eta_g": 0.0, "algorithm.num_clusters": 2}


@pytest.mark.parametrize(
    ("space", "values"),
    [
        ({"algorithm.num_clusters": {"randint": [3, 5]}}, {"algorithm.num_clusters": 2}),  # the base has 2 clusters
        (
            {"algorithm": {"choice": [{"class_path": "IFCA", "space": {"num_clusters": {"randint": [2, 4]}}}]}},
            {"algorithm": "FedGroup"},
        ),
        ({"algorithm": ALGORITHMS}, {"algorithm": "FedGroup", "FedGroup.num_clusters": 2, "FedGroup.eta_g": 0.0}),
    ],
)
def test_a_default_outside_the_space_keeps_the_bases_values(space: dict[str, Any], values: dict[str, Any]):
    (default,) = first_of(None, space)
    assert (default.inside, default.values) == (False, values)


def test_points_follow_the_default_as_a_searcher_would_give_them():
    space = {"algorithm.eta_g": {"uniform": [0, 1]}, "algorithm.measure": {"choice": ["edc", "madc"]}}
    points = [{"algorithm.measure": "madc", "algorithm.eta_g": 1}]
    default, point = first_of(None, space, points=points)
    assert (default.origin, point.origin) == ("default", "point")
    assert point.values == {"algorithm.eta_g": 1.0, "algorithm.measure": "madc"}
    assert type(point.values["algorithm.eta_g"]) is float


def test_a_study_prepares_its_default_first(tmp_path: Path):
    grid = prepare(Study(build(base()).to_dict(), {"algorithm.num_clusters": {"grid": [2, 3]}}), tmp_path)
    assert (grid.limit, grid.first[0].inside) == (2, True)  # the default is a point of the grid
    other = prepare(Study(build(base()).to_dict(), {"algorithm.num_clusters": {"grid": [3, 4]}}), tmp_path)
    assert (other.limit, other.first[0].inside) == (3, False)
