"""The scheduler of a study: ASHA or median stopping, which stop bad trials early, or none."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler

from lit_cfl.errors import InputError
from lit_cfl.tune.named_classes import find_class, instantiate
from lit_cfl.tune.record import NUMBER, ROUNDS
from lit_cfl.tune.study import Study

_SCHEDULERS: dict[str, type[TrialScheduler]] = {
    "ASHAScheduler": ASHAScheduler,
    "MedianStoppingRule": MedianStoppingRule,
    "FIFOScheduler": FIFOScheduler,  # never stops a trial
}


def stops_early(study: Study) -> bool:
    """Returns whether the scheduler may stop trials early."""
    return _class(study)[0] is not FIFOScheduler


@dataclass(frozen=True, eq=False)
class EarlierTrial:
    """A trial from before the study was resumed, with the attributes that Ray's schedulers read.

    Args:
        trial_id: Name of the trial.
        config: Number and values of the trial.
        results: Results that the trial reported to the scheduler, in order.
        ended: False if the resumed study continues it.
    """

    trial_id: str
    config: Mapping[str, Any]
    results: Sequence[dict[str, Any]]
    ended: bool


def make_scheduler(
    study: Study, rounds: int, first_clustering_round: int, earlier: Sequence[EarlierTrial] = ()
) -> "SchedulerPerAlgorithm":
    """Makes the scheduler: a separate one per algorithm, since algorithms learn at different speeds.

    Args:
        rounds: T of the base.
        first_clustering_round: The latest first clustering round of all algorithms; no trial is stopped before its
            clusters have trained for a round.
        earlier: Trials of a resumed study, with which the new ones are compared.

    Raises:
        InputError: a study cannot use this scheduler, an option does not exist, or the first decision would come too
            early.
    """
    names = list(study.search_space.algorithms) or [""]
    return SchedulerPerAlgorithm({name: _one(study, rounds, first_clustering_round) for name in names}, earlier)


def _one(study: Study, rounds: int, first_clustering_round: int) -> TrialScheduler:
    kind, given = _class(study)
    # right after the clustering, clusters may still share a model (FL+HC, CFL)
    least = min(rounds, first_clustering_round + 2) if first_clustering_round else 1
    grace = given.get("grace_period", least)
    if isinstance(grace, (int, float)) and grace < least:
        raise InputError(
            f"scheduler: grace_period is {grace}, but an algorithm of this study clusters only in "
            f"round {first_clustering_round + 1}; give {least} or more, or trials would be stopped before their "
            "clusters train"
        )
    if given.get("hard_stop") is False:
        raise InputError("scheduler: hard_stop is False, but trials cannot be paused; leave it out")
    ours: dict[str, Any] = {"time_attr": ROUNDS, "max_t": rounds}
    ours["grace_period"] = min(rounds, max(least, -(-rounds // 4)))
    accepted = inspect.signature(kind).parameters
    chosen: TrialScheduler = instantiate(kind, {k: v for k, v in ours.items() if k in accepted} | given, "scheduler")
    return chosen


def _class(study: Study) -> tuple[type[TrialScheduler], dict[str, Any]]:
    default = ASHAScheduler if study.second_metric is None else FIFOScheduler
    return find_class(study.scheduler, "scheduler", default, _SCHEDULERS)


class SchedulerPerAlgorithm(FIFOScheduler):
    """Judges the trials of each algorithm by a separate scheduler, and never stops the default setting.

    Args:
        of_algorithm: The schedulers by the algorithm's name in a trial's setting; empty with only one algorithm.
        earlier: Trials of a resumed study. The results of those that have ended are repeated to the schedulers at the
            start, those of the others when Ray adds them again.
    """

    def __init__(self, of_algorithm: Mapping[str, TrialScheduler], earlier: Sequence[EarlierTrial] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Ray's
        self.of_algorithm = dict(of_algorithm)
        self._free = FIFOScheduler()  # type: ignore[no-untyped-call]  # Ray's
        self._ended: list[Any] = [trial for trial in earlier if trial.ended]
        self._continued = {trial.config[NUMBER]: trial for trial in earlier if not trial.ended and trial.results}
        self._repeated: dict[int, tuple[int, str]] = {}  # last repeated round and the decision on it, by trial number

    def of(self, trial: Trial | EarlierTrial) -> TrialScheduler:
        """Returns the scheduler of a trial."""
        return self.of_algorithm[str(trial.config.get("algorithm", ""))] if trial.config[NUMBER] else self._free

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        taken = super().set_search_properties(metric, mode, **spec)
        done = [one.set_search_properties(metric, mode, **spec) for one in self.of_algorithm.values()]
        for trial in self._ended:
            self.of(trial).on_trial_add(_NO_TRIALS, trial)
            self._repeat(trial, trial.results)
            for last in trial.results[-1:]:
                self.of(trial).on_trial_complete(_NO_TRIALS, trial, last)
        return taken and all(done)

    def _repeat(self, trial: Any, results: Sequence[dict[str, Any]]) -> None:
        """Replays a trial's earlier results to the scheduler of a resumed study, ignoring its decisions."""
        one = self.of(trial)
        # median stopping accepts no result after a decision to stop, whereas `on_trial_complete` only adds the result
        repeat = one.on_trial_complete if isinstance(one, MedianStoppingRule) else one.on_trial_result
        for result in results:
            repeat(_NO_TRIALS, trial, result)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self.of(trial).on_trial_add(_NO_TRIALS, trial)
        before = self._continued.pop(trial.config[NUMBER], None)
        if before is not None:  # the study may have been killed before the decision on the last result
            self._repeat(trial, before.results[:-1])
            last = before.results[-1]
            decision = self.of(trial).on_trial_result(_NO_TRIALS, trial, last)
            self._repeated[before.config[NUMBER]] = last[ROUNDS], str(decision)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self.of(trial).on_trial_error(_NO_TRIALS, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        repeated, decision = self._repeated.get(trial.config[NUMBER], (0, self.CONTINUE))
        # after a resume, a trial repeats the rounds since its last checkpoint
        if decision == self.STOP or result[ROUNDS] <= repeated:
            return decision
        return str(self.of(trial).on_trial_result(_NO_TRIALS, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self.of(trial).on_trial_complete(_NO_TRIALS, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self.of(trial).on_trial_remove(_NO_TRIALS, trial)


class _NoTrials:
    """Stand-in for Ray's controller without live trials, so that a scheduler pauses no trial in favour of another."""

    def get_live_trials(self) -> set[Trial]:
        return set()


_NO_TRIALS: Any = _NoTrials()
