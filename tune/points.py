"""Settings tried by any searcher: the base's own, and the points listed in the study's file."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from optuna.distributions import CategoricalDistribution, IntDistribution

from lit_cfl.config.variants import build
from lit_cfl.errors import InputError, prefix_errors, suggest
from lit_cfl.experiment import Experiment
from lit_cfl.tune.record import DEFAULT, POINT
from lit_cfl.tune.spaces import Distribution, Space, as_plain, as_word, contains, decimal
from lit_cfl.tune.study import Study
from lit_cfl.tune.trials import GivenSetting


def parse_points(study: Study) -> list[dict[str, Any]]:
    """Parses a study's points into searcher values. Raises InputError for a point outside the space."""
    points, found = study.points or [], []
    if not isinstance(points, list):
        raise InputError(f"points is {points!r}; write a list of settings, such as [{{algorithm.eta_g: 0.1}}]")
    for number, point in enumerate(points):
        with prefix_errors(f"points: number {number + 1}, {point!r}"):
            found.append(_parsed(point, study.searched))
    return found


def _parsed(point: Any, space: Space) -> dict[str, Any]:
    if not isinstance(point, Mapping):
        raise InputError("give a value for each name of the space, such as {algorithm.eta_g: 0.1}")
    found: dict[str, Any] = {}
    if space.algorithms:
        if point.get("algorithm") not in space.algorithms:
            raise InputError(f"algorithm is {point.get('algorithm')!r}; give one of {', '.join(space.algorithms)}")
        found["algorithm"] = point["algorithm"]
    parameters = space.of(str(found.get("algorithm", "")))
    _require_known(point, [*found, *(p.key for p in parameters)])
    for p in parameters:
        if p.matters(found):
            if p.key not in point:
                raise InputError(f"it leaves out {p.key}; give a value for each name that matters")
            found[p.key] = _inside(p.key, p.distribution, point[p.key])
    _require_known(point, list(found))  # without those that are irrelevant at its other values
    return found


def _require_known(point: Mapping[Any, Any], names: Sequence[str]) -> None:
    unknown = [str(name) for name in point if name not in names]
    if unknown:
        raise InputError(f"it has {unknown[0]!r}, which is not searched there{suggest(unknown[0], names)}")


def _inside(name: str, what: Distribution, value: Any) -> Any:
    """Returns a value in the searcher's form. Raises InputError if it is outside the space."""
    if isinstance(what, CategoricalDistribution):
        known = [one for one in what.choices if as_word(one) == as_word(value)]
        if not known:
            raise InputError(f"{name} is {value!r}; the space has {', '.join(as_word(one) for one in what.choices)}")
        return known[0]
    whole = isinstance(what, IntDistribution)
    if not (type(value) is int or (type(value) is float and not whole)) or not contains(what, value):
        steps = "" if whole or not what.step else f" in steps of {what.step}"
        raise InputError(f"{name} is {value!r}; the space has {what.low} to {what.high}{steps}")
    return value if isinstance(what, IntDistribution) else decimal(float(value), what)


def default_setting(study: Study, default: Experiment) -> GivenSetting:
    """Finds the base's values of the searched options, and whether they lie in the space.

    They do if a trial with these values would be exactly the base's experiment.
    """
    space, described = study.searched, default.described()
    chosen = {"algorithm": _name(space, described)} if space.algorithms else {}
    values = dict(chosen)
    for p in space.of(str(chosen.get("algorithm", ""))):
        with suppress(LookupError):
            values[p.key] = _value(described, p.option)
    with suppress(InputError):
        point = _parsed(space.values_of(values), space)
        if build(study.whole_base, space.words(point)).described() == described:
            return GivenSetting(DEFAULT, point)
    own = space.values_of(values)
    return GivenSetting(DEFAULT, {key: as_plain(value) for key, value in own.items()}, inside=False)


def _name(space: Space, described: Mapping[str, Any]) -> str:
    """Names the base's algorithm as in the space, else by its class."""
    path = str(described["algorithm"]["class_path"])
    short = path.rpartition(".")[2]
    return next((name for name in space.algorithms if name == path or name.rpartition(".")[2] == short), short)


def _value(described: Mapping[str, Any], option: str) -> Any:
    """Reads an option's value in a configuration. Raises LookupError if it has none."""
    node: Any = described
    for word in option.split("."):
        if not isinstance(node, Mapping):
            raise LookupError(option)
        node = node[word] if word in node else (node.get("init_args") or {})[word]
    return node


def first_settings(study: Study, default: Experiment) -> list[GivenSetting]:
    """Lists the settings that a study tries first: the default, then its points."""
    points = [GivenSetting(POINT, values) for values in parse_points(study)]
    return [default_setting(study, default), *points]
