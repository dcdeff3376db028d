"""BatchNorm layers of a stack: each client has a separate batch, which may contain empty places."""

from typing import cast

import torch
from torch import Tensor, nn

PRESENT = "present"  # name of the buffer
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def has_batch_norm(module: nn.Module) -> bool:
    """Returns whether a module has a layer that normalises by its batch."""
    return any(isinstance(layer, BatchNorm) for layer in module.modules())


class StackedBatchNorm(nn.Module):
    """Replaces a BatchNorm layer, with the same parameters and statistics under their names.

    The statistics of a batch count the examples that are there. A function of tensors cannot change the running ones,
    so they are left in `updated`.

    Args:
        layer: a BatchNorm layer, see `why_not_stacked`.
    """

    present: Tensor
    updated: tuple[Tensor, Tensor] | None

    def __init__(self, layer: BatchNorm) -> None:
        super().__init__()
        self.eps, self.momentum = layer.eps, cast(float, layer.momentum)
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)
        self.register_buffer(PRESENT, torch.ones(1), persistent=False)
        self.updated = None
        self.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        shape = (1, -1, *[1] * (input.dim() - 2))
        mean, var = self._statistics(wide) if self.training or self.running_mean is None else self._running()
        outputs = (wide - mean.view(shape)) * (var + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            outputs = outputs * self.weight.view(shape) + self.bias.view(shape)
        return outputs.to(input.dtype)

    def _running(self) -> tuple[Tensor, Tensor]:
        return cast(Tensor, self.running_mean), cast(Tensor, self.running_var)

    def _statistics(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Computes mean and variance of each channel over the batch; stores the new running statistics in `updated`."""
        places = [0, *range(2, inputs.dim())]
        present = self.present.to(inputs.dtype)
        mask = present.view(-1, *[1] * (inputs.dim() - 1))
        count = present.sum().clamp(min=1) * inputs[0, 0].numel()
        mean = (inputs * mask).sum(places) / count
        centered = inputs - mean.view(1, -1, *[1] * (inputs.dim() - 2))
        var = (centered.square() * mask).sum(places) / count
        if self.running_mean is not None:
            before, unbiased = self._running(), var * (count / (count - 1))
            new = zip(before, (mean.detach(), unbiased.detach()), strict=True)
            first, second = (old + self.momentum * (now.to(old.dtype) - old) for old, now in new)
            self.updated = first, second
        return mean, var


def find_stacked_norms(module: nn.Module) -> dict[str, StackedBatchNorm]:
    """Returns the stacked BatchNorm layers of a module, by their full names."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, StackedBatchNorm)}
