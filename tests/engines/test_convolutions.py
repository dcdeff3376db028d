"""Our own convolution with ReLU and pooling against PyTorch's three functions."""

import copy

import pytest
import torch
from conftest import rng
from ragged import SHAPE, fitted, rows_of, task
from torch import Tensor, nn
from torch.func import vmap
from torch.testing import assert_close

from lit_cfl.engines import convolutions
from lit_cfl.engines.convolutions import OwnConv2dPooled, is_small, with_convolutions
from lit_cfl.engines.plan import Plan
from lit_cfl.nets import MNISTCNN
from lit_cfl.nets.cnn import Conv2dPooled


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    convolutions.load()


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=rng(3))


LAYERS = {  # channels in and out, kernel, border; height and width of images
    "LeNet 1": ((3, 6, 5, 0), (32, 32)),
    "LeNet 2": ((6, 16, 5, 0), (14, 14)),
    "odd sizes": ((2, 7, 3, 0), (9, 12)),
    "smallest": ((1, 1, 3, 0), (4, 4)),
    "a border": ((3, 9, 3, 1), (11, 5)),
    "the largest border": ((1, 32, 5, 2), (28, 28)),
    "a border of one": ((4, 3, 5, 1), (8, 7)),
    "rows of several vectors": ((1, 2, 5, 2), (6, 67)),
    "wide and flat": ((2, 5, 3, 1), (2, 34)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("layer", "size"), LAYERS.values(), ids=LAYERS)
def test_outputs_and_both_derivatives_are_those_of_pytorch(
    layer: tuple[int, int, int, int], size: tuple[int, int], bias: bool
):
    before, after, kernel, border = layer
    its = Conv2dPooled(before, after, kernel, padding=border, bias=bias)
    assert is_small(its)
    found = []
    for of in (OwnConv2dPooled(its), its):
        inputs = images(5, before, *size).requires_grad_()
        outputs = of(inputs)
        with_images = [inputs, *its.parameters()]
        first = torch.autograd.grad(outputs.square().sum(), with_images, create_graph=True)
        plain = torch.autograd.grad(of(inputs).square().sum(), with_images)  # without the graph of the gradients
        alone = torch.autograd.grad(of(inputs.detach()).square().sum(), list(its.parameters()))
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [inputs, its.weight])
        found.append([outputs, *first, *plain, *alone, *second])
    for mine, theirs in zip(*found, strict=True):
        assert_close(mine, theirs, rtol=0, atol=2e-6 * float(theirs.detach().abs().max()))


def test_of_equal_corners_the_first_has_the_gradient_and_what_relu_stops_has_none():
    layer = Conv2dPooled(1, 2, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, -1.0])[:, None, None, None] * torch.eye(3)[1].outer(torch.eye(3)[1]))
    found = []
    for of in (OwnConv2dPooled(layer), layer):
        inputs = torch.ones(1, 1, 6, 6, requires_grad=True)
        found += torch.autograd.grad(of(inputs).sum(), [inputs, layer.weight])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0][0, 0, ::2, ::2], torch.tensor([[0.0, 0, 0]] * 3))
    assert found[0][0, 0, 1::2, 1::2].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert torch.equal(found[1], found[3])


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_no_number_is_larger_than_nan(place: tuple[int, int]):
    layer = Conv2dPooled(1, 1, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3)[1].outer(torch.eye(3)[1])[None, None])
    inputs = torch.ones(1, 1, 6, 6)
    inputs[0, 0, 1 + place[0], 1 + place[1]] = float("inf")
    with torch.no_grad():  # infinity times 0 is NaN, so that all around it are NaN
        assert torch.equal(OwnConv2dPooled(layer)(inputs).isnan(), layer(inputs).isnan())
        inputs[0, 0, 1 + place[0], 1 + place[1]] = float("nan")
        assert OwnConv2dPooled(layer)(inputs)[0, 0, 0, 0].isnan()


def test_threads_change_no_bit():
    layer = OwnConv2dPooled(Conv2dPooled(3, 6, 5))
    found = []
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        inputs = images(9, 3, 32, 32).requires_grad_()
        outputs = layer(inputs)
        found.append([outputs, *torch.autograd.grad(outputs.sum(), [inputs, *layer.parameters()])])
        torch.set_num_threads(before)
    assert all(map(torch.equal, *found))


def test_other_inputs_are_left_to_pytorch():
    layer, inputs = Conv2dPooled(3, 6, 5), images(4, 3, 12, 12)
    own = OwnConv2dPooled(copy.deepcopy(layer))
    assert torch.equal(own(inputs[0]), layer(inputs[0]))
    assert own(inputs[:0]).shape == (0, 6, 4, 4)
    assert torch.equal(vmap(own)(inputs[:, None]), vmap(layer)(inputs[:, None]))
    with torch.autocast("cpu", torch.bfloat16):
        assert own(inputs).dtype == torch.bfloat16
    assert torch.equal(own.double()(inputs.double()), layer.double()(inputs.double()))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 1, 12, 12), "expected input.* to have 3 channels, but got 1"),
        ((2, 5, 12, 12), "expected input.* to have 3 channels, but got 5"),
        ((2, 3, 4, 12), "Kernel size can't be greater than actual input size"),
        ((2, 3, 12, 5), "Output size is too small"),
    ],
)
def test_images_that_the_layer_cannot_take_are_an_error(shape: tuple[int, ...], message: str):
    with pytest.raises(RuntimeError, match=message):
        OwnConv2dPooled(Conv2dPooled(3, 6, 5))(images(*shape))


def test_a_layer_with_two_names_stays_one():
    layer = Conv2dPooled(1, 1, 3, padding=1)
    first, second, _ = with_convolutions(task(lambda: nn.Sequential(layer, layer, nn.Flatten()))()).net
    assert first is second is not layer
    assert first.weight is layer.weight


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 6, 5),  # without ReLU and pooling
        Conv2dPooled(3, 6, 4),
        Conv2dPooled(3, 6, (3, 5)),
        Conv2dPooled(3, 6, 5, stride=2),
        Conv2dPooled(3, 6, 5, padding=3),
        Conv2dPooled(3, 6, 5, padding="same"),
        Conv2dPooled(3, 6, 3, padding=1, padding_mode="reflect"),
        Conv2dPooled(3, 6, 3, dilation=2),
        Conv2dPooled(4, 8, 3, groups=2),
        Conv2dPooled(32, 64, 3),
    ],
)
def test_other_layers_are_left_as_they_are(layer: nn.Module):
    assert not is_small(layer)
    module = task(lambda: nn.Sequential(layer, nn.Flatten()))()
    assert with_convolutions(module).net[0] is layer


def test_clients_train_as_with_pytorchs_layers():
    make = task(lambda: MNISTCNN(SHAPE, 10))
    plans = (Plan("stacked", products="own"), Plan("stacked", products="torch"))
    mine, theirs = (rows_of(fitted(make, plan)[0]) for plan in plans)
    assert_close(mine, theirs, rtol=0, atol=1e-6)
