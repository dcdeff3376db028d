"""From a study to one of Ray Tune's schedulers, which count rounds."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from ray.tune import schedulers as ray_schedulers
from ray.tune.schedulers import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)

from lit_cfl.errors import InputError
from lit_cfl.tune.classes import built, named_class
from lit_cfl.tune.domains import domain
from lit_cfl.tune.reporting import ROUNDS
from lit_cfl.tune.spaces import Integers, OneOf, Parameter, Space, as_plain
from lit_cfl.tune.study import Study

_SCHEDULERS = {
    name: kind
    for name, kind in vars(ray_schedulers).items()
    if inspect.isclass(kind) and issubclass(kind, FIFOScheduler)
}


def is_population_based(study: Study) -> bool:
    """Whether trials copy each other."""
    return issubclass(_class(study)[0], PopulationBasedTraining)


def watches(study: Study) -> bool:
    """Whether the scheduler judges trials by their rounds."""
    return _class(study)[0] is not FIFOScheduler


def pauses(study: Study) -> bool:
    """Whether the scheduler may put trials aside and go on with them later."""
    return _class(study)[0] not in (ASHAScheduler, AsyncHyperBandScheduler, FIFOScheduler)


def scheduler(study: Study, space: Space, rounds: int, first_clustering_round: int) -> TrialScheduler:
    """The scheduler.

    Args:
        rounds: T of the base.
        first_clustering_round: of the algorithms; no trial is stopped, or given another's models, before it has ended.

    Raises:
        InputError: none of Ray Tune's, options that it does not take, a space that it cannot search, a first decision
            that would come too early.
    """
    kind, given = _class(study)
    grace = first_clustering_round + 1
    ours: dict[str, Any] = {"time_attr": ROUNDS, "max_t": rounds, "grace_period": grace}
    ours["stop_last_trials"] = False  # HyperBand would stop its winners after some power of 3, short of their end
    if issubclass(kind, ASHAScheduler):
        ours["grace_period"] = min(rounds, max(grace, -(-rounds // 4)))
    if issubclass(kind, PopulationBasedTraining):
        _require_evolvable(study, space)
        ours |= _of_population(space, rounds, grace)
    accepted = inspect.signature(kind).parameters
    for option in ("grace_period", "burn_in_period"):
        if option in accepted:
            _require_grace(f"{option} is {given.get(option, grace)}", given.get(option, grace), grace)
    chosen: TrialScheduler = built(kind, {k: v for k, v in ours.items() if k in accepted} | given, "scheduler")
    if isinstance(chosen, HyperBandScheduler):
        first = first_halving(chosen)
        _require_grace(f"HyperBand first halves its trials after {first} rounds", first, grace, "take ASHAScheduler")
    return chosen


def _class(study: Study) -> tuple[type, dict[str, Any]]:
    return named_class(study.scheduler, "scheduler", ASHAScheduler, _SCHEDULERS)


def _require_grace(what: str, given: float, least: int, remedy: str = "") -> None:
    if given < least:
        raise InputError(
            f"scheduler: {what}, but an algorithm of this study clusters only in round {least}; "
            f"{remedy or f'give {least} or more'}, or it is stopped before it has begun"
        )


def first_halving(hyperband: HyperBandScheduler) -> float:
    """The rounds after which HyperBand stops trials for the first time; infinite where it never does."""
    brackets = range(1, hyperband._s_max_1)  # bracket 0 runs all its trials to the end
    halving = [hyperband._get_r0(s) for s in brackets]  # type: ignore[no-untyped-call]  # Ray's
    return min((rounds for rounds in halving if rounds > 0), default=float("inf"))


def _of_population(space: Space, rounds: int, grace: int) -> dict[str, Any]:
    return {
        "perturbation_interval": max(grace, rounds // 4),
        "burn_in_period": grace,
        "hyperparam_mutations": {p.key: _mutations(p) for p in space.parameters},
        "custom_explore_fn": partial(within, space),
        "log_config": False,
    }


def _mutations(parameter: Parameter) -> Any:
    """A list, of which a neighbour is taken; or a domain, whose values are multiplied by 0.8 or 1.2."""
    what = parameter.distribution
    return [as_plain(value) for value in what.values] if isinstance(what, OneOf) else domain(what)


def within(space: Space, config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose values were multiplied, back in the space."""
    return dict(config) | {p.key: _nearest(p, config[p.key]) for p in space.parameters}


def _nearest(parameter: Parameter, value: Any) -> Any:
    what = parameter.distribution
    if isinstance(what, OneOf):
        return value
    low, high = what.corners[0], what.corners[-1]
    if not isinstance(what, Integers) and what.step:
        value = round(value / what.step) * what.step
    return min(max(value, low), high)


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
