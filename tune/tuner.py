"""A study as Ray Tune is given it."""

from pathlib import Path
from typing import Any

from ray import tune as ray_tune
from ray.tune import Stopper
from ray.tune.experiment import Trial
from ray.tune.search import BasicVariantGenerator

from lit_cfl.tune.domains import domains
from lit_cfl.tune.leaving import LeaveWhenAsked
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.prepared import Prepared
from lit_cfl.tune.reporting import FINISHED
from lit_cfl.tune.schedulers import scheduler
from lit_cfl.tune.searchers import searcher
from lit_cfl.tune.spaces import Space
from lit_cfl.tune.telling import TellOfTrials

_WORKER_DEATHS = 3  # of one trial, that are survived


def new_tuner(prepared: Prepared, trainable: Any, records: Path) -> ray_tune.Tuner:
    """A tuner that has not begun; its records go to a folder."""
    study, space, limits = prepared.study, prepared.space, prepared.study.limits
    objective = prepared.job.objective
    chosen = searcher(study, space, objective)
    return ray_tune.Tuner(
        trainable,
        param_space=_left_to_ray(space, chosen),
        tune_config=ray_tune.TuneConfig(
            metric=objective.metric,
            mode=objective.mode,
            search_alg=chosen,
            scheduler=scheduler(study, space, prepared.rounds, prepared.first_clustering_round),
            num_samples=1 if space.grid else study.num_trials,
            max_concurrent_trials=None if isinstance(chosen, BasicVariantGenerator) else limits.concurrent,
            time_budget_s=None if limits.minutes is None else 60 * limits.minutes,
            reuse_actors=True,
            trial_dirname_creator=_directory_name,
        ),
        run_config=ray_tune.RunConfig(
            name=records.name,
            storage_path=str(records.parent),
            failure_config=ray_tune.FailureConfig(max_failures=_WORKER_DEATHS),
            checkpoint_config=ray_tune.CheckpointConfig(num_to_keep=4),
            stop=TargetReached(objective, limits.target),
            callbacks=[LeaveWhenAsked(), TellOfTrials(space, objective.metric, study.num_trials)],
            verbose=0,
        ),
    )


def restored_tuner(prepared: Prepared, trainable: Any, records: Path) -> ray_tune.Tuner:
    """A tuner that goes on from its records."""
    space = _left_to_ray(prepared.space, searcher(prepared.study, prepared.space, prepared.job.objective))
    return ray_tune.Tuner.restore(str(records), trainable=trainable, param_space=space)


def _left_to_ray(space: Space, chosen: Any) -> dict[str, Any]:
    """The domains, unless the searcher knows them itself."""
    conditional = space.conditional and getattr(chosen, "_space", None) is not None
    return {} if conditional else domains(space)


def _directory_name(trial: Trial) -> str:
    return str(trial.trial_id)


class TargetReached(Stopper):
    """Ends a study once a trial that ran to its end is good enough."""

    def __init__(self, objective: Objective, target: float | None) -> None:
        self._objective, self._target, self._reached = objective, target, False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if self._target is not None and result.get(FINISHED):
            self._reached |= self._objective.reached(result[self._objective.metric], self._target)
        return False

    def stop_all(self) -> bool:
        return self._reached
