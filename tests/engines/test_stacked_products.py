"""Convolutions and linear layers as products of a stack, against PyTorch's own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import conv2d, linear
from torch.utils._python_dispatch import TorchDispatchMode

from lit_cfl.engines.stacked.products import StackedProducts

CASES = {
    "plain": {"padding": 1},
    "strides and paddings of both axes": {"stride": (2, 3), "padding": (0, 2)},
    "same": {"padding": "same"},
    "dilated": {"dilation": 2},
    "in groups": {"groups": 2},
}


def slopes(images: Tensor, kernels: Tensor, bias: Tensor, **options: object) -> list[Tensor]:
    found = conv2d(images, kernels, bias, **options)  # type: ignore[arg-type]  # options by name
    weights = torch.arange(found.numel(), dtype=found.dtype).view(found.shape).sin()
    return [found.detach(), *torch.autograd.grad((found * weights).sum(), (images, kernels, bias))]


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_conv2d(case: str):
    rng = torch.Generator().manual_seed(0)
    channels = 2 if case == "in groups" else 4
    images = torch.randn(3, 4, 9, 8, generator=rng, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(6, channels, 3, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(6, generator=rng, dtype=torch.float64, requires_grad=True)
    expected = slopes(images, kernels, bias, **CASES[case])
    with StackedProducts():
        found = slopes(images, kernels, bias, **CASES[case])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


class Pooled(nn.Conv2d):
    """Calls `conv2d` in a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).amax((2, 3))


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


def test_a_stack_computes_products_in_place_of_convolutions():
    layer, images = Pooled(1, 2, 3), torch.randn(5, 4, 1, 6, 6)
    with Operations() as before:
        expected = vmap(layer)(images)
    with Operations() as after, StackedProducts():
        found = vmap(layer)(images)
    with Operations() as many, StackedProducts():
        vmap(layer)(images.repeat(1, 5, 1, 1, 1))  # 20 images a client
    assert ["convolution" in one.names for one in (before, after, many)] == [True, False, True]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_outputs_and_gradients_are_those_of_linear(shape: tuple[int, ...], has_bias: bool):
    rng = torch.Generator().manual_seed(0)
    sizes = (shape, (4, 7), *([(4,)] if has_bias else []))
    given = [torch.randn(size, generator=rng, dtype=torch.float64, requires_grad=True) for size in sizes]

    def outputs_and_slopes() -> list[Tensor]:
        found = linear(*given)
        weights = torch.arange(found.numel(), dtype=found.dtype).view(found.shape).sin()
        return [found.detach(), *torch.autograd.grad((found * weights).sum(), given)]

    expected = outputs_and_slopes()
    with StackedProducts():
        found = outputs_and_slopes()
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_a_stacks_gradients_of_linear_layers_lie_in_memory_as_their_weights_do():
    weights, inputs = torch.randn(3, 4, 7), torch.randn(3, 5, 7)

    def total(weights: Tensor) -> Tensor:
        return vmap(linear)(inputs, weights).square().sum()

    with StackedProducts():
        assert grad(total)(weights).is_contiguous()
    assert not grad(total)(weights).is_contiguous()  # else PyTorch's own would do
