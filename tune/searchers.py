"""From a study to one of Ray Tune's searchers."""

import inspect
from functools import partial
from typing import Any

import optuna
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch

from lit_cfl.errors import InputError
from lit_cfl.tune.classes import built, named_class
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.schedulers import is_population_based
from lit_cfl.tune.spaces import Integers, OneOf, Parameter, Space, as_plain
from lit_cfl.tune.study import Study

_SEARCHERS = {"BasicVariantGenerator": BasicVariantGenerator, "OptunaSearch": OptunaSearch}
_SEEDS = ("seed", "random_state", "random_state_seed", "random_seed")  # names of one thing in Ray's searchers


def searcher(study: Study, space: Space, objective: Objective = Objective()) -> Any:
    """The searcher, seeded.

    Raises:
        InputError: none of Ray Tune's, or options that it does not take; one that a grid or PBT cannot use.
    """
    kind, given = named_class(study.searcher, "searcher", BasicVariantGenerator, _SEARCHERS)
    if not issubclass(kind, BasicVariantGenerator) and (space.grid or is_population_based(study)):
        what = "a grid" if space.grid else "population based training"
        raise InputError(f"{what} draws its own values; leave out searcher {kind.__name__}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    accepted = inspect.signature(kind).parameters
    seed = {name: study.search_seed for name in _SEEDS if name in accepted}
    if issubclass(kind, BasicVariantGenerator):  # Ray itself limits all others
        return built(kind, seed | {"max_concurrent": study.limits.concurrent or 0} | given, "searcher")
    if issubclass(kind, OptunaSearch) and space.conditional:
        mine = {"metric": objective.metric, "mode": objective.mode, "space": partial(_suggest, space)}
        return built(kind, seed | mine | given, "searcher")
    return built(kind, seed | given, "searcher")


def _suggest(space: Space, trial: Any) -> None:
    """Optuna asks for the values that matter, and for no other."""
    several = list(space.algorithms)
    drawn = {"algorithm": trial.suggest_categorical("algorithm", several)} if several else {}
    for p in space.of(drawn.get("algorithm", "")):
        if p.matters(drawn):
            drawn[p.key] = _suggested(trial, p)


def _suggested(trial: Any, parameter: Parameter) -> Any:
    key, what = parameter.key, parameter.distribution
    if isinstance(what, OneOf):
        return trial.suggest_categorical(key, [as_plain(value) for value in what.values])
    if isinstance(what, Integers):
        return trial.suggest_int(key, what.low, what.high - 1, log=what.log)
    return trial.suggest_float(key, what.low, what.high, log=what.log, step=what.step or None)
