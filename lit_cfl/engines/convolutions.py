"""Computes convolutions of few channels on a CPU, with ReLU and max-pooling in one go, faster than PyTorch's layers.

oneDNN, PyTorch's library for convolutions, fills vectors with channels: 3 or 6 leave most of a vector empty. Pooling
then takes PyTorch as long as the convolution. `convolutions.cpp` fills vectors with neighbours in a row of an image
(docs/performance.md); it is compiled when it is first needed, and kept (`kernel_cache.py`). Each number is summed up in
an order that depends on the layer alone, so the bits are the same with any number of threads.
"""

from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, relu

from lit_cfl.engines.compiler import load_operators
from lit_cfl.engines.linear import is_plain
from lit_cfl.nets.cnn import Conv2dPooled
from lit_cfl.parameters import replace_layers

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("convolutions.cpp", "tiles.h"))
_MOST_KERNELS = 512  # channels in times channels out, from which on oneDNN is faster


class OwnConv2dPooled(Conv2dPooled):
    """Takes the place of a `Conv2dPooled` that `is_small`, with its own parameters; the same but for rounding."""

    def __init__(self, layer: Conv2dPooled) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(layer.__dict__)

    def forward(self, input: Tensor) -> Tensor:
        if not self._serves(input):
            return super().forward(input)
        bias = self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias
        outputs: Tensor = _ConvolveAndPool.apply(input, self.weight, bias, int(self.padding[0]))
        return outputs

    def _serves(self, input: Tensor) -> bool:
        """Tells whether these are images that the layer can take; PyTorch says what is wrong with others."""
        if not (input.dtype == torch.float32 and input.dim() == 4 and len(input) and is_plain(input)):
            return False
        _, channels, *sides = input.shape
        return channels == self.in_channels and min(sides) + 2 * int(self.padding[0]) > self.kernel_size[0]


def is_small(layer: nn.Module) -> bool:
    """Tells whether `convolutions.cpp` computes this layer, and faster than PyTorch."""
    if type(layer) is not Conv2dPooled:
        return False
    usual = (layer.stride, layer.dilation, layer.groups, layer.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
    borders = [(k, k) for k in range(layer.kernel_size[0] // 2 + 1)]
    served = usual and layer.kernel_size in ((3, 3), (5, 5)) and layer.padding in borders
    return served and layer.in_channels * layer.out_channels < _MOST_KERNELS


def with_convolutions(module: LightningModule) -> LightningModule:
    """Replaces each small convolution of a module in place; parameters stay the same objects. Returns the module."""
    return replace_layers(module, lambda layer: OwnConv2dPooled(cast(Conv2dPooled, layer)) if is_small(layer) else None)


class _ConvolveAndPool(torch.autograd.Function):
    """The largest of each 2 x 2 numbers of a convolution with a bias, at least 0."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Tensor, bias: Tensor, border: int) -> Tensor:
        outputs: Tensor
        outputs, corners = torch.ops.lit_cfl.convolve_and_pool(images, kernels, bias, border)
        ctx.save_for_backward(images, kernels, bias, corners)
        ctx.border = border
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, corners = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of the gradients are wanted: PyTorch's functions have them
            return *_gradients(inputs, ctx.border, gradient, ctx.needs_input_grad), None
        images, kernels, _ = inputs
        of_images, of_kernels, of_bias = torch.ops.lit_cfl.convolve_and_pool_backward(
            gradient, corners, images, kernels, ctx.border, ctx.needs_input_grad[0]
        )
        return of_images if ctx.needs_input_grad[0] else None, of_kernels, of_bias, None


def _gradients(
    inputs: list[Tensor], border: int, gradient: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Computes the gradients by PyTorch's functions, of which it takes gradients again."""
    images, kernels, bias = inputs
    outputs = max_pool2d(relu(conv2d(images, kernels, bias, padding=border)), 2)
    chosen = [tensor for tensor, one in zip(inputs, wanted, strict=False) if one]
    found = iter(torch.autograd.grad(outputs, chosen, gradient, create_graph=True))
    return tuple(next(found) if one else None for one in wanted[:3])


@cache
def load() -> None:
    """Registers the operators of `convolutions.cpp`, compiled now where the cache has none.

    Raises:
        BuildError: they cannot be compiled or loaded here.
    """
    load_operators("convolutions", _SOURCES)
