"""Computes a step of SGD, Adam or AdamW as a function of tensors, so that a stack of clients can take it together.

The rule is read off the optimizer that the module configures: its class, and per parameter group the rates and
decays. It is torch's own, computed out of place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class FunctionalOptimizer:
    """An optimizer without its state.

    Args:
        kind: `sgd`, `adam` or `adamw`.
        options: of each parameter, in the order of the module's trainable parameters.
    """

    kind: str
    options: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> "FunctionalOptimizer":
        """Reads an optimizer of these parameters, each in one of its groups."""
        group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        kind = {SGD: "sgd", Adam: "adam", AdamW: "adamw"}[type(optimizer)]
        options = tuple({k: v for k, v in group_of[id(p)].items() if k != "params"} for p in parameters)
        return cls(kind, options)

    @property
    def slots(self) -> int:
        """State tensors of each parameter's shape."""
        if self.kind == "sgd":
            return int(any(option["momentum"] for option in self.options))
        return 2

    @property
    def rates(self) -> frozenset[float]:
        """Learning rates and weight decays, as `step` multiplies by them."""
        found = set[float]()
        for option in self.options:
            found |= {option["lr"], option["weight_decay"], 1 - option["lr"] * option["weight_decay"]}
        return frozenset(found)

    def start(self, parameters: Tensors) -> tuple[Tensors, ...]:
        """Returns the state before the first step: `slots` tuples of zeros."""
        return tuple(tuple(torch.zeros_like(p) for p in parameters) for _ in range(self.slots))

    def corrections(self, steps: Tensor) -> Tensor:
        """Computes Adam's bias corrections at steps (from 1): float64 `[2, ...]`, 1 - beta^t, sqrt of the second's."""
        if self.kind == "sgd":
            return torch.ones(2, *steps.shape, dtype=torch.float64)
        first, second = self.options[0]["betas"]
        powers = steps.double()
        return torch.stack([1 - first**powers, (1 - second**powers).sqrt()])

    def step(
        self, parameters: Tensors, gradients: Tensors, state: tuple[Tensors, ...], corrections: Tensor, first: Tensor
    ) -> tuple[Tensors, tuple[Tensors, ...]]:
        """Computes the parameters and the state after a step.

        Args:
            parameters, gradients: `[lanes, ...]` each.
            state: as `start` gives it.
            corrections: of this step `[2, lanes]`.
            first: whether this is a client's first step, bool `[lanes]`.
        """
        new, slots = [], []
        for number, (p, g) in enumerate(zip(parameters, gradients, strict=True)):
            mine = [slot[number] for slot in state]
            if self.kind == "sgd":
                p, mine = _sgd(p, g, mine, self.options[number], first)
            else:
                p, mine = _adam(p, g, mine, self.options[number], corrections)
            new.append(p)
            slots.append(mine)
        return tuple(new), tuple(zip(*slots, strict=True)) if self.slots else ()


def unsupported(optimizer: Optimizer) -> list[str]:
    """Lists the options of this optimizer that `FunctionalOptimizer` does not know."""
    found = []
    for group in optimizer.param_groups:
        found += [name for name in ("amsgrad", "maximize", "differentiable") if group.get(name)]
        found += ["a tensor as learning rate"] if isinstance(group["lr"], Tensor) else []
    betas = {tuple(group["betas"]) for group in optimizer.param_groups if "betas" in group}
    return [*dict.fromkeys(found), *(["several pairs of betas"] if len(betas) > 1 else [])]


def _sgd(
    p: Tensor, g: Tensor, state: list[Tensor], option: dict[str, Any], first: Tensor
) -> tuple[Tensor, list[Tensor]]:
    g = g + option["weight_decay"] * p if option["weight_decay"] else g
    momentum = option["momentum"]
    if momentum:
        damped = (1 - option["dampening"]) * g
        start = first.view(-1, *[1] * (g.dim() - 1))
        buffer = torch.where(start, g, momentum * state[0] + damped)  # torch's buffer begins as the gradient
        g = g + momentum * buffer if option["nesterov"] else buffer
        state = [buffer]
    return p - option["lr"] * g, state


def _adam(
    p: Tensor, g: Tensor, state: list[Tensor], option: dict[str, Any], corrections: Tensor
) -> tuple[Tensor, list[Tensor]]:
    rate, decay = option["lr"], option["weight_decay"]
    if decay and option["decoupled_weight_decay"]:  # of AdamW, and of Adam where it is asked for
        p = p * (1 - rate * decay)
    elif decay:
        g = g + decay * p
    beta1, beta2 = option["betas"]
    mean, square = state[0] + (1 - beta1) * (g - state[0]), beta2 * state[1] + (1 - beta2) * g * g
    shape = (-1, *[1] * (p.dim() - 1))
    # the corrections are kept in float64 until here: in float32 they cost 5e-4 after a few steps
    size = (rate / corrections[0]).to(p.dtype).view(shape)
    root = (square.sqrt() / corrections[1].to(p.dtype).view(shape)) + option["eps"]
    return p - size * mean / root, [mean, square]
