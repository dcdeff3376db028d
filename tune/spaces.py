"""What a study searches: dotted names of options, each with the values it may take. Knows nothing of Ray."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import isclose, isfinite, prod
from typing import Any, ClassVar

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
        if self.step and not all(_is_multiple(end, self.step) for end in (self.low, self.high)):
            raise InputError(
                f"quniform rounds to multiples of {self.step}, but {self.low} or {self.high} is none; a value would "
                "be rounded out of the range"
            )

    @property
    def corners(self) -> list[Any]:
        """The values that are most likely to be refused; as fractions, for an option of whole numbers refuses these."""
        return [float(self.low), float(self.high)]


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

    def values_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What of a searcher's configuration matters under the algorithm that it names, by `Parameter.key`."""
        own = {p.key for p in self.of(str(config.get("algorithm", "")))}
        return {key: value for key, value in config.items() if key in own or key == "algorithm"}

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


def as_plain(value: Any) -> Any:
    """A value as searchers are given it: numbers stay, all else travels as YAML."""
    return value if isinstance(value, (int, float)) else as_word(value)


def in_words(values: Mapping[str, Any]) -> str:
    """Values of parameters for people: `eta_g = 0.01, num_clusters = 4`."""
    return ", ".join(f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}"
                     for key, value in values.items())  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _is_multiple(value: float, step: float) -> bool:
    return isclose(round(value / step) * step, value, rel_tol=1e-9, abs_tol=1e-12)
