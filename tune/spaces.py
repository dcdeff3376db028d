"""The search space of a study: dotted names of options with their possible values. Independent of Ray."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial, create_trial

Distribution = FloatDistribution | IntDistribution | CategoricalDistribution  # Optuna's distributions


def corners(distribution: Distribution) -> list[Any]:
    """Lists the extreme values of a parameter: the ends of its range, or all of its choices.

    Ends of a range of numbers are fractions, since options of whole numbers refuse these.
    """
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    return sorted({distribution.low, distribution.high})


def suggest(trial: Trial, key: str, distribution: Distribution) -> Any:
    """Asks Optuna for a value of one parameter."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(key, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(key, distribution.low, distribution.high, log=distribution.log)
    low, high = distribution.low, distribution.high
    return decimal(trial.suggest_float(key, low, high, log=distribution.log, step=distribution.step), distribution)


def decimal(value: float, distribution: FloatDistribution) -> float:
    """Rounds a multiple of a step to its decimal form, such as 0.3 instead of 0.30000000000000004."""
    return float(f"{value:.12g}") if distribution.step else value


def contains(distribution: Distribution, value: Any) -> bool:
    """Returns whether a distribution contains a value."""
    try:
        create_trial(value=0.0, params={"value": value}, distributions={"value": distribution})
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Parameter:
    """A searched option.

    Args:
        option: Dotted name of the option, as on the command line of `lit-cfl run`.
        distribution: Distribution of the values; those of a choice are plain, see `as_plain`.
        algorithm: Algorithm of the option if a study chooses among several; else empty.
        grid: Try all values, one after another.
    """

    option: str
    distribution: Distribution
    algorithm: str = ""
    grid: bool = False

    @property
    def key(self) -> str:
        """The parameter's name in tables; distinct even if two algorithms have an option of the same name."""
        return f"{self.algorithm}.{self.option.removeprefix('algorithm.')}" if self.algorithm else self.option


@dataclass(frozen=True)
class Space:
    """The searched parameters and their values.

    Args:
        parameters: One parameter or more, unless there are several algorithms.
        algorithms: Algorithms to choose from, by name, with the options that each sets; empty = the base's algorithm
            alone.
    """

    parameters: tuple[Parameter, ...]
    algorithms: Mapping[str, Mapping[str, Any]]

    @property
    def grid(self) -> bool:
        """Whether the space is a grid, of which every combination is tried."""
        return any(p.grid for p in self.parameters)

    @property
    def changes_data(self) -> list[str]:
        """The searched options of the data, which may change the clients that trials are scored on."""
        return [p.option for p in self.parameters if p.option.partition(".")[0] == "data"]

    def combinations(self) -> list[dict[str, Any]]:
        """Returns every point of a grid; the last parameter changes fastest."""
        values = product(*(corners(p.distribution) for p in self.parameters))
        return [dict(zip([p.key for p in self.parameters], point, strict=True)) for point in values]

    def of(self, algorithm: str) -> list[Parameter]:
        """Returns the parameters that can matter for this algorithm."""
        return [p for p in self.parameters if p.algorithm in ("", algorithm)]

    def values_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Selects the values of a configuration that matter: those of its algorithm's parameters.

        Args:
            config: Values by `Parameter.key`, and `algorithm` if there are several.
        """
        kept = {"algorithm": config["algorithm"]} if "algorithm" in config else {}
        own = (p.key for p in self.of(str(kept.get("algorithm", ""))))
        return kept | {key: config[key] for key in own if key in config}

    def distributions(self) -> dict[str, Distribution]:
        """Returns the distribution of each parameter by its key, and of the algorithm if several are searched."""
        several: dict[str, Distribution] = {}
        if self.algorithms:
            several["algorithm"] = CategoricalDistribution(list(self.algorithms))
        return several | {p.key: p.distribution for p in self.parameters}

    def rounded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns Optuna's values of a trial, with multiples of a step in decimal form, as `suggest` returns them."""
        known = self.distributions()
        floats = {k: d for k, d in known.items() if isinstance(d, FloatDistribution)}
        return {k: decimal(value, floats[k]) if k in floats else value for k, value in params.items()}

    def suggest_setting(self, trial: Trial) -> dict[str, Any]:
        """Asks Optuna for a value of each parameter that matters."""
        several = list(self.algorithms)
        drawn = {"algorithm": trial.suggest_categorical("algorithm", several)} if several else {}
        for p in self.of(str(drawn.get("algorithm", ""))):
            drawn[p.key] = suggest(trial, p.key, p.distribution)
        return drawn

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Formats a point of the space as options of `lit-cfl run`.

        Args:
            values: Values by `Parameter.key`, and `algorithm` if there are several; irrelevant ones are left out.
        """
        name = str(values.get("algorithm", ""))
        chosen = ["--algorithm", name] if name else []
        fixed = {f"algorithm.{option}": value for option, value in self.algorithms.get(name, {}).items()}
        own = self.values_of(values)
        # an option that would overwrite another, as task.optimizer its own lr, comes before it
        ordered = sorted(self.parameters, key=lambda p: p.option.count("."))
        given = fixed | {p.option: own[p.key] for p in ordered if p.key in own}
        # --option=value, since the parser would take a separate -5e-05 for an option
        return [*chosen, *(f"--{option}={as_word(value)}" for option, value in given.items())]

    def corners(self) -> list[dict[str, Any]]:
        """Returns points for each algorithm: with the first values, and with one other end of a range or choice."""
        found: list[dict[str, Any]] = []
        for name in self.algorithms or [""]:
            ends = {p.key: corners(p.distribution) for p in self.of(name)}
            first = ({"algorithm": name} if name else {}) | {key: values[0] for key, values in ends.items()}
            found += [first, *(first | {key: value} for key, values in ends.items() for value in values[1:])]
        return found


def value_of(options: Mapping[str, Any], option: str) -> Any:
    """Returns the value of a dotted option in an experiment's configuration. Raises LookupError if it has none."""
    node: Any = options
    for word in option.split("."):
        if not isinstance(node, Mapping):
            raise LookupError(option)
        node = node[word] if word in node else node["init_args"][word]
    return node


def as_word(value: Any) -> str:
    """Formats a value for the command line: text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def as_plain(value: Any) -> Any:
    """Converts a value to the searcher's form: numbers stay unchanged, everything else becomes text."""
    return value if isinstance(value, (int, float)) else as_word(value)


def format_values(values: Mapping[str, Any]) -> str:
    """Formats parameter values for people: `eta_g = 0.01, num_clusters = 4`."""
    return ", ".join(
        f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}" for key, value in values.items()
    )
