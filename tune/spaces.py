"""What a study searches: dotted names of options, each with the values it may take. Knows nothing of Ray."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite, prod
from typing import Any, ClassVar

from lit_cfl.config_errors import nearest
from lit_cfl.errors import InputError

_MANY_CORNERS = 8  # above it, corners are visited one parameter at a time


@dataclass(frozen=True)
class Uniform:
    """Any number between two; `log`: uniform in the logarithm; `step`: rounded to a multiple of it.

    Args:
        low, high: ends, `low` below `high`; above 0 where `log`.
        log: whether small numbers are tried as often as large ones.
        step: 0 = no rounding.
    """

    low: float
    high: float
    log: bool = False
    step: float = 0.0
    finite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        numbers = [value for value in (self.low, self.high, self.step) if _is_number(value)]
        if len(numbers) < 3 or not self.low < self.high:
            raise InputError(f"[{self.low}, {self.high}] is no range; give two numbers, the lower one first")
        if self.log and not self.low > 0:
            raise InputError(f"loguniform begins at {self.low}; give a number above 0")
        if self.step < 0 or self.step > self.high - self.low:
            raise InputError(f"quniform rounds to {self.step}; give a step between 0 and {self.high - self.low}")

    @property
    def corners(self) -> list[Any]:
        """The values that are most likely to be refused."""
        return [self.low, self.high]


@dataclass(frozen=True)
class Integers:
    """Whole numbers from `low` up to, but without, `high`, as Python's `range`."""

    low: int
    high: int
    finite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if type(self.low) is not int or type(self.high) is not int or not self.low < self.high:
            raise InputError(f"[{self.low}, {self.high}] is no range of whole numbers; the end is not included")

    @property
    def corners(self) -> list[Any]:
        return sorted({self.low, self.high - 1})


@dataclass(frozen=True)
class OneOf:
    """A value of a list; `grid`: all of them, one after another."""

    values: tuple[Any, ...]
    grid: bool = False
    finite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        words = [as_word(value) for value in self.values]
        if not words or len(set(words)) < len(words):
            raise InputError(f"{list(self.values)} is no list of different values; give one or more")

    @property
    def corners(self) -> list[Any]:
        return list(self.values)


Distribution = Uniform | Integers | OneOf


@dataclass(frozen=True)
class Parameter:
    """An option that is searched.

    Args:
        option: its dotted name, as on the command line of `lit-cfl run`.
        distribution: of its values.
        algorithm: the algorithm that it belongs to, where a study chooses among several; else empty.
    """

    option: str
    distribution: Distribution
    algorithm: str = ""

    @property
    def key(self) -> str:
        """Its name in tables; distinct where two algorithms have an option of the same name."""
        return f"{self.algorithm}.{self.option.removeprefix('algorithm.')}" if self.algorithm else self.option


@dataclass(frozen=True)
class Space:
    """All that is searched.

    Args:
        parameters: one or more, unless there are several algorithms.
        algorithms: what a study chooses among: by name, options that it sets; empty = the base's algorithm alone.
    """

    parameters: tuple[Parameter, ...]
    algorithms: Mapping[str, Mapping[str, Any]]

    @property
    def grid(self) -> bool:
        """Whether every combination is tried."""
        return any(isinstance(p.distribution, OneOf) and p.distribution.grid for p in self.parameters)

    @property
    def size(self) -> int:
        """How many combinations a grid has."""
        return prod(len(p.distribution.corners) for p in self.parameters)

    def of(self, algorithm: str) -> list[Parameter]:
        """The parameters that matter under this algorithm."""
        return [p for p in self.parameters if p.algorithm in ("", algorithm)]

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """One point of the space as options of `lit-cfl run`.

        Args:
            values: by `Parameter.key`, and `algorithm` where there are several; what does not matter is left out.
        """
        name = str(values.get("algorithm", ""))
        chosen = ["--algorithm", name] if name else []
        fixed = {f"algorithm.{option}": value for option, value in self.algorithms.get(name, {}).items()}
        given = fixed | {p.option: values[p.key] for p in self.of(name) if p.key in values}
        return [*chosen, *(word for option, value in given.items() for word in (f"--{option}", as_word(value)))]

    def corners(self) -> list[dict[str, Any]]:
        """Points at the ends of all ranges and at each choice, for each algorithm."""
        return [point for name in self.algorithms or [""] for point in self._corners_of(name)]

    def _corners_of(self, name: str) -> list[dict[str, Any]]:
        parameters = self.of(name)
        ends = {p.key: p.distribution.corners for p in parameters}
        if prod(len(values) for values in ends.values()) <= _MANY_CORNERS:
            points = [dict(zip(ends, values, strict=True)) for values in product(*ends.values())]
        else:
            first = {key: values[0] for key, values in ends.items()}
            others = [first | {key: value} for key, values in ends.items() for value in values[1:]]
            points = [first, *others]
        return [({"algorithm": name} if name else {}) | point for point in points]


def as_word(value: Any) -> str:
    """A value as it is written on the command line; `read_word` of YAML gives it back exactly."""
    return value if isinstance(value, str) else json.dumps(value)


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
    space = Space(tuple(parameters), algorithms)
    _require_whole_grid(space)
    return space


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


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
