"""Steps of SGD, Adam or AdamW as functions of tensors, so that a stack of clients can be updated together.

The rule follows from the optimizer that the module configures: its class, and the rates and decays of its parameter
groups. It is the same as PyTorch's. Parameters and state change in place, so each of them is read and written once.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_cfl.errors import InputError

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class FunctionalOptimizer:
    """An optimizer without its state.

    Args:
        kind: `sgd`, `adam` or `adamw`.
        options: Options of each parameter, in the order of the module's trainable parameters.
        groups: Number of each parameter's group, in the same order.
    """

    kind: str
    options: tuple[dict[str, Any], ...]
    groups: tuple[int, ...] = ()

    @classmethod
    def from_module(cls, module: LightningModule, parameters: Sequence[nn.Parameter]) -> "FunctionalOptimizer":
        """Reads the kind and options of a module's only optimizer, whose groups must contain all these parameters."""
        optimizer = _require_plain(module.configure_optimizers())
        number_of = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
        kind = {SGD: "sgd", Adam: "adam", AdamW: "adamw"}[type(optimizer)]
        if any(id(p) not in number_of for p in parameters):
            raise InputError("the optimizer does not train all parameters that require a gradient")
        numbers = tuple(number_of[id(p)] for p in parameters)
        groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        return cls(kind, tuple(groups[number] for number in numbers), numbers)

    def with_rates(self, rates: Sequence[float | Tensor] | None) -> "FunctionalOptimizer":
        """Returns the optimizer with these learning rates of its groups, or unchanged if they are None.

        Args:
            rates: Numbers, or 0-d float64 tensors, which a captured CUDA graph reads again in every step.
        """
        if rates is None:
            return self
        options = tuple(option | {"lr": rates[group]} for option, group in zip(self.options, self.groups, strict=True))
        return replace(self, options=options)

    @property
    def slots(self) -> int:
        """Number of state tensors per parameter, each of the parameter's shape."""
        if self.kind == "sgd":
            return int(any(option["momentum"] for option in self.options))
        return 2

    def start(self, parameters: Tensors) -> tuple[Tensors, ...]:
        """Returns the state before the first step: `slots` tuples of zeros."""
        return tuple(tuple(torch.zeros_like(p) for p in parameters) for _ in range(self.slots))

    def corrections(self, steps: Tensor) -> Tensor:
        """Computes Adam's bias corrections at steps t >= 1, float64 `[2, ...]`; all are 1 for SGD.

        They are 1 - beta1^t and sqrt(1 - beta2^t).
        """
        if self.kind == "sgd":
            return torch.ones(2, *steps.shape, dtype=torch.float64)
        first, second = self.options[0]["betas"]
        powers = steps.double()
        return torch.stack([1 - first**powers, (1 - second**powers).sqrt()])

    def step_(
        self, parameters: Tensors, gradients: Tensors, state: tuple[Tensors, ...], corrections: Tensor, first: Tensor
    ) -> None:
        """Takes a step: changes the parameters and the state in place.

        The gradients, which may be shared, are unchanged.

        Args:
            parameters, gradients: `[lanes, ...]` each.
            state: State as `start` returns it; zero at a client's first step.
            corrections: Bias corrections of this step `[2, lanes]`.
            first: True for a client's first step, bool `[lanes]`.
        """
        for number, (p, g) in enumerate(zip(parameters, gradients, strict=True)):
            mine = [slot[number] for slot in state]
            if self.kind == "sgd":
                _sgd_(p, g, mine, self.options[number], first)
            else:
                _adam_(p, g, mine, self.options[number], corrections)


def _require_plain(configured: object) -> Optimizer:
    """Returns the optimizer that `configure_optimizers` returned. Raises InputError if its steps have no function."""
    parts, found = parts_of(configured), list[str]()
    for scheduler in (part for part in parts if isinstance(part, LRScheduler)):
        raise InputError(f"the scheduler {type(scheduler).__name__}")
    optimizers = [part for part in parts if isinstance(part, Optimizer)]
    if len(optimizers) != 1:
        raise InputError("configure_optimizers does not return one plain optimizer")
    optimizer = optimizers[0]
    if type(optimizer) not in (SGD, Adam, AdamW):
        raise InputError(f"optimizer {type(optimizer).__name__}")
    for group in optimizer.param_groups:
        found += [name for name in ("amsgrad", "maximize", "differentiable") if group.get(name)]
        found += ["a tensor as learning rate"] if isinstance(group["lr"], Tensor) else []
    kind: Any = type(optimizer)
    plain = vars(kind([torch.zeros(0, requires_grad=True)], fused=optimizer.defaults.get("fused")))
    own = {name: value for name, value in vars(optimizer).items() if name not in ("defaults", "param_groups", "state")}
    if any(name not in plain or value != plain[name] for name, value in own.items()) or optimizer.state:
        raise InputError("something is attached to the optimizer, such as a hook or another step")
    betas = {tuple(group["betas"]) for group in optimizer.param_groups if "betas" in group}
    found += ["several pairs of betas"] if len(betas) > 1 else []
    if found:
        raise InputError(f"the optimizer's option {found[0]}")
    return optimizer


def parts_of(configured: object) -> list[Optimizer | LRScheduler]:
    """Finds the optimizers and schedulers in the return value of `configure_optimizers`."""
    if isinstance(configured, (Optimizer, LRScheduler)):
        return [configured]
    parts = list(configured.values()) if isinstance(configured, Mapping) else configured
    return [found for part in parts for found in parts_of(part)] if isinstance(parts, (list, tuple)) else []


def find_parts(module: LightningModule) -> list[Optimizer | LRScheduler]:
    """Finds a module's optimizers and schedulers; none if it needs a Trainer, or is wrong, which training reports."""
    with suppress(Exception):
        return parts_of(module.configure_optimizers())
    return []


def _sgd_(p: Tensor, g: Tensor, state: list[Tensor], option: dict[str, Any], first: Tensor) -> None:
    if option["weight_decay"]:
        g = g.add(p, alpha=option["weight_decay"])
    if momentum := option["momentum"]:
        (buffer,) = state
        if option["dampening"]:  # PyTorch's buffer starts as the gradient
            damped = torch.where(first.view(-1, *[1] * (g.dim() - 1)), g, (1 - option["dampening"]) * g)
            buffer.mul_(momentum).add_(damped)
        else:
            buffer.mul_(momentum).add_(g)
        g = g.add(buffer, alpha=momentum) if option["nesterov"] else buffer
    rate = option["lr"]
    if isinstance(rate, Tensor):
        p.addcmul_(g, rate.to(p.dtype), value=-1)
    else:
        p.add_(g, alpha=-rate)


def _adam_(p: Tensor, g: Tensor, state: list[Tensor], option: dict[str, Any], corrections: Tensor) -> None:
    rate, decay = option["lr"], option["weight_decay"]
    if decay and option["decoupled_weight_decay"]:  # AdamW, or Adam with this option
        p.mul_(1 - rate * decay)
    elif decay:
        g = g.add(p, alpha=decay)
    beta1, beta2 = option["betas"]
    mean, square = state
    mean.lerp_(g, 1 - beta1)
    square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    shape = (-1, *[1] * (p.dim() - 1))
    # the corrections stay in float64 until here: in float32 their error is 5e-4 after a few steps
    size = (rate / corrections[0]).to(p.dtype).view(shape)
    root = square.sqrt().div_(corrections[1].to(p.dtype).view(shape)).add_(option["eps"])
    p.sub_((size * mean).div_(root))
