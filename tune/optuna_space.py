"""Optuna's distributions of what a study searches."""

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from lit_cfl.tune.spaces import Distribution, Integers, OneOf, Space, as_plain


def ranges(space: Space) -> dict[str, BaseDistribution]:
    """Optuna's distribution of each parameter by its key, and of the algorithm where there are several."""
    several = {"algorithm": CategoricalDistribution(list(space.algorithms))} if space.algorithms else {}
    return several | {p.key: _range(p.distribution) for p in space.parameters}


def own_ranges(values: Mapping[str, Any], space: Space) -> dict[str, BaseDistribution]:
    """Of the parameters that a setting has a value of."""
    return {key: known for key, known in ranges(space).items() if values.get(key) is not None}


def in_space(values: Mapping[str, Any], space: Space) -> bool:
    """Whether a setting could have been drawn: all that matters at it has a value, which is in its range."""
    kept: dict[str, Any] = {}
    if space.algorithms and values.get("algorithm") not in space.algorithms:
        return False
    for p in space.of(str(values.get("algorithm", ""))):
        if p.matters(kept):
            kept[p.key] = values.get(p.key)
            if kept[p.key] is None or not _contains(_range(p.distribution), kept[p.key]):
                return False
    return True


def _contains(known: BaseDistribution, value: Any) -> bool:
    try:
        return bool(known._contains(known.to_internal_repr(value)))
    except ValueError:
        return False


def _range(what: Distribution) -> BaseDistribution:
    if isinstance(what, OneOf):
        return CategoricalDistribution([as_plain(value) for value in what.values])
    if isinstance(what, Integers):
        return IntDistribution(what.low, what.high - 1, log=what.log)
    return FloatDistribution(what.low, what.high, log=what.log, step=what.step or None)


def suggest(space: Space, trial: Trial) -> dict[str, Any]:
    """Asks Optuna for one setting: for the values that matter at it, and for no other."""
    several = list(space.algorithms)
    drawn = {"algorithm": trial.suggest_categorical("algorithm", several)} if several else {}
    for p in space.of(str(drawn.get("algorithm", ""))):
        if p.matters(drawn):
            drawn[p.key] = _suggest(trial, p.key, p.distribution)
    return drawn


def _suggest(trial: Trial, key: str, what: Distribution) -> Any:
    if isinstance(what, OneOf):
        return trial.suggest_categorical(key, [as_plain(value) for value in what.values])
    if isinstance(what, Integers):
        return trial.suggest_int(key, what.low, what.high - 1, log=what.log)
    return trial.suggest_float(key, what.low, what.high, log=what.log, step=what.step or None)
