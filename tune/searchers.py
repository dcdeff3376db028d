"""Searchers, which say which setting is tried next: a sampler of Optuna's, a grid, or one of Ray Tune's."""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import product
from typing import Any, Protocol

import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.trial import Trial, TrialState, create_trial
from ray.tune.search import BasicVariantGenerator
from ray.tune.search import Searcher as RaySearcher
from ray.tune.search.optuna import OptunaSearch
from ray.tune.utils import flatten_dict

from lit_cfl.errors import InputError
from lit_cfl.seeds import derive
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.ray_classes import built, domains, named_class
from lit_cfl.tune.record import FAILED_STATUS, FINISHED_STATUS, ROUNDS, STOPPED_STATUS, TrialRecord
from lit_cfl.tune.schedulers import is_population_based
from lit_cfl.tune.spaces import Space, corners
from lit_cfl.tune.study import Study

_SEARCHERS = {"BasicVariantGenerator": BasicVariantGenerator, "OptunaSearch": OptunaSearch}
_SEEDS = ("seed", "random_state", "random_state_seed", "random_seed")  # names of one thing in Ray's searchers
_OURS = {
    **dict.fromkeys(("space", "metric", "mode", "storage"), "the study says it"),
    **dict.fromkeys(("points_to_evaluate", "evaluated_rewards"), "write the study's points"),
    "max_concurrent": "limits.concurrent says it",
}


class NotYet(Exception):  # noqa: N818 - no error: it is asked again
    """A searcher waits for results before it says which setting is next."""


class Searcher(Protocol):
    """Says which setting is tried next."""

    learns: bool  # whether that depends on how earlier trials ended

    def ask(self, number: int) -> dict[str, Any] | None:
        """Returns the values of its setting of this number, from 0; None where it has no further one.

        Raises:
            NotYet: it waits for results of trials that go on.
        """

    def add(self, number: int | None, values: Mapping[str, Any], result: TrialRecord) -> None:
        """Takes the result of a setting.

        Args:
            number: that it was asked for with; None where it was not.
            values: of the setting.
            result: of the trial that was trained with it.
        """


def searcher(study: Study, space: Space, objective: Objective | None = None) -> Searcher:
    """Makes the searcher, seeded.

    Raises:
        InputError: neither Ray Tune's nor a sampler of Optuna's; options that it does not take; one that a grid, PBT
            or two objectives cannot use.
    """
    default = BasicVariantGenerator if study.second_metric is None else OptunaSearch
    objective = objective or Objective(second=study.second_metric)
    kind, given = named_class(study.searcher, "searcher", default, _SEARCHERS)
    _require_usable(kind, given, study, space)
    if space.grid:
        return Grid(space)
    if issubclass(kind, RaySearcher) and not issubclass(kind, OptunaSearch):
        return OfRay(kind, given, study.search_seed, space, objective)
    if issubclass(kind, BasicVariantGenerator):
        kind = RandomSampler
    sampler: Any = TPESampler if issubclass(kind, OptunaSearch) else kind
    return Optuna(sampler, given, study.search_seed, space, objective)


def _require_usable(kind: type, given: Mapping[str, Any], study: Study, space: Space) -> None:
    if not issubclass(kind, (BaseSampler, RaySearcher, BasicVariantGenerator)):
        raise InputError(
            f"searcher {kind.__name__} is neither a searcher of Ray Tune's nor a sampler of Optuna's; give, for "
            "example, OptunaSearch or optuna.samplers.QMCSampler"
        )
    if not issubclass(kind, BasicVariantGenerator) and (space.grid or is_population_based(study)):
        what = "a grid" if space.grid else "population based training"
        raise InputError(f"{what} draws its own values; leave out searcher {kind.__name__}")
    if study.second_metric is not None and issubclass(kind, RaySearcher) and not issubclass(kind, OptunaSearch):
        raise InputError(f"searcher {kind.__name__} is given one objective only; take OptunaSearch for two")
    ours = next((name for name in given if name in _OURS), None)
    if ours is not None:
        raise InputError(f"searcher {kind.__name__}: leave out {ours!r}: {_OURS[ours]}")
    if space.grid and given:
        raise InputError(f"searcher {kind.__name__}: leave out {next(iter(given))!r}: a grid takes no options")
    if issubclass(kind, CmaEsSampler) and find_spec("cmaes") is None:
        raise InputError(f"searcher {kind.__name__} needs a package: pip install cmaes")
    if issubclass(kind, CmaEsSampler) and study.second_metric is not None:
        raise InputError(f"searcher {kind.__name__} is given one objective only; take OptunaSearch for two")


class Grid:
    """Every combination, one after another."""

    learns = False

    def __init__(self, space: Space) -> None:
        values = [corners(p.distribution) for p in space.parameters]
        self._points = [dict(zip([p.key for p in space.parameters], point, strict=True)) for point in product(*values)]

    def ask(self, number: int) -> dict[str, Any] | None:
        return self._points[number] if number < len(self._points) else None

    def add(self, number: int | None, values: Mapping[str, Any], result: TrialRecord) -> None:
        pass


class Optuna:
    """A sampler of Optuna's.

    A trial that was stopped early counts as pruned, with the round and the figure it came to, and a failed one as
    pruned with none: TPE ranks both behind all trials that ran to their end. Its random numbers are those of the
    setting's number, so that a resumed study goes on as one that was never killed.
    """

    def __init__(
        self, kind: type[BaseSampler], given: Mapping[str, Any], seed: int, space: Space, objective: Objective
    ) -> None:
        self._kind, self._given, self._space, self._objective = kind, given, space, objective
        self._seed = given.get("seed", seed)
        self.learns = kind is not RandomSampler
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(directions=objective.directions, sampler=self._sampler(0))
        self._asked: dict[int, Trial] = {}  # whose result it does not know yet

    def _sampler(self, number: int) -> BaseSampler:
        seeds = inspect.signature(self._kind).parameters.keys() & {"seed"}
        drawn = derive(self._seed, "search", number) % 2**32
        sampler: BaseSampler = built(self._kind, {**self._given, **dict.fromkeys(seeds, drawn)}, "searcher")
        return sampler

    def ask(self, number: int) -> dict[str, Any] | None:
        self._study.sampler = self._sampler(number)
        self._asked[number] = self._study.ask()
        return self._space.suggested(self._asked[number])

    def add(self, number: int | None, values: Mapping[str, Any], result: TrialRecord) -> None:
        over = result.status == FINISHED_STATUS
        state = TrialState.COMPLETE if over else TrialState.PRUNED
        figures = [float(result.told[metric]) for metric in self._objective.metrics] if over else None
        steps = (
            {int(result.told[ROUNDS]): float(result.told[self._objective.metric])}
            if self._has_early_figure(result)
            else {}
        )
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
        with suppress(RuntimeError):  # BruteForceSampler would end a study of Optuna's own when all has been tried
            self._study.tell(asked, figures, state)

    def _has_early_figure(self, result: TrialRecord) -> bool:
        """Says whether an only objective has a figure of a trial that was stopped early."""
        reported = result.status == STOPPED_STATUS and self._objective.metric in result.told
        return reported and len(self._objective.metrics) == 1


class OfRay:
    """One of Ray Tune's searchers. Its own state is not kept: a resumed study tells it of all trials again."""

    learns = True

    def __init__(
        self, kind: type[RaySearcher], given: Mapping[str, Any], seed: int, space: Space, objective: Objective
    ) -> None:
        seeds = {name: seed for name in _SEEDS if name in inspect.signature(kind).parameters}
        self._searcher: RaySearcher = built(kind, {**seeds, **given}, "searcher")
        try:
            self._searcher.set_search_properties(objective.metric, objective.mode, domains(space))
        except ValueError as error:  # it knows no such parameters
            raise InputError(f"searcher {kind.__name__}: {error}; take another one, such as OptunaSearch") from error
        self._space, self._metric = space, objective.metric
        self._asked: set[int] = set()

    def ask(self, number: int) -> dict[str, Any] | None:
        values: Any = self._searcher.suggest(str(number))
        if values is None:
            raise NotYet
        if values == RaySearcher.FINISHED:
            return None
        self._asked.add(number)
        return self._space.values_of(flatten_dict(values))

    def add(self, number: int | None, values: Mapping[str, Any], result: TrialRecord) -> None:
        over, figure = result.status == FINISHED_STATUS, result.told.get(self._metric)
        if number in self._asked:
            told = {self._metric: figure} if over else None  # else it would take the last figure for the final one
            self._searcher.on_trial_complete(str(number), result=told, error=result.status == FAILED_STATUS)
        elif over and figure is not None:
            with suppress(NotImplementedError, TypeError):  # not every searcher can be told of what it did not ask
                self._searcher.add_evaluated_point(dict(values), figure)
