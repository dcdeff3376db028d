"""The base class of the ready tasks: a net, an optimizer, and the mean of the losses as training loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_cfl.errors import InputError
from lit_cfl.nets.base import Net

Batch = tuple[Tensor, Tensor]  # inputs [n, ...], labels [n]


class Task(LightningModule, ABC):
    """A net and how it is trained. A subclass defines `losses` and `outcomes`.

    Args:
        net: from inputs to outputs. A net of ours goes by its short name.
        optimizer: any `torch.optim` class, with its options.
    """

    def __init__(
        self, net: Net | nn.Module, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = torch.optim.SGD
    ) -> None:
        super().__init__()
        self.net = net
        self.optimizer = optimizer

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        return outputs

    @abstractmethod
    def losses(self, batch: Batch) -> Tensor:
        """Computes what is trained on each example `[n]`."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.losses(batch).mean()

    def configure_optimizers(self) -> Optimizer:
        try:
            return self.optimizer(self.parameters())
        except (ValueError, TypeError) as error:
            raise InputError(f"task.optimizer cannot be made: {error}; mend its options") from error
