"""Tests the papers' nets and VGG16: numbers of parameters, shapes, initial weights, and accepted inputs."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from jsonargparse import Namespace
from paper_nets import CONVOLUTIONAL, COUNTS, GREY, RECURRENT, TWEET, inputs_of, small
from quadratic import ids, rng
from ragged import fitted, ragged_data, reasons_against, rows_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torch.testing import assert_close

from lit_cfl.config import catalogue
from lit_cfl.config.build import task_factory
from lit_cfl.data import Examples, FederatedData
from lit_cfl.engines.dropout import KeyedDropout, replace_dropout
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.nets import (
    FEMNISTCNN,
    MCLR,
    MLP,
    MNISTCNN,
    VGG16,
    FashionCNN,
    LeNet,
    Net,
    SattlerCNN,
    Sent140GRU,
    Sent140LSTM,
    StoCFLCNN,
)
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification

DOCS = Path(__file__).parents[2] / "docs" / "nets.md"


def sizes_after(net: Net, inputs: Tensor, kind: type[nn.Module]) -> list[int]:
    """Returns the heights of the outputs of all layers of one kind, in order."""
    seen: list[int] = []
    for layer in net.modules():
        if isinstance(layer, kind):
            layer.register_forward_hook(lambda _, __, output: seen.append(output.shape[-2]))
    net(inputs)
    return seen


# Counts, names, shapes


@pytest.mark.parametrize(("net", "options", "shape", "labels", "count"), COUNTS)
def test_net_has_as_many_parameters_as_the_papers(
    net: type[Net], options: dict[str, object], shape: list[int], labels: int, count: int
):
    # on the meta device, tensors have only shapes: this net would take half a gigabyte
    with torch.device("meta" if net is VGG16 else "cpu"):
        built = net(**options, input_shape=shape, num_labels=labels)
        outputs = built(torch.zeros(3, *shape))
    assert ParameterLayout.of(built).num_parameters == count
    assert outputs.shape == (3, labels)


def test_rows_hold_only_the_counted_parameters():
    for net in (MCLR, MLP, VGG16, *CONVOLUTIONAL, *RECURRENT):
        layout = ParameterLayout.of(small(net))
        assert layout.num_columns == layout.num_parameters


def test_every_net_is_in_the_table_of_the_docs_with_its_counts():
    page = DOCS.read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in page.splitlines() if re.match(r"\| `[A-Z]", line)}
    assert sorted(rows) == catalogue.names("nets") == sorted({net.__name__ for net, *_ in COUNTS})
    for net, _, _, labels, count in COUNTS:
        assert f"{count:,}" in page
        assert net is VGG16 or f"{count:,} ({labels})" in rows[net.__name__]


@pytest.mark.parametrize(
    ("net", "layers"),
    [
        (MNISTCNN, "conv1 conv2 fc1"),
        (FEMNISTCNN, "conv1 conv2 conv3 conv4 conv5 conv6 fc1 fc2"),
        (FashionCNN, "conv1 conv2 fc1 fc2"),
        (LeNet, "conv1 conv2 fc1 fc2 fc3"),
        (StoCFLCNN, "conv1 conv2 fc1 fc2"),
        (SattlerCNN, "conv1 conv2 fc1"),
    ],
)
def test_layers_are_registered_in_the_order_they_are_used(net: type[Net], layers: str):
    built, used = net(GREY, 10), []
    names = {layer: name for name, layer in built.named_modules()}
    for layer in built.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda layer, *_: used.append(names[layer]))
    built(inputs_of(1, *GREY))
    assert list(ParameterLayout.of(built).layers) == used == layers.split()


@pytest.mark.parametrize("net", CONVOLUTIONAL)
@pytest.mark.parametrize("shape", [[3, 32, 32], [1, 29, 30], [2, 16, 21]])
def test_convolutional_net_takes_images_of_other_sizes(net: type[Net], shape: list[int]):
    assert net(shape, 5)(inputs_of(2, *shape)).shape == (2, 5)


def test_sizes_within_the_femnist_net_are_those_of_the_paper():
    inputs = inputs_of(1, *GREY)
    assert [28, *sizes_after(FEMNISTCNN(GREY, 10), inputs, nn.Conv2d)] == [28, 26, 24, 12, 10, 8, 4]


def test_padding_at_stride_2_is_one_before_and_two_after():
    net = FEMNISTCNN(GREY, 10)
    seen: list[Tensor] = []
    net.conv3.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    net(inputs_of(1, *GREY))
    padded = seen[0]
    assert padded.shape[-2:] == (27, 27)
    inner, frame = padded[..., 1:25, 1:25], padded.clone()
    frame[..., 1:25, 1:25] = 0
    assert (bool(inner.any()), bool(frame.any())) == (True, False)
    assert bool(inner[..., 0, :].any())
    assert bool(inner[..., :, -1].any())


@pytest.mark.parametrize(
    ("net", "rates"),
    [
        (MNISTCNN, [0.5]),
        (FEMNISTCNN, [0.4] * 3),
        (StoCFLCNN, [0.25, 0.5]),
        (Sent140GRU, [0.5]),
        (Sent140LSTM, [0.5]),
    ],
)
def test_dropout_is_the_papers_and_off_in_evaluation(net: type[Net], rates: list[float]):
    shape = GREY if net in CONVOLUTIONAL else TWEET
    built, inputs = net(shape, 2), inputs_of(2, *shape)
    used: list[float] = []
    for layer in built.modules():
        if isinstance(layer, nn.Dropout):
            layer.register_forward_hook(lambda layer, *_: used.append(layer.p))
    assert not torch.equal(built(inputs), built(inputs))
    assert used == rates * 2
    # each dropout layer has a separate mask
    assert len({id(layer) for layer in built.modules() if isinstance(layer, nn.Dropout)}) == len(rates)
    built.eval()
    assert torch.equal(built(inputs), built(inputs))


# Starting weights


@pytest.mark.parametrize("net", [MCLR, MLP, *CONVOLUTIONAL, *RECURRENT])
def test_kernels_start_glorot_uniform_and_biases_at_zero(net: type[Net]):
    layers = [layer for layer in small(net).modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert layers
    for layer in layers:
        fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(layer.weight)
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.8 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert not layer.bias.any()


@pytest.mark.parametrize("net", [MLP, LeNet, Sent140LSTM])
def test_pytorchs_starting_weights_are_uniform_up_to_one_over_the_root_of_a_layers_inputs(net: type[Net]):
    ours, theirs = small(net), Classification(small(net), starting_weights="pytorch").net
    assert any(isinstance(layer, nn.Linear) for layer in theirs.modules())
    for name, layer in theirs.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = layer.weight[0].numel() ** -0.5
            assert 0.8 * bound < float(layer.weight.detach().abs().max()) <= bound, name
            assert 0 < float(layer.bias.detach().abs().max()) <= bound, name
        elif isinstance(layer, nn.RNNBase):
            for weight, before in zip(layer.parameters(), ours.get_submodule(name).parameters(), strict=True):
                assert weight.any() == before.any(), name  # an LSTM's second bias stays frozen at 0


@pytest.mark.parametrize("net", [MCLR, MLP, VGG16, *CONVOLUTIONAL, *RECURRENT])
def test_initial_model_is_a_matter_of_the_seed_and_its_number_alone(net: type[Net]):
    def initial(seed: int, number: int) -> Tensor:
        return Engine(lambda: Classification(small(net)), Plan(), seed, LocalTraining()).initial(number)

    before = torch.get_rng_state()
    first = initial(3, 1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)  # draws of other code do not matter
    assert torch.equal(initial(3, 1), first)
    for other in (initial(3, 0), initial(4, 1)):
        assert (other != first).float().mean() > 0.8


# Arguments that nets take from the data


def task(net: str, **options: object) -> Namespace:
    given = Namespace(input_shape=None, num_labels=None, **options)
    net_of_task = Namespace(class_path=f"lit_cfl.nets.{net}", init_args=given)
    return Namespace(class_path="lit_cfl.tasks.Classification", init_args=Namespace(net=net_of_task))


def tweets(vectors: bool) -> Examples:
    embeddings = torch.zeros(9, 6) if vectors else None
    return Examples(torch.ones(3, 4, dtype=torch.int32), ids(0, 1, 0), 2, embeddings=embeddings, vocabulary=9)


@pytest.mark.parametrize("unsaid", [None, 0])
def test_net_gets_the_size_of_the_vocabulary(unsaid: int | None):
    net = task_factory(task("Sent140GRU", vocabulary=unsaid, embedding_width=5), lambda: tweets(False))().net
    assert net.embedding.weight.shape == (9, 5)


def test_net_gets_no_vocabulary_if_the_data_are_vectors():
    net = task_factory(task("Sent140GRU", vocabulary=None), lambda: tweets(True))().net
    assert (net.rnn1.input_size, isinstance(net.embedding, nn.Identity)) == (6, True)


def test_vocabulary_that_is_set_is_kept():
    net = task_factory(task("Sent140GRU", vocabulary=20, embedding_width=5), lambda: tweets(False))().net
    assert net.embedding.num_embeddings == 20


class FlatNet(nn.Module):
    """Expects a whole number as the shape of an input, which is a list: the mistake."""

    def __init__(self, input_shape: int | None = None, num_labels: int | None = None) -> None: ...


def test_net_whose_annotation_does_not_allow_the_size_from_the_data_is_named():
    given = task("MLP")
    given.init_args.net.class_path = f"{__name__}.FlatNet"
    with pytest.raises(InputError, match=r"^task.net.input_shape is \[4\]; give a whole number"):
        task_factory(given, lambda: tweets(False))()


class ClassesNet(nn.Module):
    """Takes the number of labels under another name: the mistake."""

    def __init__(self, num_classes: int | None = None) -> None:
        super().__init__()
        self.last = nn.Linear(4, num_classes)  # type: ignore[arg-type]  # None: the mistake


def test_a_net_that_fails_for_want_of_an_argument_is_named_with_its_line():
    given = task("MLP")
    given.init_args.net = Namespace(class_path=f"{__name__}.ClassesNet", init_args=Namespace(num_classes=None))
    with pytest.raises(InputError, match=r"ClassesNet raised TypeError: .*NoneType.* \(in .*test_nets.py, line"):
        task_factory(given, lambda: tweets(False))()


class OwnNet(nn.Module):
    def __init__(self, input_shape: list[int] | None = None, num_labels: int | None = None) -> None:
        super().__init__()


def test_a_message_about_another_part_of_the_task_does_not_list_the_nets_arguments():
    given = task("MLP")
    given.init_args.net = Namespace(
        class_path=f"{__name__}.OwnNet", init_args=Namespace(input_shape=None, num_labels=None)
    )
    given.init_args.scores = ["accuracy", "f2"]
    with pytest.raises(InputError, match=r"task\.scores names 'f2'") as error:
        task_factory(given, lambda: tweets(False))()
    assert "from the data" not in str(error.value)


def test_net_gets_input_shape_and_labels_as_before():
    net = task_factory(task("LeNet"), lambda: Examples(torch.zeros(3, 1, 28, 28), ids(0, 1, 3), 4))().net
    assert (net.conv1.in_channels, net.fc3.out_features) == (1, 4)


def test_no_labels_are_refused_and_not_replaced():
    wrong = task("LeNet")
    wrong.init_args.net.init_args.num_labels = 0
    with pytest.raises(InputError, match="num_labels 0"):
        task_factory(wrong, lambda: Examples(torch.zeros(3, 1, 28, 28), ids(0, 1, 3), 4))()


@pytest.mark.parametrize(
    ("net", "least", "pad"), [(FEMNISTCNN, 16, 4), (LeNet, 16, 4), (SattlerCNN, 16, 4), (VGG16, 32, 12)]
)
def test_image_that_is_too_small_is_refused(net: type[Net], least: int, pad: int):
    expected = rf"\[1, 8, 8\] are too small for this net, which takes {least} x {least} .* pad: {pad}\)"
    with pytest.raises(InputError, match=expected):
        net(input_shape=[1, 8, 8], num_labels=10)
    built = net(input_shape=[1, least, least + 1], num_labels=10)
    assert built(torch.zeros(1, 1, least, least + 1)).shape == (1, 10)
    with pytest.raises(InputError, match="too small"):
        net(input_shape=[1, least + 1, least - 1], num_labels=10)


@pytest.mark.parametrize("net", CONVOLUTIONAL)
def test_convolutional_net_refuses_inputs_other_than_images(net: type[Net]):
    with pytest.raises(InputError, match=r"inputs of shape \[60\] are not images"):
        net([60], 10)


def test_mlp_without_the_width_of_its_hidden_layer_is_refused():
    with pytest.raises(InputError, match=r"MLP.hidden is \[4\]; give the width of the hidden layer, 1 or more, before"):
        MLP([4], 3)


def test_mlp_may_normalise_its_hidden_layer():
    net = MLP(5, [1, 2, 2], 3, batch_norm=True)
    assert ParameterLayout.of(net).layers == ("fc1", "bn1", "fc2")
    assert ParameterLayout.of(net).num_parameters == (4 * 5 + 5) + 2 * 5 + (5 * 3 + 3)
    inputs = torch.rand(16, 1, 2, 2)
    hidden = net.fc1(inputs.flatten(1))
    normal = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(net(inputs), net.fc2(normal.relu()))


PIXELS = [1, 32, 32]


PAPER = [1_792, 36_928, 73_856, 147_584, 295_168, 590_080, 590_080, 1_180_160, *[2_359_808] * 5]


def tiny(**options: object) -> VGG16:
    return VGG16(**{"hidden": [6], "width": 1, "input_shape": PIXELS, "num_labels": 10} | options)


def test_convolutions_have_the_sizes_of_the_original():
    with torch.device("meta"):
        layout = ParameterLayout.of(VGG16(input_shape=[3, 32, 32], num_labels=10))
    sizes = [len(layout.columns(f"conv{number}")) for number in range(1, 14)]
    assert sizes == PAPER
    assert torch.equal(layout.columns("conv[3]"), layout.columns("conv4"))  # LayerCFL's choice: the fourth convolution
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
    assert net.fc1.in_features == 8  # each channel is reduced to one pixel


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
    torch.manual_seed(1)  # for one of six seeds, the 144 weights of the first layer have too large a deviation
    net = tiny(width=16, hidden=[256, 256])
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len(layers) == 16
    for layer in layers:
        weight = layer.weight.detach()
        spread = (2 / weight[0].numel()) ** 0.5
        assert abs(float(weight.std()) / spread - 1) < 0.15
        assert float(weight.abs().max()) > 2.2 * spread  # the weights are normal, not uniform
        assert not layer.bias.any()


def test_signal_and_gradient_live_through_thirteen_layers():
    torch.manual_seed(0)
    net = VGG16(hidden=[64, 64], width=8, input_shape=PIXELS, num_labels=10).eval()
    loss = cross_entropy(net(inputs_of(50, *PIXELS)), torch.arange(50) % 10)
    assert 2.0 < loss < 4.0  # ln 10 is 2.3
    loss.backward()
    norms = [float(net.get_parameter(f"conv{number}.weight").grad.norm()) for number in range(1, 14)]
    assert max(norms) < 30 * min(norms)


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


def test_dropout_follows_each_hidden_layer_with_a_separate_mask():
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
        ({"dropout": 1.5}, "dropout is 1.5; give 0 to 1"),
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
