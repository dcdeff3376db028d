"""From a study to one of Ray Tune's schedulers, which count rounds."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution
from ray.tune import schedulers as ray_schedulers
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)

from lit_cfl.errors import InputError
from lit_cfl.tune.ray_classes import built, domain, named_class
from lit_cfl.tune.record import ERROR, FINISHED, ROUNDS, trial_id
from lit_cfl.tune.spaces import Parameter, Space, decimal
from lit_cfl.tune.study import Study

_OF_OTHERS = ("HyperBandForBOHB", "PopulationBasedTrainingReplay")  # of a searcher that pauses; of one trial alone
_SCHEDULERS = {
    name: kind
    for name, kind in vars(ray_schedulers).items()
    if inspect.isclass(kind) and issubclass(kind, FIFOScheduler) and name not in _OF_OTHERS
}


def is_population_based(study: Study) -> bool:
    """Says whether trials copy each other."""
    return issubclass(_class(study)[0], PopulationBasedTraining)


def watches(study: Study) -> bool:
    """Says whether the scheduler judges trials by their rounds."""
    return _class(study)[0] is not FIFOScheduler


def pauses(study: Study) -> bool:
    """Says whether the scheduler may put trials aside and go on with them later."""
    return _class(study)[0] not in (ASHAScheduler, AsyncHyperBandScheduler, FIFOScheduler)


def scheduler(study: Study, space: Space, rounds: int, first_clustering_round: int) -> "SchedulerPerAlgorithm":
    """Makes the scheduler: one of the study's kind for each algorithm, which learn at different speed.

    Args:
        rounds: T of the base.
        first_clustering_round: of the algorithms; no trial is stopped, or given another's models, before it has ended.

    Raises:
        InputError: none of Ray Tune's, options that it does not take, a space that it cannot search, a first decision
            that would come too early.
    """
    names = list(space.algorithms) or [""]
    return SchedulerPerAlgorithm({name: _one(study, space, rounds, first_clustering_round) for name in names})


def _one(study: Study, space: Space, rounds: int, first_clustering_round: int) -> TrialScheduler:
    kind, given = _class(study)
    _require_all_at_once(study, kind)
    grace = first_clustering_round + 1
    ours: dict[str, Any] = {"time_attr": ROUNDS, "max_t": rounds, "grace_period": grace}
    ours["stop_last_trials"] = False  # HyperBand would stop its winners after some power of 3, short of their end
    if issubclass(kind, (ASHAScheduler, MedianStoppingRule)):
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


class SchedulerPerAlgorithm(TrialScheduler):
    """A scheduler for each algorithm, which sees the trials of this algorithm alone; none judges the default setting.

    Args:
        of_algorithm: by the name that a trial's setting has; of one algorithm alone it is empty.
    """

    def __init__(self, of_algorithm: Mapping[str, TrialScheduler]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Ray's
        self.of_algorithm = dict(of_algorithm)
        self._free = FIFOScheduler()  # type: ignore[no-untyped-call]  # Ray's

    @property
    def _all(self) -> list[TrialScheduler]:
        return [self._free, *self.of_algorithm.values()]

    def of(self, trial: Trial) -> TrialScheduler:
        """Returns the scheduler of a trial."""
        is_default = trial.trial_id == trial_id(0)
        return self._free if is_default else self.of_algorithm[str(trial.config.get("algorithm", ""))]

    def _ask(self, tune_controller: Any, trial: Trial, method: str, *result: dict[str, Any]) -> Any:
        one = self.of(trial)
        return getattr(one, method)(_OwnTrials(tune_controller, self, one), trial, *result)

    @property
    def supports_buffered_results(self) -> bool:
        return all(one.supports_buffered_results for one in self._all)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        self._metric = metric
        done = [one.set_search_properties(metric, mode, **spec) for one in self._all]
        return all(done)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._ask(tune_controller, trial, "on_trial_add")

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._ask(tune_controller, trial, "on_trial_error")
        self._go_on_without(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        over = result.get(FINISHED) or result.get(ERROR)
        if over and isinstance(self.of(trial), PopulationBasedTraining):
            return TrialScheduler.CONTINUE  # else it would go on from another's models, whose rounds are nearly over
        decision = str(self._ask(tune_controller, trial, "on_trial_result", result))
        if isinstance(one := self.of(trial), HyperBandScheduler):
            # Ray leaves this set after the first halving: a trial that ends later would wake none of those that wait.
            one._trial_info[trial][0].is_being_processed = False
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._ask(tune_controller, trial, "on_trial_complete", result)
        self._go_on_without(tune_controller, trial)

    def _go_on_without(self, tune_controller: Any, trial: Trial) -> None:
        """Begins the next cycle of a population that is synchronous, and in which all others wait for this trial."""
        one = self.of(trial)
        if not (isinstance(one, PopulationBasedTraining) and one._synch):
            return
        waiting = _OwnTrials(tune_controller, self, one).get_live_trials() - {trial}
        times = [one._trial_state[other].last_train_time for other in waiting]
        if times and min(times) >= one._next_perturbation_sync:
            one._next_perturbation_sync += one._perturbation_interval

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._ask(tune_controller, trial, "on_trial_remove")

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        seen: list[tuple[TrialScheduler, Any]] = [(one, _OwnTrials(tune_controller, self, one)) for one in self._all]
        chosen = (one.choose_trial_to_run(own) for one, own in seen)
        return min((trial for trial in chosen if trial is not None), key=lambda trial: trial.trial_id, default=None)

    def debug_string(self) -> str:
        return "\n".join(one.debug_string() for one in self._all)


class _OwnTrials:
    """Shows a scheduler everything of Ray's controller, but only its own trials."""

    def __init__(self, tune_controller: Any, groups: SchedulerPerAlgorithm, whose: TrialScheduler) -> None:
        self._tune_controller, self._groups, self._whose = tune_controller, groups, whose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tune_controller, name)

    def get_trials(self) -> list[Trial]:
        return [trial for trial in self._tune_controller.get_trials() if self._groups.of(trial) is self._whose]

    def get_live_trials(self) -> set[Trial]:
        live = self._tune_controller.get_live_trials()  # with trials whose workers died once too often
        return {trial for trial in live if self._groups.of(trial) is self._whose and not trial.is_finished()}


def _class(study: Study) -> tuple[type, dict[str, Any]]:
    default = ASHAScheduler if study.second_metric is None else FIFOScheduler
    kind, given = named_class(study.scheduler, "scheduler", default, _SCHEDULERS)
    if not issubclass(kind, TrialScheduler):
        raise InputError(f"scheduler {kind.__name__} is none of Ray Tune's; give one of {', '.join(_SCHEDULERS)}")
    return kind, given


def _require_grace(what: str, given: float, least: int, remedy: str = "") -> None:
    if given < least:
        raise InputError(
            f"scheduler: {what}, but an algorithm of this study clusters only in round {least}; "
            f"{remedy or f'give {least} or more'}, or it is stopped before it has begun"
        )


def first_halving(hyperband: HyperBandScheduler) -> float:
    """Returns the rounds after which HyperBand stops trials for the first time; infinite where it never does."""
    brackets = range(1, hyperband._s_max_1)  # bracket 0 runs all its trials to the end
    halving = [hyperband._get_r0(s) for s in brackets]  # type: ignore[no-untyped-call]  # Ray's
    return min((rounds for rounds in halving if rounds > 0), default=float("inf"))


def _require_all_at_once(study: Study, kind: type) -> None:
    """Raises InputError where too few trials are begun: one that is paused counts as one that runs."""
    concurrent, trials = study.limits.concurrent, study.num_trials
    compares_paused = issubclass(kind, (HyperBandScheduler, PopulationBasedTraining))
    if compares_paused and concurrent is not None and concurrent < trials:
        raise InputError(
            f"limits.concurrent is {concurrent}, but {kind.__name__} pauses trials to compare all {trials}; leave it "
            "out: resources.cpus says how many run at the same time"
        )


def _of_population(space: Space, rounds: int, grace: int) -> dict[str, Any]:
    return {
        "perturbation_interval": max(grace, rounds // 4),
        "burn_in_period": grace,
        "hyperparam_mutations": {p.key: _mutations(p) for p in space.parameters},
        "custom_explore_fn": partial(within, space),
        "log_config": False,
    }


def _mutations(parameter: Parameter) -> Any:
    """Returns a list, of which a neighbour is taken; or a domain, whose values are multiplied by 0.8 or 1.2."""
    what = parameter.distribution
    return list(what.choices) if isinstance(what, CategoricalDistribution) else domain(what)


def within(space: Space, config: Mapping[str, Any]) -> dict[str, Any]:
    """Moves a configuration whose values were multiplied back into the space."""
    return dict(config) | {p.key: _nearest(p, config[p.key]) for p in space.parameters}


def _nearest(parameter: Parameter, value: Any) -> Any:
    what = parameter.distribution
    if isinstance(what, CategoricalDistribution):
        return value
    if isinstance(what, FloatDistribution) and what.step:
        value = decimal(round(value / what.step) * what.step, what)
    return min(max(value, what.low), what.high)


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
