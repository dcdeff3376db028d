"""Classification with cross-entropy: the default LightningModule of a client."""

from collections.abc import Callable, Iterable

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from lit_cfl.nets.base import Net

Batch = tuple[Tensor, Tensor]  # inputs [n, ...], labels int64 [n]


class Classification(LightningModule):
    """A net that is trained to predict one of several labels.

    Args:
        net: inputs `[n, ...]` to one number a label `[n, labels]`. A net of ours goes by its short name.
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

    def losses(self, batch: Batch) -> Tensor:
        """Cross-entropy of each example `[n]`."""
        return cross_entropy(self(batch[0]), batch[1], reduction="none")

    def outcomes(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy `[n]`, and whether the largest output is the label `[n]`, from one pass."""
        outputs = self(batch[0])
        return cross_entropy(outputs, batch[1], reduction="none"), outputs.argmax(-1) == batch[1]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.losses(batch).mean()

    def predict_step(self, batch: Batch | Tensor, batch_idx: int = 0) -> Tensor:
        """Predicted labels int64 `[n]`."""
        inputs = batch if isinstance(batch, Tensor) else batch[0]
        labels: Tensor = self(inputs).argmax(-1)
        return labels

    def configure_optimizers(self) -> Optimizer:
        return self.optimizer(self.parameters())
