"""Importance of the searched parameters.

PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023; for parameters of one algorithm among several Itakura et al., KDD
2026), as Optuna computes it: how much the values of the best quarter of the trials differ from those of all trials.
Only trials that ran to their end count: the last figure of one that was stopped early is not its result.
"""

import warnings
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState, create_trial

from lit_cfl.tune.objective import Objective
from lit_cfl.tune.record import FINISHED_STATUS
from lit_cfl.tune.spaces import Space

METHOD = "PED-ANOVA"
FEWEST_TRIALS = 8  # a quarter of them is two
EVALUATOR = PedAnovaImportanceEvaluator(target_quantile=0.25)


def importance(rows: Sequence[Mapping[str, Any]], space: Space, objective: Objective) -> dict[str, float]:
    """Computes each parameter's share in separating the best quarter of the trials, highest first; sum 1.

    Args:
        rows: Rows of trained trials; unfinished ones, and settings outside the space, are left out.

    Returns:
        nothing with fewer than eight trials, or where nothing mattered.
    """
    study = build_study(rows, space, objective)
    if len(study.get_trials(states=(TrialState.COMPLETE,))) < FEWEST_TRIALS:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warns that few trials make it imprecise, as the docs say
        found = get_param_importances(study, evaluator=EVALUATOR, normalize=False)
    total = sum(found.values())
    return {key: float(value / total) for key, value in found.items()} if total > 0 else {}


def build_study(rows: Sequence[Mapping[str, Any]], space: Space, objective: Objective) -> optuna.Study:
    """Builds an Optuna study from the finished trials inside the space, with their own numbers.

    Args:
        rows: Rows of trials by number.

    Returns:
        a study in which all other numbers are trials that failed.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize" if objective.mode == "min" else "maximize")
    known = [row for row in rows if row["status"] == FINISHED_STATUS and isfinite(row[objective.metric])]
    trials: list[FrozenTrial] = []
    for row in known:
        if space.contains(row):
            own = space.of_setting(row)
            values = {key: row[key] for key in own}
            trials += [create_trial(state=TrialState.FAIL) for _ in range(len(trials), int(row["trial_id"]))]
            trials.append(create_trial(params=values, distributions=own, value=float(row[objective.metric])))
    study.add_trials(trials)
    return study
