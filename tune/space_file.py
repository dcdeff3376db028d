"""The `space` of a study file, parsed."""

from collections.abc import Mapping, Sequence
from typing import Any

from lit_cfl.config_errors import nearest
from lit_cfl.errors import InputError
from lit_cfl.tune.spaces import Distribution, Integers, OneOf, Parameter, Space, Uniform

_NOT_OF_A_TRIAL = {
    "rounds": "all trials run the base's rounds",
    "seeds": "all trials run under the study's seeds",
    "seed": "all trials run under the study's seeds",
    "baseline": "a study runs no baseline",
    "name": "a trial goes by its number",
    "tracking": "it changes no result",
    "checkpoint": "it changes no result",
}  # options of an experiment


def parse_space(content: Mapping[str, Any]) -> Space:
    """The `space` of a study file. Raises InputError for anything that cannot be searched."""
    if not isinstance(content, Mapping) or not content:
        raise InputError("space is empty; name at least one option, such as algorithm.eta_g: {uniform: [0, 1]}")
    rest = dict(content)
    several = rest.pop("algorithm", None)
    algorithms, parameters = ({}, []) if several is None else _parse_algorithms(several)
    parameters = [Parameter(name, _parse(name, what)) for name, what in rest.items()] + parameters
    if algorithms and any(p.option.startswith("algorithm.") and not p.algorithm for p in parameters):
        raise InputError("options of an algorithm stand in its own space where the study chooses among several")
    for p in parameters:
        _require_of_a_trial(p.option)
    space = Space(tuple(parameters), algorithms)
    _require_whole_grid(space)
    return space


def _require_of_a_trial(option: str) -> None:
    reason = _NOT_OF_A_TRIAL.get(option.partition(".")[0])
    if reason is not None:
        raise InputError(f"space: {option} cannot be searched: {reason}; leave it out")


def _parse_algorithms(content: Any) -> tuple[dict[str, Mapping[str, Any]], list[Parameter]]:
    choices = content.get("choice") if isinstance(content, Mapping) else None
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise InputError(f"space: algorithm is {content!r}; write algorithm: {{choice: [FedAvg, {{class_path: ...}}]}}")
    algorithms: dict[str, Mapping[str, Any]] = {}
    parameters = []
    for choice in choices:
        one: Any = {"class_path": choice} if isinstance(choice, str) else choice
        known = {"class_path", "init_args", "space"}
        if not isinstance(one, Mapping) or "class_path" not in one or set(one) - known:
            raise InputError(f"space: {choice!r} is no algorithm; give class_path, and if need be init_args and space")
        name = str(one["class_path"])
        if name in algorithms:
            raise InputError(f"space: {name} stands twice in the choice of algorithms; give it one space")
        algorithms[name] = dict(one.get("init_args") or {})
        own = (one.get("space") or {}).items()
        parameters += [Parameter(f"algorithm.{k}", _parse(f"{name}.{k}", what), name) for k, what in own]
    return algorithms, parameters


def _parse(name: str, what: Any) -> Distribution:
    kinds = ("uniform", "loguniform", "quniform", "randint", "choice", "grid")
    if not isinstance(what, Mapping) or len(what) != 1:
        raise InputError(f"space: {name} is {what!r}; write one of {', '.join(kinds)}, such as {{uniform: [0, 1]}}")
    kind, values = next(iter(what.items()))
    if kind not in kinds:
        raise InputError(f"space: {name}: {kind!r} is not known{nearest(str(kind), kinds)}. Known: {', '.join(kinds)}")
    count = {"choice": None, "grid": None, "quniform": 3}.get(kind, 2)
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != (count or len(values)):
        raise InputError(f"space: {name}: {kind} is {values!r}; give a list of {count or 'values'}")
    try:
        return _build(kind, values)
    except InputError as error:
        raise InputError(f"space: {name}: {error}") from error


def _build(kind: str, values: Sequence[Any]) -> Distribution:
    if kind in ("choice", "grid"):
        return OneOf(tuple(values), grid=kind == "grid")
    if kind == "randint":
        return Integers(*values)
    low, high, step = (*values, 0.0)[:3]
    return Uniform(low, high, kind == "loguniform", step)


def _require_whole_grid(space: Space) -> None:
    if not space.grid:
        return
    if space.algorithms:
        raise InputError("a grid cannot choose among algorithms; write one study per algorithm, or choice for grid")
    for p in space.parameters:
        if not p.distribution.finite:
            raise InputError(f"space: a grid cannot try all values of {p.option}; write {p.option}: {{grid: [...]}}")
        if isinstance(p.distribution, OneOf) and not p.distribution.grid:
            raise InputError(f"space: {p.option} is a choice beside a grid; write grid for both, or choice for both")
