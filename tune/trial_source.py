"""The trials of a study as Ray Tune asks for them, and hears of them."""

import copy
from collections.abc import Mapping
from typing import Any

from ray.tune.experiment import Experiment, Trial
from ray.tune.experiment.config_parser import _create_trial_from_spec, _make_parser
from ray.tune.search import SearchAlgorithm

from lit_cfl.tune.objective import TRAFFIC
from lit_cfl.tune.replay import kept_stages
from lit_cfl.tune.reporting import ERROR, FINISHED, ROUNDS, SECONDS
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
        record = None if self._finished else self._trials.next()
        if record is None:
            return None
        stages = kept_stages(self._trials.folder / record.trial_id)  # of population based training, after a resume
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
        self._trials.ended(int(trial_id), _figures(result or {}), died=error, values=self._values(trial_id))

    def _values(self, trial_id: str) -> dict[str, Any]:
        """Of a trial now: population based training changes them."""
        return self._space.values_of(self._begun[trial_id].config)


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key in _KEPT or key.startswith(_KEPT_GROUPS)}
