"""The parts of a chain of fully connected layers, with their derivatives in closed form.

Values are stacks `[clients, B, width]`. A client's numbers depend neither on other clients nor on their position in the
stack: functions that PyTorch computes differently at the end of a tensor (sigmoid, GELU) are built from others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import pi, sqrt
from typing import Literal

import torch
from torch import Tensor

ActivationName = Literal["relu", "tanh", "sigmoid", "gelu", "gelu_tanh"]
LossKind = Literal["cross-entropy", "squared error", "binary cross-entropy"]


@dataclass(frozen=True)
class ChainLayer:
    """A fully connected layer.

    Args:
        weight, bias: Full names of its parameters; None = no bias.
        inputs, outputs: Widths of the layer.
        penalty: `kernel_l2` of its weight.
    """

    weight: str
    bias: str | None
    inputs: int
    outputs: int
    penalty: float = 0.0


@dataclass(frozen=True)
class Activation:
    """An activation function with its derivative."""

    name: ActivationName

    def compute(self, inputs: Tensor) -> Tensor:
        """Computes the outputs of the function."""
        return _COMPUTE[self.name](inputs)

    def slope(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Computes the derivative of the function."""
        return _SLOPES[self.name](inputs, outputs)


@dataclass(frozen=True)
class Drop:
    """Keyed dropout between two layers of a chain.

    Args:
        p: Probability that a unit is dropped.
        layer: Number of the dropout in the module, on which its masks depend.
    """

    p: float
    layer: int


@dataclass(frozen=True)
class Loss:
    """The loss of an example as a function of the outputs.

    Args:
        kind: `cross-entropy` for labels that are classes, the other two for labels that are numbers, one per output.
            `binary cross-entropy` takes logits.
        factor: Factor of the sum over an example's outputs.
    """

    kind: LossKind
    factor: float = 1.0


@dataclass(frozen=True)
class Chain:
    """A chain of fully connected layers.

    Args:
        parts: Layers, activations and dropouts in the order of the forward pass; the first part need not be a layer.
        loss: Loss of an example, without the penalties.
    """

    parts: tuple[ChainLayer | Activation | Drop, ...]
    loss: Loss

    @cached_property
    def layers(self) -> list[ChainLayer]:
        return [part for part in self.parts if isinstance(part, ChainLayer)]

    @property
    def draws_masks(self) -> bool:
        return any(isinstance(part, Drop) for part in self.parts)


def sigmoid(x: Tensor) -> Tensor:
    """Computes 1 / (1 + exp(-x))."""
    return torch.exp(-x).add_(1).reciprocal_()


def _gelu_slope(x: Tensor, _: Tensor) -> Tensor:
    slope: Tensor = torch.special.ndtr(x) + x * torch.exp(x.square() * -0.5) / sqrt(2 * pi)
    return slope


def _inner(x: Tensor) -> Tensor:
    return torch.tanh(sqrt(2 / pi) * (x + _CUBIC * x * x * x))


def _gelu_tanh_slope(x: Tensor, _: Tensor) -> Tensor:
    inner = _inner(x)
    return 0.5 * (1 + inner) + 0.5 * x * (1 - inner.square()) * sqrt(2 / pi) * (1 + 3 * _CUBIC * x.square())


_CUBIC = 0.044715  # coefficient in the tanh approximation of GELU
_COMPUTE: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": sigmoid,
    "gelu": lambda x: x * torch.special.ndtr(x),
    "gelu_tanh": lambda x: 0.5 * x * (1 + _inner(x)),
}
_SLOPES: dict[ActivationName, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda _, y: y.sign(),  # five times as fast as multiplying by a boolean mask
    "tanh": lambda _, y: 1 - y.square(),
    "sigmoid": lambda _, y: y * (1 - y),
    "gelu": _gelu_slope,
    "gelu_tanh": _gelu_tanh_slope,
}
