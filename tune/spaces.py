"""What a study searches: dotted names of options, each with the values it may take. Knows nothing of Ray."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
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
            raise InputError(f"its step rounds to {self.step}; give one between 0 and {self.high - self.low}")
        if self.step and not all(_is_multiple(end, self.step) for end in (self.low, self.high)):
            raise InputError(
                f"its step rounds to multiples of {self.step}, but {self.low} or {self.high} is none; a value would "
                "be rounded out of the range"
            )

    @property
    def corners(self) -> list[Any]:
        """The values that are most likely to be refused; as fractions, for an option of whole numbers refuses these."""
        return [float(self.low), float(self.high)]


@dataclass(frozen=True)
class Integers:
    """Whole numbers from `low` up to, but without, `high`, as Python's `range`.

    Args:
        low, high: ends, `low` below `high`; above 0 where `log`.
        log: whether small numbers are tried as often as large ones.
    """

    low: int
    high: int
    log: bool = False
    finite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if type(self.low) is not int or type(self.high) is not int or not self.low < self.high:
            raise InputError(f"[{self.low}, {self.high}] is no range of whole numbers; the end is not included")
        if self.log and self.low < 1:
            raise InputError(f"lograndint begins at {self.low}; give 1 or more")

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
        when: it matters only where each of these other parameters, by `key`, has one of the values.
    """

    option: str
    distribution: Distribution
    algorithm: str = ""
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name in tables; distinct where two algorithms have an option of the same name."""
        return f"{self.algorithm}.{self.option.removeprefix('algorithm.')}" if self.algorithm else self.option

    def matters(self, values: Mapping[str, Any]) -> bool:
        """Whether its conditions hold at these values, by `key`; a parameter that is not among them has none."""
        return all(
            key in values and as_word(values[key]) in [as_word(one) for one in allowed]
            for key, allowed in self.when.items()
        )


@dataclass(frozen=True)
class Space:
    """All that is searched.

    Args:
        parameters: one or more, unless there are several algorithms; what one depends on comes before it.
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

    @property
    def conditional(self) -> bool:
        """Whether it depends on the value of one parameter if another matters."""
        return bool(self.algorithms) or any(p.when for p in self.parameters)

    @property
    def changes_data(self) -> list[str]:
        """The options of the data that it changes: its trials may be scored on different clients."""
        return [p.option for p in self.parameters if p.option.partition(".")[0] == "data"]

    def of(self, algorithm: str) -> list[Parameter]:
        """The parameters that can matter under this algorithm."""
        return [p for p in self.parameters if p.algorithm in ("", algorithm)]

    def active(self, values: Mapping[str, Any]) -> list[Parameter]:
        """The parameters that matter at a point: those of its algorithm whose conditions hold.

        Args:
            values: by `Parameter.key`, and `algorithm` where there are several.
        """
        kept: dict[str, Any] = {}
        for p in self.of(str(values.get("algorithm", ""))):
            if p.key in values and p.matters(kept):
                kept[p.key] = values[p.key]
        return [p for p in self.parameters if p.key in kept]

    def values_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What of a searcher's configuration matters, by `Parameter.key`, and `algorithm` where there are several."""
        own = {p.key for p in self.active(config)}
        return {key: value for key, value in config.items() if key in own or key == "algorithm"}

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """One point of the space as options of `lit-cfl run`.

        Args:
            values: by `Parameter.key`, and `algorithm` where there are several; what does not matter is left out.
        """
        name = str(values.get("algorithm", ""))
        chosen = ["--algorithm", name] if name else []
        fixed = {f"algorithm.{option}": value for option, value in self.algorithms.get(name, {}).items()}
        given = fixed | {p.option: values[p.key] for p in self.active(values)}
        return [*chosen, *(word for option, value in given.items() for word in (f"--{option}", as_word(value)))]

    def corners(self) -> list[dict[str, Any]]:
        """Points at the ends of all ranges and at each choice, for each algorithm."""
        return [point for name in self.algorithms or [""] for point in self._corners_of(name)]

    def _corners_of(self, name: str) -> list[dict[str, Any]]:
        ends = {p.key: p.distribution.corners for p in self.of(name)}
        if prod(len(values) for values in ends.values()) <= _MANY_CORNERS:
            points = [dict(zip(ends, values, strict=True)) for values in product(*ends.values())]
        else:
            first = {key: values[0] for key, values in ends.items()}
            points = [first | self._needed(p) | {p.key: value} for p in self.of(name) for value in ends[p.key]]
        chosen = {"algorithm": name} if name else {}
        reduced = [self.values_of(chosen | point) for point in points]
        return list({as_word(point): point for point in reduced}.values())  # without those that differ in nothing

    def _needed(self, parameter: Parameter) -> dict[str, Any]:
        """Values of others at which a parameter matters."""
        others = [p for p in self.parameters if p.key in parameter.when]
        own = {p.key: parameter.when[p.key][0] for p in others}
        return {key: value for p in others for key, value in self._needed(p).items()} | own


def as_word(value: Any) -> str:
    """A value as it is written on the command line; `read_word` of YAML gives it back exactly."""
    return value if isinstance(value, str) else json.dumps(value)


def as_plain(value: Any) -> Any:
    """A value as searchers are given it: numbers stay, all else travels as YAML."""
    return value if isinstance(value, (int, float)) else as_word(value)


def in_words(values: Mapping[str, Any]) -> str:
    """Values of parameters for people: `eta_g = 0.01, num_clusters = 4`."""
    return ", ".join(
        f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}" for key, value in values.items()
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _is_multiple(value: float, step: float) -> bool:
    return isclose(round(value / step) * step, value, rel_tol=1e-9, abs_tol=1e-12)
