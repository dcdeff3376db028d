"""How much each parameter mattered.

PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023; for parameters of one algorithm among several Itakura et al., KDD
2026), as Optuna computes it: how much the values of the best quarter of the trials differ from those of all trials. It
looks at ranks only, so a trial that was stopped early can count by the last figure that it reported.
"""

import warnings
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from lit_cfl.tune.objective import Objective
from lit_cfl.tune.spaces import Distribution, Integers, OneOf, Space, as_plain

METHOD = "PED-ANOVA"
FEWEST_TRIALS = 8  # a quarter of them is two
_BEST = 0.25


def importance(rows: Sequence[Mapping[str, Any]], space: Space, objective: Objective) -> dict[str, float]:
    """Share of each parameter in what made the best quarter of the trials the best, highest first; they sum to 1.

    Args:
        rows: of `trials.csv`; those without a figure are left out.

    Returns:
        nothing with fewer than eight trials, or where nothing mattered.
    """
    known = [row for row in rows if row.get(objective.metric) is not None and isfinite(row[objective.metric])]
    if len(known) < FEWEST_TRIALS:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize" if objective.mode == "min" else "maximize")
    ranges = _ranges(space)
    for row in known:
        own = {key: row[key] for key in ranges if row.get(key) is not None}
        study.add_trial(
            optuna.trial.create_trial(
                params=own, distributions={key: ranges[key] for key in own}, value=float(row[objective.metric])
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that few trials make it rough: the docs say so
        evaluator = PedAnovaImportanceEvaluator(target_quantile=_BEST)
        found = get_param_importances(study, evaluator=evaluator, normalize=False)
    total = sum(found.values())
    return {key: float(value / total) for key, value in found.items()} if total > 0 else {}


def _ranges(space: Space) -> dict[str, BaseDistribution]:
    several = {"algorithm": CategoricalDistribution(list(space.algorithms))} if space.algorithms else {}
    return several | {p.key: _range(p.distribution) for p in space.parameters}


def _range(distribution: Distribution) -> BaseDistribution:
    if isinstance(distribution, OneOf):
        return CategoricalDistribution([as_plain(value) for value in distribution.values])
    if isinstance(distribution, Integers):
        return IntDistribution(distribution.low, distribution.high - 1, log=distribution.log)
    return FloatDistribution(distribution.low, distribution.high, log=distribution.log)
