"""Parses the `space` and the `points` of a study file."""

from collections.abc import Mapping, Sequence
from math import isclose, isfinite
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from lit_cfl.errors import InputError, prefix_errors, suggest
from lit_cfl.tune.spaces import Distribution, Parameter, Space, as_plain, as_word, contains, decimal

_NOT_OF_A_TRIAL = {
    "rounds": "all trials run the base's rounds",
    "seeds": "all trials run under the study's seeds",
    "seed": "all trials run under the study's seeds",
    "baseline": "a study runs no baseline",
    "name": "a trial is named by its number",
    "tracking": "it changes no result",
    "checkpoint": "it changes no result",
}  # options of an experiment that cannot be searched
_KINDS = ("uniform", "loguniform", "randint", "lograndint", "choice", "grid")


def parse_space(content: Mapping[str, Any]) -> Space:
    """Parses the `space` of a study file. Raises InputError for parameters that cannot be searched."""
    if content and not isinstance(content, Mapping):
        raise InputError(
            f"space is {content!r}; write an option and its values, such as algorithm.eta_g: {{uniform: [0, 1]}}"
        )
    if not content:
        raise InputError("space is empty; name at least one option, such as algorithm.eta_g: {uniform: [0, 1]}")
    rest = dict(content)
    several = rest.pop("algorithm", None)
    algorithms, parameters = ({}, []) if several is None else _parse_algorithms(several)
    parameters = [_parameter(str(name), str(name), what) for name, what in rest.items()] + parameters
    misplaced = [p.option for p in parameters if p.option.startswith("algorithm.") and not p.algorithm]
    if algorithms and misplaced:
        raise InputError(
            f"space: {misplaced[0]} is given for all algorithms, but the study chooses among them; write it into the "
            "space of each algorithm that has it"
        )
    for p in parameters:
        if (reason := _NOT_OF_A_TRIAL.get(p.option.partition(".")[0])) is not None:
            raise InputError(f"space: {p.option} cannot be searched: {reason}; leave it out")
    space = Space(tuple(parameters), algorithms)
    _require_whole_grid(space)
    return space


def _parse_algorithms(content: Any) -> tuple[dict[str, Mapping[str, Any]], list[Parameter]]:
    choices = content["choice"] if isinstance(content, Mapping) and set(content) == {"choice"} else None
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise InputError(f"space: algorithm is {content!r}; write algorithm: {{choice: [FedAvg, {{class_path: ...}}]}}")
    algorithms: dict[str, Mapping[str, Any]] = {}
    parameters = []
    for choice in choices:
        one: Any = {"class_path": choice} if isinstance(choice, str) else choice
        known = {"class_path", "init_args", "space"}
        if not isinstance(one, Mapping) or "class_path" not in one or set(one) - known:
            raise InputError(f"space: {choice!r} is not an algorithm; give class_path, and optionally init_args, space")
        name = str(one["class_path"])
        for part in ("init_args", "space"):
            if not isinstance(one.get(part) or {}, Mapping):
                raise InputError(f"space: {part} of {name} is {one[part]!r}; write options below it, one per line")
        if name in algorithms:
            raise InputError(f"space: {name} is listed twice in the choice of algorithms; list it once")
        algorithms[name] = dict(one.get("init_args") or {})
        own = one.get("space") or {}
        twice = [key for key in own if key in algorithms[name]]
        if twice:
            raise InputError(
                f"space: {name}.{twice[0]} is in init_args and in space; leave it out of init_args to search it"
            )
        parameters += [_parameter(f"{name}.{k}", f"algorithm.{k}", what, name) for k, what in own.items()]
    return algorithms, parameters


def _parameter(name: str, option: str, what: Any, algorithm: str = "") -> Parameter:
    kinds = [key for key in what if key != "step"] if isinstance(what, Mapping) else []
    if len(kinds) != 1:
        example = f"{{choice: {what}}}" if isinstance(what, list) else "{uniform: [0, 1]}"
        raise InputError(f"space: {name} is {what!r}; write one of {', '.join(_KINDS)}, such as {example}")
    kind = kinds[0]
    if kind not in _KINDS:
        raise InputError(
            f"space: {name}: {kind!r} is not known{suggest(str(kind), _KINDS)}. Known: {', '.join(_KINDS)}"
        )
    with prefix_errors(f"space: {name}"):
        distribution = _distribution(kind, what[kind], what.get("step"))
    return Parameter(option, distribution, algorithm, grid=kind == "grid")


def _distribution(kind: str, values: Any, step: Any) -> Distribution:
    count = None if kind in ("choice", "grid") else 2
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != (count or len(values)):
        raise InputError(f"{kind} is {values!r}; give a list of {'values' if count is None else '2 numbers'}")
    if step is not None and kind != "uniform":
        raise InputError(f"step is {step!r}, but only uniform takes a step; leave it out")
    if kind in ("choice", "grid"):
        return _one_of(values)
    if kind in ("randint", "lograndint"):
        return _whole_numbers(values[0], values[1], log=kind == "lograndint")
    return _numbers(values[0], values[1], step, log=kind == "loguniform")


def _one_of(values: Sequence[Any]) -> CategoricalDistribution:
    words = [as_word(value) for value in values]
    if not words or len(set(words)) < len(words):
        raise InputError(f"{list(values)} is empty or repeats a value; give one or more different values")
    return CategoricalDistribution([as_plain(value) for value in values])


def _whole_numbers(low: Any, high: Any, log: bool) -> IntDistribution:
    """Makes the distribution of integers from `low` up to, but excluding, `high`, like Python's `range`."""
    if type(low) is not int or type(high) is not int or not low < high:
        raise InputError(
            f"[{low}, {high}] is not a range of whole numbers; give two whole numbers, the lower one first (the "
            "second is not included)"
        )
    if log and low < 1:
        raise InputError(f"lograndint starts at {low}; give 1 or more")
    return IntDistribution(low, high - 1, log=log)


def _numbers(low: Any, high: Any, step: Any, log: bool) -> FloatDistribution:
    """Makes the distribution of numbers in a range, rounded to multiples of `step`; None = no rounding."""
    if not (_is_number(low) and _is_number(high) and low < high):
        raise InputError(f"[{low}, {high}] is not a range; give two numbers, the lower one first")
    if log and not low > 0:
        raise InputError(f"loguniform starts at {low}; give a number above 0")
    if step is None:
        return FloatDistribution(low, high, log=log)
    if not (_is_number(step) and 0 < step <= high - low):
        raise InputError(f"step is {step}; give a number above 0, up to {high - low}")
    if not all(_is_multiple(end, step) for end in (low, high)):
        raise InputError(
            f"step is {step}, but {low} or {high} is not a multiple of it, so a value could be rounded out of the "
            "range; give a range whose ends are multiples of step"
        )
    return FloatDistribution(low, high, step=step)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _is_multiple(value: float, step: float) -> bool:
    return isclose(round(value / step) * step, value, rel_tol=1e-9, abs_tol=1e-12)


def _require_whole_grid(space: Space) -> None:
    if not space.grid:
        return
    if space.algorithms:
        raise InputError(
            "a grid cannot choose among algorithms; write one study per algorithm, or use choice instead of grid"
        )
    for p in space.parameters:
        if not isinstance(p.distribution, CategoricalDistribution):
            raise InputError(f"space: a grid cannot try all values of {p.option}; write {p.option}: {{grid: [...]}}")
        if not p.grid:
            raise InputError(
                f"space: {p.option} is a choice, but another option is a grid; use grid for all, or choice for all"
            )


def parse_points(points: Any, space: Space) -> list[dict[str, Any]]:
    """Parses a study's points into the searcher's form. Raises InputError for a point outside the space."""
    found = []
    if not isinstance(points, list):
        raise InputError(f"points is {points!r}; write a list of settings, such as [{{algorithm.eta_g: 0.1}}]")
    for number, point in enumerate(points):
        with prefix_errors(f"points: number {number + 1}, {point!r}"):
            found.append(parse_point(point, space))
    return found


def parse_point(point: Any, space: Space) -> dict[str, Any]:
    """Parses a setting into the searcher's form. Raises InputError if it is outside the space."""
    if not isinstance(point, Mapping):
        raise InputError("give a value for each name of the space, such as {algorithm.eta_g: 0.1}")
    found: dict[str, Any] = {}
    if space.algorithms:
        if point.get("algorithm") not in space.algorithms:
            raise InputError(f"algorithm is {point.get('algorithm')!r}; give one of {', '.join(space.algorithms)}")
        found["algorithm"] = point["algorithm"]
    parameters = space.of(str(found.get("algorithm", "")))
    names = [*found, *(p.key for p in parameters)]
    unknown = [str(name) for name in point if name not in names]
    if unknown:
        raise InputError(
            f"the point has {unknown[0]!r}, which is not searched there{suggest(unknown[0], names)}; leave it out"
        )
    for p in parameters:
        if p.key not in point:
            raise InputError(f"the point has no value for {p.key}; give one")
        found[p.key] = _inside(p.key, p.distribution, point[p.key])
    return found


def _inside(name: str, what: Distribution, value: Any) -> Any:
    """Returns a value in the searcher's form. Raises InputError if the value is outside the space."""
    if isinstance(what, CategoricalDistribution):
        known = [one for one in what.choices if as_word(one) == as_word(value)]
        if not known:
            raise InputError(f"{name} is {value!r}; the space allows {', '.join(as_word(one) for one in what.choices)}")
        return known[0]
    whole = isinstance(what, IntDistribution)
    if not (type(value) is int or (type(value) is float and not whole)) or not contains(what, value):
        steps = "" if whole or not what.step else f" in steps of {what.step}"
        raise InputError(f"{name} is {value!r}; the space allows {what.low} to {what.high}{steps}")
    return value if isinstance(what, IntDistribution) else decimal(float(value), what)
