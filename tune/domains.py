"""From a study to Ray Tune's searchers, schedulers and domains."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import optuna
from ray import tune as ray_tune
from ray.tune import schedulers as ray_schedulers
from ray.tune import search as ray_search
from ray.tune.schedulers import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch

from lit_cfl.config_errors import nearest
from lit_cfl.errors import InputError
from tune.reporting import ROUNDS
from tune.spaces import Distribution, Integers, OneOf, Parameter, Space, as_plain
from tune.study import Study

_SEARCHERS = {"BasicVariantGenerator": BasicVariantGenerator, "OptunaSearch": OptunaSearch}
_SEEDS = ("seed", "random_state", "random_state_seed", "random_seed")  # names of one thing in Ray's searchers
Written = str | dict[str, Any] | None


def domains(space: Space) -> dict[str, Any]:
    """Ray's domain of each parameter; with several algorithms those of all, of which a trial reads its own."""
    chosen = {"algorithm": ray_tune.choice(list(space.algorithms))} if space.algorithms else {}
    return chosen | {p.key: domain(p.distribution) for p in space.parameters}


def domain(distribution: Distribution) -> Any:
    """Ray's domain. Values of a choice that are no plain numbers or texts travel as YAML."""
    if isinstance(distribution, OneOf):
        plain = [as_plain(value) for value in distribution.values]
        return ray_tune.grid_search(plain) if distribution.grid else ray_tune.choice(plain)
    if isinstance(distribution, Integers):
        return ray_tune.randint(distribution.low, distribution.high)
    low, high = distribution.low, distribution.high
    if distribution.step:
        return ray_tune.quniform(low, high, distribution.step)
    return ray_tune.loguniform(low, high) if distribution.log else ray_tune.uniform(low, high)


def searcher(study: Study, space: Space) -> Any:
    """The searcher, seeded.

    Raises:
        InputError: none of Ray Tune's, or options that it does not take; one that a grid or PBT cannot use.
    """
    kind, given = _class(study.searcher, "searcher", BasicVariantGenerator, _SEARCHERS, ray_search)
    if not issubclass(kind, BasicVariantGenerator) and (space.grid or is_population_based(study)):
        what = "a grid" if space.grid else "population based training"
        raise InputError(f"{what} draws its own values; leave out searcher {kind.__name__}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    accepted = inspect.signature(kind).parameters
    seed = {name: study.search_seed for name in _SEEDS if name in accepted}
    if issubclass(kind, OptunaSearch) and space.algorithms:
        mine = {"metric": study.metric, "mode": study.objective.mode, "space": partial(_suggest, space)}
        return _built(kind, seed | mine | given, "searcher")
    return _built(kind, seed | given, "searcher")


def _suggest(space: Space, trial: Any) -> None:
    """Optuna asks for the values of the algorithm that it chose, and of no other."""
    name = trial.suggest_categorical("algorithm", list(space.algorithms))
    for p in space.of(name):
        _suggest_one(trial, p)


def _suggest_one(trial: Any, parameter: Parameter) -> None:
    key, what = parameter.key, parameter.distribution
    if isinstance(what, OneOf):
        trial.suggest_categorical(key, [as_plain(value) for value in what.values])
    elif isinstance(what, Integers):
        trial.suggest_int(key, what.low, what.high - 1)
    else:
        trial.suggest_float(key, what.low, what.high, log=what.log, step=what.step or None)


def is_population_based(study: Study) -> bool:
    """Whether trials copy each other."""
    return issubclass(_scheduler_class(study)[0], PopulationBasedTraining)


def pauses(study: Study) -> bool:
    """Whether the scheduler may put trials aside and go on with them later."""
    return _scheduler_class(study)[0] not in (ASHAScheduler, AsyncHyperBandScheduler, FIFOScheduler)


def scheduler(study: Study, space: Space, rounds: int, first_clustering_round: int) -> TrialScheduler:
    """The scheduler, which counts rounds.

    Args:
        rounds: T of the base.
        first_clustering_round: of the algorithms; none is stopped before it has ended.

    Raises:
        InputError: none of Ray Tune's, options that it does not take, a space that it cannot search.
    """
    kind, given = _scheduler_class(study)
    accepted = inspect.signature(kind).parameters
    ours: dict[str, Any] = {"time_attr": ROUNDS} if "time_attr" in accepted else {}
    grace = first_clustering_round + 1
    if issubclass(kind, ASHAScheduler):
        ours |= {"max_t": rounds, "grace_period": min(rounds, max(grace, -(-rounds // 4)))}
        _require_grace(given.get("grace_period", grace), grace)
    elif "max_t" in accepted:
        ours |= {"max_t": rounds}
    elif "grace_period" in accepted:
        ours |= {"grace_period": grace}
        _require_grace(given.get("grace_period", grace), grace)
    if issubclass(kind, PopulationBasedTraining):
        _require_evolvable(study, space)
        ours |= {"perturbation_interval": max(grace, rounds // 4), "hyperparam_mutations": domains(space)}
        ours |= {"custom_explore_fn": partial(_within, space), "log_config": False}
    built: TrialScheduler = _built(kind, ours | given, "scheduler")
    return built


def _require_grace(given: float, least: int) -> None:
    if given < least:
        raise InputError(
            f"scheduler: grace_period is {given}, but an algorithm of this study clusters only in round {least - 1}; "
            f"give {least} or more, or it is stopped before it has begun"
        )


def _require_evolvable(study: Study, space: Space) -> None:
    if space.algorithms:
        raise InputError("population based training copies models from trial to trial; give it one algorithm a study")
    if space.grid:
        raise InputError("population based training changes values as it goes; write choice or uniform for grid")
    foreign = [p.option for p in space.parameters if not p.option.startswith("algorithm.")]
    if foreign:
        raise InputError(f"population based training changes options of the algorithm only; leave out {foreign[0]}")
    if study.seeds is not None and len(study.seeds) > 1:
        raise InputError(f"population based training takes one seed a trial, not {study.seeds}; the best is repeated")


def _within(space: Space, config: dict[str, Any]) -> dict[str, Any]:
    """Perturbed values stay in the space."""
    for p in space.parameters:
        if not isinstance(p.distribution, OneOf):
            low, high = p.distribution.corners[0], p.distribution.corners[-1]
            config[p.key] = min(max(config[p.key], low), high)
    return config


def _scheduler_class(study: Study) -> tuple[type, dict[str, Any]]:
    return _class(study.scheduler, "scheduler", ASHAScheduler, {}, ray_schedulers)


def _class(
    written: Written, what: str, default: type, known: Mapping[str, type], module: Any
) -> tuple[type, dict[str, Any]]:
    one: dict[str, Any] = {"class_path": written} if isinstance(written, str) else (written or {})
    if not isinstance(one, dict) or set(one) - {"class_path", "init_args"}:
        raise InputError(f"{what} is {written!r}; give class_path and, if need be, init_args")
    if "class_path" not in one:
        return default, dict(one.get("init_args") or {})
    path = str(one["class_path"])
    of_ray = {name: kind for name, kind in vars(module).items() if inspect.isclass(kind)}
    names = of_ray | dict(known)
    kind = names.get(path) or _imported(path)
    if kind is None:
        raise InputError(f"{what} {path!r} is not known{nearest(path.rpartition('.')[2], names)}; give its class_path")
    return kind, dict(one.get("init_args") or {})


def _imported(path: str) -> type | None:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if inspect.isclass(found) else None


def _built(kind: Callable[..., Any], given: dict[str, Any], what: str) -> Any:
    accepted = inspect.signature(kind).parameters
    unknown = [name for name in given if name not in accepted]
    if unknown:
        raise InputError(f"{what} {kind.__name__} has no option {unknown[0]!r}{nearest(unknown[0], accepted)}")
    try:
        return kind(**given)
    except Exception as error:  # Ray's and others' have many
        raise InputError(f"{what} {kind.__name__}: {error}") from error
