"""VGG16: its layers, its starting weights, its options, and one result over engines."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from paper_nets import inputs_of
from quadratic import rng
from ragged import fitted, ragged_data, reasons_against, rows_of
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torch.testing import assert_close

from lit_cfl.data import FederatedData
from lit_cfl.engines.dropout import KeyedDropout, replace_dropout
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.nets import VGG16
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification

PIXELS = [1, 32, 32]
PAPER = [1_792, 36_928, 73_856, 147_584, 295_168, 590_080, 590_080, 1_180_160, *[2_359_808] * 5]


def tiny(**options: object) -> VGG16:
    return VGG16(**{"hidden": [6], "width": 1, "input_shape": PIXELS, "num_labels": 10} | options)


@pytest.mark.long
def test_convolutions_have_the_sizes_of_the_original():
    with torch.device("meta"):
        layout = ParameterLayout.of(VGG16(input_shape=[3, 32, 32], num_labels=10))
    sizes = [len(layout.columns(f"conv{number}")) for number in range(1, 14)]
    assert sizes == PAPER
    assert torch.equal(layout.columns("conv[3]"), layout.columns("conv4"))  # LayerCFL's fourth layer
    assert len(layout.columns("fc1")) == 512 * 4096 + 4096


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("hidden", [[], [5], [5, 7, 9]])
def test_layers_are_named_in_the_order_they_are_used(hidden: list[int], batch_norm: bool):
    net = tiny(hidden=hidden, batch_norm=batch_norm).eval()
    used: list[str] = []
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
            layer.register_forward_hook(lambda _, __, ___, name=name: used.append(name))
    assert net(inputs_of(2, *PIXELS)).shape == (2, 10)
    per_convolution = ["conv{}", "bn{}"] if batch_norm else ["conv{}"]
    expected = [name.format(number) for number in range(1, 14) for name in per_convolution]
    expected += [f"fc{number}" for number in range(1, len(hidden) + 2)]
    assert used == list(ParameterLayout.of(net).layers) == expected


def test_poolings_follow_the_second_fourth_seventh_tenth_and_last_convolution():
    net, heights = tiny(), []
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda _, __, output: heights.append(output.shape[-1]))
    net(inputs_of(1, *PIXELS))
    assert heights == [32, 32, 16, 16, 8, 8, 8, 4, 4, 4, 2, 2, 2]
    assert net.fc1.in_features == 8  # one pixel a channel is left


def test_every_layer_but_the_last_is_followed_by_relu():
    net, seen = tiny(hidden=[40, 40], width=4), {}
    net.eval()
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0]}))
    outputs = net(inputs_of(20, *PIXELS))
    negative = [name for name, inputs in seen.items() if (inputs < 0).any()]
    assert (negative, bool((outputs < 0).any())) == (["conv1"], True)
    assert all(bool((inputs > 0).any()) for inputs in seen.values())


def test_weights_start_as_he_et_al_do_and_biases_at_zero():
    net = tiny(width=16, hidden=[256, 256])
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len(layers) == 16
    for layer in layers:
        weight = layer.weight.detach()
        spread = (2 / weight[0].numel()) ** 0.5
        assert abs(float(weight.std()) / spread - 1) < 0.15
        assert float(weight.abs().max()) > 2.2 * spread  # normal, not uniform
        assert not layer.bias.any()


def test_signal_and_gradient_live_through_thirteen_layers():
    torch.manual_seed(0)
    net = VGG16(hidden=[64, 64], width=8, input_shape=PIXELS, num_labels=10).eval()
    loss = cross_entropy(net(inputs_of(50, *PIXELS)), torch.arange(50) % 10)
    assert 2.0 < loss < 4.0  # ln 10 is 2.3
    loss.backward()
    norms = [float(net.get_parameter(f"conv{number}.weight").grad.norm()) for number in range(1, 14)]
    assert max(norms) < 30 * min(norms)


@pytest.mark.long
def test_it_learns_bright_from_dark_within_a_few_steps():
    torch.manual_seed(0)
    net = VGG16(hidden=[], width=2, input_shape=PIXELS, num_labels=2)
    labels = torch.arange(8) % 2
    inputs = torch.rand(8, *PIXELS, generator=rng(1)) * 0.5 + 0.5 * labels.view(-1, 1, 1, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        losses.append(cross_entropy(net(inputs), labels))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.1 < losses[0]


def test_dropout_stands_behind_each_hidden_layer_and_each_draws_its_own_mask():
    net = tiny(hidden=[30, 30], dropout=0.4)
    drawn = [layer for layer in replace_dropout(Classification(net)).modules() if isinstance(layer, KeyedDropout)]
    assert [(layer.layer, layer.p) for layer in drawn] == [(0, 0.4), (1, 0.4)]
    without = tiny(hidden=[30, 30], dropout=0.0)
    inputs = inputs_of(2, *PIXELS)
    assert torch.equal(without(inputs), without(inputs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": [0]}, r"width is 1, hidden \[0\]; give widths of 1 or more"),
        ({"width": 0}, "width is 0"),
        ({"dropout": 1.5}, "dropout 1.5 must be 0 to 1"),
        ({"input_shape": [1, 28, 28]}, r"images of \[1, 28, 28\] are too small .* takes 32 x 32 or more; .* pad: 2\)"),
        ({"input_shape": [60]}, "are not images"),
    ],
)
def test_what_cannot_be_built_is_refused(options: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        tiny(**options)


def large_images(sizes: tuple[int, ...]) -> FederatedData:
    data = ragged_data(sizes)
    pixels = interpolate(data.examples.inputs.float(), scale_factor=4).byte()
    return FederatedData(
        type(data.examples)(pixels, data.examples.labels, 10, 1 / 255),
        data.train,
        data.validation,
        data.test,
        data.true_clusters,
    )


@pytest.mark.long
@pytest.mark.parametrize("plan", [Plan("loop"), Plan("stack", lanes=2)], ids=["plain loop", "2 lanes"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_stack_gives_the_trainers_result(batch_norm: bool, plan: Plan):
    def make() -> Classification:
        return Classification(tiny(width=2, batch_norm=batch_norm), partial(torch.optim.SGD, lr=0.05))

    data, budget = large_images((0, 3, 12, 5)), Budget(2, "steps", 5)
    local = LocalTraining(1, 5)
    assert reasons_against(make, data) == []
    expected, _ = fitted(make, Plan("trainer", precision="64-true"), data=data, budget=budget, local=local)
    double = replace(plan, precision="64-true")
    found, engine = fitted(make, double, data=data, budget=budget, local=local)
    assert_close(rows_of(found), rows_of(expected), rtol=1e-9, atol=1e-9 if batch_norm else 1e-12)
    assert_close(found.losses, expected.losses, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert not torch.equal(rows_of(found)[1], engine.initial(1).double())
