"""A study as Ray Tune is given it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune as ray_tune
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial

from lit_cfl.tune.leaving import LeaveWhenAsked
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.prepared import Prepared
from lit_cfl.tune.record import FINISHED_STATUS
from lit_cfl.tune.reporting import FINISHED
from lit_cfl.tune.schedulers import scheduler
from lit_cfl.tune.telling import TellOfTrials
from lit_cfl.tune.trial_source import TrialSource
from lit_cfl.tune.trials import Trials

_WORKER_DEATHS = 3  # of one trial, that are survived


def new_tuner(
    prepared: Prepared, trials: Trials, trainable: Any, records: Path, after_step: Callable[[], None]
) -> ray_tune.Tuner:
    """A tuner of a study's trials. What Ray records in its folder is never read again.

    Args:
        after_step: called after each step of Ray's, in which a trial may have ended.
    """
    study, space, limits = prepared.study, prepared.space, prepared.study.limits
    objective = prepared.job.objective
    reached = [r for r in trials.records.values() if r.status == FINISHED_STATUS]
    target = TargetReached(objective, limits.target, [r.told[objective.metric] for r in reached])
    return ray_tune.Tuner(
        trainable,
        tune_config=ray_tune.TuneConfig(
            metric=objective.metric,
            mode=objective.mode,
            search_alg=TrialSource(trials, space),
            scheduler=scheduler(study, space, prepared.rounds, prepared.first_clustering_round),
            time_budget_s=None if limits.minutes is None else 60 * limits.minutes,
            reuse_actors=True,
            trial_dirname_creator=_directory_name,
        ),
        run_config=ray_tune.RunConfig(
            name=records.name,
            storage_path=str(records.parent),
            failure_config=ray_tune.FailureConfig(max_failures=_WORKER_DEATHS),
            checkpoint_config=ray_tune.CheckpointConfig(num_to_keep=4),
            stop=target,
            callbacks=[LeaveWhenAsked(), TellOfTrials(space, objective.metric, trials.limit), AfterStep(after_step)],
            verbose=0,
        ),
    )


def _directory_name(trial: Trial) -> str:
    return str(trial.trial_id)


class AfterStep(Callback):
    """Calls a function after each step of Ray's."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __reduce__(self) -> tuple[type[Callback], tuple[()]]:
        return Callback, ()  # in Ray's records, which nobody reads

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self._call()


class TargetReached(Stopper):
    """Ends a study once a trial that ran to its end is good enough.

    Args:
        objective: of the study.
        target: None = never.
        known: figures of trials that finished before the study was resumed.
    """

    def __init__(self, objective: Objective, target: float | None, known: list[float]) -> None:
        self._objective, self._target = objective, target
        self._reached = target is not None and any(objective.reached(value, target) for value in known)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if self._target is not None and result.get(FINISHED):
            self._reached |= self._objective.reached(result[self._objective.metric], self._target)
        return False

    def stop_all(self) -> bool:
        return self._reached
