"""Base class of the ready-made tasks: a net, an optimizer, and the mean of the losses as training loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch.optim import Optimizer

from lit_cfl.errors import InputError
from lit_cfl.nets.base import Net

Batch = tuple[Tensor, Tensor]  # inputs [n, ...], labels [n]


class Task(LightningModule, ABC):
    """A net and how it is trained. A subclass defines `losses` and `outcomes`.

    It may define `mix_outputs(outputs, weights)`, which mixes the outputs of several models (see `mixed_logits`).

    Args:
        net: Net from inputs to outputs. Nets of Lit-CFL go by their short names.
        optimizer: Any `torch.optim` class, with its options.
    """

    def __init__(
        self, net: Net | nn.Module, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = torch.optim.SGD
    ) -> None:
        super().__init__()
        if isinstance(net, type):
            raise InputError(f"net is the class {net.__name__}; give an object of it: {net.__name__}(...)")
        self.net = net
        self.optimizer = optimizer

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes the net's outputs. Raises InputError if they are not a tensor."""
        outputs = self.net(inputs)
        if not isinstance(outputs, Tensor):
            what = "None" if outputs is None else f"a {type(outputs).__name__}"
            raise InputError(f"{type(self.net).__name__} returned {what}; return a tensor")
        return outputs

    @abstractmethod
    def losses(self, batch: Batch) -> Tensor:
        """Computes the training loss of each example `[n]`."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.losses(batch).mean()

    def configure_optimizers(self) -> Optimizer:
        given: Any = self.optimizer
        if not callable(given):
            name = type(given).__name__
            raise InputError(
                f"optimizer is a {name}; give a function of parameters: partial(torch.optim.{name}, lr=0.1)"
            )
        try:
            return self.optimizer(self.parameters())
        except (ValueError, TypeError) as error:
            raise InputError(f"task.optimizer cannot be made: {error}; change its options") from error


def mixed_logits(outputs: Tensor, weights: Tensor) -> Tensor:
    """Mixes the probabilities that several models predict for the same examples, and returns their logarithms.

    Args:
        outputs: Logits of classes in the last axis `[K, n, ..., classes]`.
        weights: Weights of the models in each example's mixture `[n, K]`; they sum to 1.

    Returns:
        The logarithms of the mixed probabilities `[n, ..., classes]`.
    """
    return (outputs.log_softmax(-1) + _as_factors(weights, outputs).log()).logsumexp(0)


def mixed_binary_logits(outputs: Tensor, weights: Tensor) -> Tensor:
    """Computes the logits of the mixed probabilities of binary labels; see `mixed_logits`."""
    factors = _as_factors(weights, outputs).log()
    return (logsigmoid(outputs) + factors).logsumexp(0) - (logsigmoid(-outputs) + factors).logsumexp(0)


def mixed_numbers(outputs: Tensor, weights: Tensor) -> Tensor:
    """Computes the weighted mean `[n, ...]` of predicted numbers `[K, n, ...]`; see `mixed_logits`."""
    return _as_factors(weights, outputs).mul(outputs).sum(0)


def _as_factors(weights: Tensor, outputs: Tensor) -> Tensor:
    return weights.T.to(outputs.dtype).reshape(*outputs.shape[:2], *[1] * (outputs.ndim - 2))


def most_likely(outputs: Tensor) -> Tensor:
    """Finds the index of the largest output `[..., labels]`, int64 `[...]`; -1 if an output is nan."""
    return outputs.argmax(-1).where(~outputs.isnan().any(-1), -1)
