"""Where a parameter's values lie on an axis."""

from math import log10
from typing import Any

from matplotlib.ticker import MaxNLocator

from lit_cfl.tune.spaces import OneOf, Parameter, Space, Uniform, as_plain

_LONGEST_LABEL = 18
_LONG = 24  # letters of all labels of an axis that still fit side by side
_APART = 0.12  # least distance of labels of a logarithmic axis, as a share of its length


def shown(space: Space) -> list[Parameter]:
    """The parameters of a space, and the choice among algorithms where there is one."""
    several = [Parameter("algorithm", OneOf(tuple(space.algorithms)))] if space.algorithms else []
    return [*several, *space.parameters]


class Scale:
    """An axis.

    Args:
        parameter: whose values it shows.
    """

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter
        what = parameter.distribution
        self._words = [as_plain(value) for value in what.values] if isinstance(what, OneOf) else []
        self._log = not isinstance(what, OneOf) and what.log
        if self._words:
            self.ends = 0.0, float(len(self._words) - 1)
            self.ticks = [float(k) for k in range(len(self._words))]
            self.labels = [_short(str(word)) for word in self._words]
        else:
            self.ends = self.position(what.corners[0]), self.position(what.corners[-1])
            self.ticks = self._ticks()
            self.labels = [f"{10**tick:.3g}" if self._log else f"{tick:g}" for tick in self.ticks]
        self.long = sum(len(label) for label in self.labels) > _LONG

    def _ticks(self) -> list[float]:
        low, high = self.ends
        if self._log:
            apart = _APART * (high - low)
            decades = [float(k) for k in range(int(low // 1), int(high // 1) + 1) if low + apart < k < high - apart]
            return [low, *decades[:: max(1, -(-len(decades) // 4))], high]
        whole = not isinstance(self.parameter.distribution, Uniform)
        ticks = [float(tick) for tick in MaxNLocator(5, integer=whole).tick_values(low, high)]
        return [tick for tick in ticks if low <= tick <= high]

    def position(self, value: Any) -> float:
        """Of a value, in the axis's own numbers: decimal logarithms, numbers of choices, or the value itself."""
        if self._words:
            return float(self._words.index(value))
        return log10(value) if self._log else float(value)

    def share(self, position: float) -> float:
        """Of the way from the lowest to the highest, 0 to 1."""
        low, high = self.ends
        return (position - low) / (high - low) if high > low else 0.5


def _short(word: str) -> str:
    return word if len(word) <= _LONGEST_LABEL else word[: _LONGEST_LABEL - 1] + "…"
