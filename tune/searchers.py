"""The searcher of a study, which chooses the next setting to try: a sampler of Optuna."""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.trial import Trial, TrialState, create_trial

from lit_cfl.errors import InputError
from lit_cfl.seeds import derive
from lit_cfl.tune.named_classes import find_class, instantiate
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.record import FINISHED_STATUS, ROUNDS, STOPPED_STATUS, TrialRecord
from lit_cfl.tune.spaces import Space
from lit_cfl.tune.study import Study

_BASES = ("BaseSampler", "BaseGASampler", "PartialFixedSampler")  # cannot be named: they need a subclass or a sampler
_SAMPLERS: dict[str, type[BaseSampler]] = {
    name: getattr(optuna.samplers, name)
    for name in optuna.samplers.__all__
    if name.endswith("Sampler") and name not in (*_BASES, "GridSampler")  # a space has its own grids
}


def make_searcher(study: Study, objective: Objective | None = None) -> "Searcher | None":
    """Makes the searcher of a study; None for a grid, of which all points are tried.

    Raises:
        InputError: the class is not a sampler of Optuna, an option is unknown, or the sampler does not suit a grid or
            two objectives.
    """
    space = study.search_space
    default = RandomSampler if study.second_metric is None else TPESampler
    kind, given = find_class(study.searcher, "searcher", default, _SAMPLERS)
    if space.grid and (given or kind is not RandomSampler):
        raise InputError(f"a grid tries all its values without a searcher; leave out searcher {kind.__name__}")
    if issubclass(kind, CmaEsSampler) and find_spec("cmaes") is None:
        raise InputError(f"searcher {kind.__name__} needs a package: pip install cmaes")
    if issubclass(kind, CmaEsSampler) and study.second_metric is not None:
        raise InputError(f"searcher {kind.__name__} can optimize one objective only; use TPESampler for two")
    objective = objective or Objective(second=study.second_metric)
    return None if space.grid else Searcher(kind, given, study.search_seed, space, objective)


class Searcher:
    """Chooses the next setting to try, by a sampler of Optuna.

    A trial that was stopped early counts as pruned, with its last round and value, and a failed one as pruned without
    a value: TPE ranks both after all finished trials. The random numbers follow from the setting's number, so that a
    resumed study continues as one that was never killed.

    Args:
        kind, given: Class of the sampler and its arguments.
        seed: Seed unless `given` has one.
        space: Space of the settings.
        objective: Objective by which settings are compared.
    """

    def __init__(
        self, kind: type[BaseSampler], given: Mapping[str, Any], seed: int, space: Space, objective: Objective
    ) -> None:
        self._kind, self._given, self._space, self._objective = kind, given, space, objective
        self._seed = given.get("seed", seed)
        if type(self._seed) is not int:
            raise InputError(f"searcher: seed is {self._seed!r}; give a whole number")
        self.learns = kind is not RandomSampler  # True if a choice depends on earlier results
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(directions=objective.directions, sampler=self._sampler(0))
        self._asked: dict[int, Trial] = {}  # trials without a result so far, by number

    def _sampler(self, number: int) -> BaseSampler:
        seeds = inspect.signature(self._kind).parameters.keys() & {"seed"}
        drawn = derive(self._seed, "search", number) % 2**32
        sampler: BaseSampler = instantiate(self._kind, {**self._given, **dict.fromkeys(seeds, drawn)}, "searcher")
        return sampler

    def ask(self, number: int) -> dict[str, Any]:
        """Returns the values of the setting with this number; numbers start at 0."""
        self._study.sampler = self._sampler(number)
        self._asked[number] = self._study.ask()
        return self._space.suggest_setting(self._asked[number])

    def add(self, number: int | None, values: Mapping[str, Any], result: TrialRecord) -> None:
        """Reports the result of a setting to Optuna.

        Args:
            number: Number passed to `ask` for this setting; None if the searcher was not asked for it.
            values: Values of the setting.
            result: Trial that was trained with this setting.
        """
        over = result.status == FINISHED_STATUS
        state = TrialState.COMPLETE if over else TrialState.PRUNED
        figures = [float(result.last_result[metric]) for metric in self._objective.metrics] if over else None
        metric, steps = self._objective.metric, {}
        if result.status == STOPPED_STATUS and metric in result.last_result and self._objective.second is None:
            steps = {int(result.last_result[ROUNDS]): float(result.last_result[metric])}
        asked = None if number is None else self._asked.pop(number, None)
        if asked is None:
            known = self._space.of_setting(values)
            self._study.add_trial(
                create_trial(
                    state=state,
                    params=dict(values),
                    distributions=known,
                    values=figures,
                    intermediate_values=steps,
                )
            )
            return
        for rounds, figure in steps.items():
            asked.report(figure, rounds)
        # once all settings were tried, BruteForceSampler stops Optuna's own loop; outside of one, this raises
        with suppress(RuntimeError):
            self._study.tell(asked, figures, state)
