"""Updates the parameters of a stack of clients after each step.

Plain SGD changes a layer's weights by one product in place. Other optimizers compute the gradients first, and leave the
step to `FunctionalOptimizer`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from lit_cfl.engines.chain.parts import Chain, ChainLayer
from lit_cfl.engines.chain.passes import Arithmetic
from lit_cfl.engines.optimizers import FunctionalOptimizer
from lit_cfl.engines.stacked.lane_steps import clip_gradients

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """Update rule of a parameter in plain SGD: `w <- shrink * w + pull * center - rate * gradient of the losses`.

    Args:
        rate: Learning rate.
        shrink: Share of the parameter that a step keeps under its weight decay, its penalty and the proximal term.
        pull: Learning rate times the strength of the proximal term.
    """

    rate: float
    shrink: float
    pull: float

    @classmethod
    def of(cls, option: Mapping[str, float], prox: float, penalty: float) -> "Rule":
        rate = option["lr"]
        return cls(rate, 1 - rate * (option["weight_decay"] + prox + 2 * penalty), rate * prox)


@dataclass(frozen=True, eq=False)
class Training:
    """Training options common to all clients.

    Args:
        chain: Chain that the clients train.
        names: Names of the trained parameters, in the order of the layout.
        optimizer: Optimizer, with options for the parameters in this order.
        clip: Maximum norm of a client's gradient; None = no clipping.
        arithmetic: Multiplies matrices.
    """

    chain: Chain
    names: tuple[str, ...]
    optimizer: FunctionalOptimizer
    clip: float | None
    arithmetic: Arithmetic

    @property
    def is_plain(self) -> bool:
        """Whether a step uses the parameters' gradients alone: SGD without momentum and clipping."""
        return self.optimizer.kind == "sgd" and not self.optimizer.slots and self.clip is None

    def rules(self, prox: float) -> dict[str, Rule]:
        """Returns the rule of each trained parameter in plain SGD."""
        penalties = {layer.weight: layer.penalty for layer in self.chain.layers}
        return {
            name: Rule.of(option, prox, penalties.get(name, 0.0))
            for name, option in zip(self.names, self.optimizer.options, strict=True)
        }


class Update(ABC):
    """Updates the trained parameters.

    Args:
        training: See `Training`.
        trained: Trained parameters by name, `[clients, ...]`; they change in place.
        centers: Proximal centres by name, `[clients, ...]` or `[1, ...]`; None without one.
        prox: Strength of the proximal term.
    """

    def __init__(self, training: Training, trained: Tensors, centers: Tensors | None, prox: float) -> None:
        self.training, self.trained, self.centers, self.prox = training, trained, centers, prox

    @abstractmethod
    def take(self, layer: ChainLayer, slopes: Tensor, inputs: Tensor) -> None:
        """Receives the gradient of a layer's outputs `[clients, B, h]`, and the layer's inputs `[clients, B, d]`."""

    @abstractmethod
    def finish(self, corrections: Tensor | None, first: Tensor | None) -> None:
        """Ends a step, after all layers have their gradients.

        Args:
            corrections: Bias corrections of this step, see `FunctionalOptimizer.corrections`, `[2]`.
            first: True in the first step, bool, 0-d.
        """


class PlainUpdate(Update):
    """Plain SGD: each layer is updated as soon as its gradient is known."""

    def __init__(self, training: Training, trained: Tensors, centers: Tensors | None, prox: float) -> None:
        super().__init__(training, trained, centers, prox)
        self._rules = training.rules(prox if centers is not None else 0.0)

    def take(self, layer: ChainLayer, slopes: Tensor, inputs: Tensor) -> None:
        weight, rule = self.trained.get(layer.weight), self._rules.get(layer.weight)
        if weight is not None and rule is not None:
            self.training.arithmetic.add_product_(weight, slopes.mT, inputs, rule.shrink, -rule.rate)
            if self.centers is not None:
                weight.add_(self.centers[layer.weight], alpha=rule.pull)
        self.take_bias(layer, slopes)

    def take_bias(self, layer: ChainLayer, slopes: Tensor) -> None:
        bias, rule = self.trained.get(layer.bias or ""), self._rules.get(layer.bias or "")
        if bias is not None and rule is not None and layer.bias is not None:
            if rule.shrink != 1:
                bias.mul_(rule.shrink)
            bias.sub_(slopes.sum(1, keepdim=True), alpha=rule.rate)
            if self.centers is not None:
                bias.add_(self.centers[layer.bias], alpha=rule.pull)

    def finish(self, corrections: Tensor | None, first: Tensor | None) -> None:
        """Does nothing: all layers have been updated already."""


class OptimizerUpdate(Update):
    """Any optimizer, optionally with clipping: collects all gradients, then takes one step for all parameters.

    Args:
        state: State of the optimizer, see `FunctionalOptimizer.start`.
    """

    def __init__(
        self,
        training: Training,
        trained: Tensors,
        centers: Tensors | None,
        prox: float,
        state: tuple[tuple[Tensor, ...], ...],
    ) -> None:
        super().__init__(training, trained, centers, prox)
        self._state = state
        self._gradients: dict[str, Tensor] = {}

    def take(self, layer: ChainLayer, slopes: Tensor, inputs: Tensor) -> None:
        weight = self.trained.get(layer.weight)
        if weight is not None:
            gradient = self.training.arithmetic.multiply(slopes.mT, inputs)
            self._gradients[layer.weight] = (
                gradient.add_(weight, alpha=2 * layer.penalty) if layer.penalty else gradient
            )
        if layer.bias is not None and layer.bias in self.trained:
            self._gradients[layer.bias] = slopes.sum(1, keepdim=True)

    def finish(self, corrections: Tensor | None, first: Tensor | None) -> None:
        if corrections is None or first is None:
            raise TypeError("an optimizer's step needs its corrections")
        names, trained = self.training.names, self.trained
        if self.centers is not None:
            for name in names:
                self._gradients[name].add_(trained[name] - self.centers[name], alpha=self.prox)
        gradients = tuple(self._gradients[name] for name in names)
        if self.training.clip is not None:
            gradients = clip_gradients(gradients, self.training.clip)
        parameters = tuple(trained[name] for name in names)
        lanes = len(parameters[0])
        of_lanes = corrections[:, None].expand(2, lanes), first.expand(lanes)
        self.training.optimizer.step_(parameters, gradients, self._state, *of_lanes)
