"""How much each parameter mattered.

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
from optuna.trial import create_trial

from lit_cfl.tune.objective import Objective
from lit_cfl.tune.optuna_space import in_space, own_ranges
from lit_cfl.tune.record import FINISHED_STATUS
from lit_cfl.tune.spaces import Space

METHOD = "PED-ANOVA"
FEWEST_TRIALS = 8  # a quarter of them is two
_BEST = 0.25


def importance(rows: Sequence[Mapping[str, Any]], space: Space, objective: Objective) -> dict[str, float]:
    """Share of each parameter in what made the best quarter of the trials the best, highest first; they sum to 1.

    Args:
        rows: of trials that were trained; those that did not finish, and settings outside the space, are left out.

    Returns:
        nothing with fewer than eight trials, or where nothing mattered.
    """
    known = [row for row in rows if row["status"] == FINISHED_STATUS and isfinite(row[objective.metric])]
    known = [row for row in known if in_space(row, space)]
    if len(known) < FEWEST_TRIALS:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize" if objective.mode == "min" else "maximize")
    for row in known:
        own = own_ranges(row, space)
        values = {key: row[key] for key in own}
        study.add_trial(create_trial(params=values, distributions=own, value=float(row[objective.metric])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that few trials make it rough: the docs say so
        evaluator = PedAnovaImportanceEvaluator(target_quantile=_BEST)
        found = get_param_importances(study, evaluator=evaluator, normalize=False)
    total = sum(found.values())
    return {key: float(value / total) for key, value in found.items()} if total > 0 else {}
