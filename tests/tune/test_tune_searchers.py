"""Tests which settings a study's searcher chooses, and which trials a scheduler of Ray stops, without Ray."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
from ray.tune.schedulers import TrialScheduler
from studies import ALGORITHMS, base

from lit_cfl.tune.journal import NUMBER
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.searchers import learns, sampler_of, scheduler_of
from lit_cfl.tune.study import Study

ETA = {"algorithm.eta_g": {"uniform": [0.0, 1.0]}}
METRIC = "val/weighted_accuracy"


def study(space: dict[str, Any], **changes: Any) -> Study:
    return Study(base(), space, **changes)


def ask(asked: Study, number: int) -> dict[str, Any]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return asked.search_space.suggest_setting(optuna.create_study(sampler=sampler_of(asked)(number)).ask())


@pytest.mark.parametrize("name", [None, "TPESampler", "optuna.samplers.NSGAIISampler"])
def test_a_setting_follows_from_the_number_of_the_trial_and_the_seed(name: str | None):
    asked = study({"algorithm": ALGORITHMS}, searcher=name)
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
        result = {METRIC: score, "rounds": 4, "training_iteration": 1, "time_total_s": 1.0}
        found.append(scheduler.on_trial_result(controller, trial, result))
    return found


@pytest.mark.parametrize("name", ["ray.tune.schedulers.ASHAScheduler", "MedianStoppingRule"])
def test_a_scheduler_of_ray_counts_rounds_and_spares_the_base(name: str):
    options = {"min_samples_required": 1} if name == "MedianStoppingRule" else {"reduction_factor": 2}
    asked = study(ETA, scheduler={"class_path": name, "init_args": options})
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
    asked = replace(study(ETA, scheduler="ASHAScheduler"), **changes)
    assert scheduler_of(asked, Objective(), 16, 4) is None
