"""A study as Ray Tune gets it: the tuner, and the source of its trials."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import tune as ray_tune
from ray.tune.experiment import Experiment, Trial
from ray.tune.experiment.config_parser import _create_trial_from_spec, _make_parser
from ray.tune.search import SearchAlgorithm

from lit_cfl.tune.callbacks import EndOfStudy, StudyCallback, full_disk_ends_study
from lit_cfl.tune.check import PreparedStudy
from lit_cfl.tune.objective import TRAFFIC
from lit_cfl.tune.population import recorded_stages
from lit_cfl.tune.record import ERROR, FINISHED, FINISHED_STATUS, ROUNDS, SECONDS
from lit_cfl.tune.schedulers import scheduler
from lit_cfl.tune.spaces import Space
from lit_cfl.tune.trials import Trials

_KEPT = (ROUNDS, FINISHED, ERROR, SECONDS, TRAFFIC)
_KEPT_GROUPS = ("val/", "seed ")


class TrialSource(SearchAlgorithm):
    """Gives Ray Tune the trials of a study, under their own names.

    Args:
        trials: of the study.
        space: of their values.
    """

    def __init__(self, trials: Trials, space: Space) -> None:
        self._trials, self._space = trials, space
        self._begun: dict[str, Trial] = {}

    def __reduce__(self) -> tuple[type[SearchAlgorithm], tuple[()]]:
        return SearchAlgorithm, ()  # in Ray's records, which nobody reads

    @property
    def total_samples(self) -> int:
        return self._trials.limit

    def add_configurations(self, experiments: Any) -> None:
        experiment: Experiment = experiments[0] if isinstance(experiments, list) else experiments
        self._spec = experiment.spec

    def next_trial(self) -> Trial | None:
        with full_disk_ends_study():
            record = None if self._finished else self._trials.next()
        if record is None:
            return None
        stages = recorded_stages(self._trials.folder / record.trial_id)  # of population based training, after a resume
        spec = copy.deepcopy(self._spec) | {"config": dict(stages[-1][1] if stages else record.values)}
        self._begun[record.trial_id] = _create_trial_from_spec(
            spec,
            _make_parser(),
            evaluated_params=record.values,
            experiment_tag=record.trial_id,
            trial_id=record.trial_id,
        )
        return self._begun[record.trial_id]

    def is_finished(self) -> bool:
        return self._finished or self._trials.over

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._trials.told(int(trial_id), _figures(result), values=self._values(trial_id))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        with full_disk_ends_study():
            self._trials.ended(int(trial_id), _figures(result or {}), died=error, values=self._values(trial_id))

    def _values(self, trial_id: str) -> dict[str, Any]:
        """Returns the values of a trial now: population based training changes them."""
        return self._space.values_of(self._begun[trial_id].config)


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key in _KEPT or key.startswith(_KEPT_GROUPS)}


_WORKER_DEATHS = 3  # of one trial, that are survived


def new_tuner(
    prepared: PreparedStudy,
    trials: Trials,
    trainable: Any,
    records: Path,
    say: Callable[[str], None],
    after_step: Callable[[], None],
) -> ray_tune.Tuner:
    """Makes the tuner of a study's trials. What Ray records in its folder is never read again.

    Args:
        say, after_step: see `StudyCallback`.
    """
    study, space, limits = prepared.study, prepared.space, prepared.study.limits
    objective = prepared.job.objective
    reached = [r for r in trials.records.values() if r.status == FINISHED_STATUS]
    end = EndOfStudy(objective, limits.target, [r.told[objective.metric] for r in reached])
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
            stop=end,
            callbacks=[StudyCallback(space, objective.metric, trials.num_over, trials.limit, say, after_step)],
            verbose=0,
        ),
    )


def _directory_name(trial: Trial) -> str:
    return str(trial.trial_id)
