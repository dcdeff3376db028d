"""Tests the papers' nets and VGG16: numbers of parameters, layers, outputs, starting weights, and accepted inputs.

Numbers of parameters are those that the papers state (docs/ground_truth.md, check 28).
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jsonargparse import Namespace
from own_arrays import assert_refused
from quadratic import ids, rng
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from lit_cfl.config import catalogue
from lit_cfl.config.build import task_factory
from lit_cfl.data import Examples
from lit_cfl.engines.dropout import KeyedDropout, replace_dropout
from lit_cfl.errors import InputError
from lit_cfl.nets import (
    FEMNISTCNN,
    MCLR,
    MLP,
    MNISTCNN,
    VGG16,
    FashionCNN,
    FedGroupLSTM,
    LeNet,
    Net,
    SattlerCNN,
    Sent140GRU,
    Sent140LSTM,
    StoCFLCNN,
)
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification

GREY, COLOUR, TWEET = [1, 28, 28], [3, 32, 32], [25, 300]
# with their numbers of convolutions and of fully connected layers
CONVOLUTIONAL = [(MNISTCNN, 2, 1), (FEMNISTCNN, 6, 2), (FashionCNN, 2, 2), (LeNet, 2, 3), (StoCFLCNN, 2, 2)]
CONVOLUTIONAL += [(SattlerCNN, 2, 1)]
RECURRENT = [Sent140GRU, Sent140LSTM, FedGroupLSTM]

# net, options, shape of an input, number of outputs, number of parameters
COUNTS: list[tuple[type[Net], dict[str, object], list[int], int, int]] = [
    (MCLR, {}, GREY, 10, 7_850),
    (MCLR, {}, GREY, 26, 20_410),
    (MCLR, {}, [60], 10, 610),
    (MLP, {}, GREY, 10, 101_770),
    (MLP, {"hidden": 200}, GREY, 10, 159_010),
    (MLP, {"hidden": 512}, GREY, 10, 407_050),
    (MLP, {"hidden": 512}, GREY, 26, 415_258),
    (MLP, {"hidden": 2048}, GREY, 10, 1_628_170),
    (MNISTCNN, {}, GREY, 10, 50_186),
    (FEMNISTCNN, {}, GREY, 10, 325_578),
    (FashionCNN, {}, GREY, 10, 3_274_634),
    (LeNet, {}, COLOUR, 10, 62_006),
    (StoCFLCNN, {}, GREY, 62, 1_206_590),
    (SattlerCNN, {}, GREY, 62, 18_506),
    (Sent140GRU, {}, TWEET, 2, 175_938),
    (Sent140LSTM, {}, TWEET, 2, 232_386),
    (FedGroupLSTM, {}, TWEET, 2, 243_861),
    (VGG16, {"hidden": []}, COLOUR, 10, 14_719_818),
    (VGG16, {"hidden": []}, [1, 32, 32], 26, 14_726_874),
    (VGG16, {"hidden": [512, 512]}, COLOUR, 10, 15_245_130),
    (VGG16, {"hidden": [512, 512]}, [1, 32, 32], 26, 15_252_186),
    (VGG16, {}, COLOUR, 10, 33_638_218),
    (VGG16, {}, [1, 32, 32], 26, 33_702_618),
    (VGG16, {}, [3, 224, 224], 10, 134_301_514),
    (VGG16, {}, [1, 224, 224], 26, 134_365_914),
    (VGG16, {"hidden": [], "batch_norm": True}, COLOUR, 10, 14_728_266),
    (VGG16, {"hidden": [], "batch_norm": True}, [1, 32, 32], 26, 14_735_322),
]


def inputs_of(count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, generator=rng(1))


def small(net: type[Net]) -> Net:
    """Builds a net for inputs of the papers' shape and two labels; VGG16 with a width of 2."""
    if net is VGG16:
        return VGG16(hidden=[8], width=2, input_shape=COLOUR, num_labels=2)
    return net(input_shape=TWEET if net in RECURRENT else GREY, num_labels=2)


DOCS = Path(__file__).parents[2] / "docs" / "nets.md"
PIXELS = [1, 32, 32]


def tiny(**options: object) -> VGG16:
    return VGG16(**{"hidden": [6], "width": 1, "input_shape": PIXELS, "num_labels": 10} | options)


def outputs_of(net: nn.Module, inputs: Tensor, *kinds: type[nn.Module]) -> dict[str, Tensor]:
    """Returns the outputs of all layers of some kinds by name, in the order of their use."""
    seen: dict[str, Tensor] = {}
    for name, layer in net.named_modules():
        if isinstance(layer, kinds):
            layer.register_forward_hook(lambda _, __, output, name=name: seen.update({name: output}))
    net(inputs)
    return seen


# Counts, names, shapes


@pytest.mark.parametrize(("net", "options", "shape", "labels", "count"), COUNTS)
def test_net_has_as_many_parameters_as_the_papers(net: type[Net], options, shape: list[int], labels: int, count: int):
    # on the meta device, tensors have only shapes: this net would take half a gigabyte
    with torch.device("meta" if net is VGG16 else "cpu"):
        built = net(**options, input_shape=shape, num_labels=labels)
        outputs = built(torch.zeros(3, *shape))
    assert ParameterLayout.of(built).num_parameters == count
    assert outputs.shape == (3, labels)


def test_every_net_is_in_the_table_of_the_docs_with_its_counts():
    page = DOCS.read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in page.splitlines() if re.match(r"\| `[A-Z]", line)}
    assert sorted(rows) == catalogue.names("nets") == sorted({net.__name__ for net, *_ in COUNTS})
    for net, _, _, labels, count in COUNTS:
        assert f"{count:,}" in page
        assert net is VGG16 or f"{count:,} ({labels})" in rows[net.__name__]


@pytest.mark.parametrize(("net", "convolutions", "linear"), CONVOLUTIONAL)
def test_layers_are_registered_in_the_order_they_are_used(net: type[Net], convolutions: int, linear: int):
    built = net(GREY, 10)
    used = outputs_of(built, inputs_of(1, *GREY), nn.Conv2d, nn.Linear)
    expected = [*(f"conv{k + 1}" for k in range(convolutions)), *(f"fc{k + 1}" for k in range(linear))]
    assert list(ParameterLayout.of(built).layers) == list(used) == expected
    for shape in ([3, 32, 32], [1, 29, 30], [2, 16, 21]):
        assert net(shape, 5)(inputs_of(2, *shape)).shape == (2, 5)


@pytest.mark.parametrize(("hidden", "batch_norm"), [([], True), ([5, 7, 9], False)])
def test_layers_of_vgg_are_registered_in_the_order_they_are_used(hidden: list[int], batch_norm: bool):
    net = tiny(hidden=hidden, batch_norm=batch_norm).eval()
    used = outputs_of(net, inputs_of(2, *PIXELS), nn.Conv2d, nn.Linear, nn.BatchNorm2d)
    per_convolution = ["conv{}", "bn{}"] if batch_norm else ["conv{}"]
    expected = [name.format(number) for number in range(1, 14) for name in per_convolution]
    expected += [f"fc{number}" for number in range(1, len(hidden) + 2)]
    assert list(used) == list(ParameterLayout.of(net).layers) == expected


def test_convolutions_poolings_and_relus_of_vgg_are_those_of_the_original():
    with torch.device("meta"):
        layout = ParameterLayout.of(VGG16(input_shape=[3, 32, 32], num_labels=10))
    sizes = [len(layout.columns(f"conv{number}")) for number in range(1, 14)]
    assert sizes == [1_792, 36_928, 73_856, 147_584, 295_168, 590_080, 590_080, 1_180_160, *[2_359_808] * 5]
    assert torch.equal(layout.columns("conv[3]"), layout.columns("conv4"))  # LayerCFL's choice: the fourth convolution
    assert len(layout.columns("fc1")) == 512 * 4096 + 4096
    net, seen = tiny(hidden=[40, 40], width=4).eval(), {}
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0]}))
    outputs = net(inputs_of(20, *PIXELS))
    # poolings follow the second, fourth, seventh, tenth and last convolution
    assert [seen[f"conv{k}"].shape[-1] for k in range(1, 14)] == [32, 32, 16, 16, 8, 8, 8, 4, 4, 4, 2, 2, 2]
    assert seen["fc1"].shape[1] == 8 * 4  # each channel is reduced to one pixel
    negative = [name for name, inputs in seen.items() if (inputs < 0).any()]
    assert (negative, bool((outputs < 0).any())) == (["conv1"], True)  # each layer but the last is followed by ReLU
    assert all(bool((inputs > 0).any()) for inputs in seen.values())


def test_sizes_within_the_femnist_net_are_the_papers_and_padding_at_stride_2_is_one_before_and_two_after():
    net, seen = FEMNISTCNN(GREY, 10), list[Tensor]()
    net.conv3.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    heights = [output.shape[-2] for output in outputs_of(net, inputs_of(1, *GREY), nn.Conv2d).values()]
    assert heights == [26, 24, 12, 10, 8, 4]
    (padded,) = seen
    assert padded.shape[-2:] == (27, 27)
    inner, frame = padded[..., 1:25, 1:25], padded.clone()
    frame[..., 1:25, 1:25] = 0
    assert (bool(inner.any()), bool(frame.any())) == (True, False)
    assert (bool(inner[..., 0, :].any()), bool(inner[..., :, -1].any())) == (True, True)


def test_mlp_may_normalise_its_hidden_layer():
    net = MLP(5, [1, 2, 2], 3, batch_norm=True)
    assert ParameterLayout.of(net).layers == ("fc1", "bn1", "fc2")
    assert ParameterLayout.of(net).num_parameters == (4 * 5 + 5) + 2 * 5 + (5 * 3 + 3)
    inputs = torch.rand(16, 1, 2, 2)
    hidden = net.fc1(inputs.flatten(1))
    normal = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(net(inputs), net.fc2(normal.relu()))


RATES = {FEMNISTCNN: (0.4,) * 3, StoCFLCNN: (0.25, 0.5)}
RATES |= dict.fromkeys((MNISTCNN, Sent140GRU, Sent140LSTM, VGG16), (0.5,))


@pytest.mark.parametrize(("net", "rates"), RATES.items())
def test_dropout_is_the_papers_with_separate_masks_and_off_in_evaluation(net: type[Net], rates: tuple[float, ...]):
    built = small(net)
    inputs = inputs_of(2, *(TWEET if net in RECURRENT else [3, 32, 32] if net is VGG16 else GREY))
    assert not torch.equal(built(inputs), built(inputs))
    drawn = [layer for layer in replace_dropout(Classification(built)).modules() if isinstance(layer, KeyedDropout)]
    assert [(layer.layer, layer.p) for layer in drawn] == list(enumerate(rates))
    built.eval()
    assert torch.equal(built(inputs), built(inputs))


# Starting weights


@pytest.mark.parametrize("net", [MCLR, MLP, *(net for net, *_ in CONVOLUTIONAL), *RECURRENT])
def test_kernels_start_glorot_uniform_and_biases_at_zero(net: type[Net]):
    layers = [layer for layer in small(net).modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert layers
    for layer in layers:
        fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(layer.weight)
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.8 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert not layer.bias.any()


def test_weights_of_vgg_start_as_he_et_al_do_and_biases_at_zero():
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


# Arguments that nets take from the data


def built(net: str, examples: Examples, **options: object) -> nn.Module:
    given = Namespace(class_path=f"lit_cfl.nets.{net}", init_args=Namespace(**{"num_labels": None} | options))
    task = Namespace(class_path="lit_cfl.tasks.Classification", init_args=Namespace(net=given))
    return task_factory(task, lambda: examples)().net


def tweets(vectors: bool) -> Examples:
    embeddings = torch.zeros(9, 6) if vectors else None
    return Examples(torch.ones(3, 4, dtype=torch.int32), ids(0, 1, 0), 2, embeddings=embeddings, vocabulary=9)


IMAGES = Examples(torch.zeros(3, 1, 28, 28), ids(0, 1, 3), 4)


def test_net_gets_the_sizes_of_the_data_unless_they_are_set():
    for vocabulary, expected in ((None, 9), (0, 9), (20, 20)):
        options = {"input_shape": None, "vocabulary": vocabulary, "embedding_width": 5}
        assert built("Sent140GRU", tweets(False), **options).embedding.weight.shape == (expected, 5)
    net = built("Sent140GRU", tweets(True), input_shape=None, vocabulary=None)
    assert (net.rnn1.input_size, isinstance(net.embedding, nn.Identity)) == (6, True)
    net = built("LeNet", IMAGES, input_shape=None)
    assert (net.conv1.in_channels, net.fc3.out_features) == (1, 4)


@pytest.mark.parametrize(
    ("make", "quoted"),
    [
        (lambda: built("LeNet", IMAGES, input_shape=None, num_labels=0), "num_labels 0"),
        (lambda: MLP([4], 3), "MLP.hidden is [4]"),
        *((lambda net=net: net(input_shape=[60], num_labels=10), "not images") for net in (LeNet, VGG16)),
        (lambda: tiny(hidden=[0]), "width is 1, hidden [0]"),
        (lambda: tiny(dropout=1.5), "dropout is 1.5"),
        (lambda: Sent140GRU([4], 2), "[4] | vocabulary None"),
        (lambda: Sent140LSTM([1, 8, 8], 2, vocabulary=7), "[1, 8, 8] | vocabulary 7"),
        (lambda: FedGroupLSTM([4, 3], 2, vocabulary=7), "vectors | vocabulary, which is 7"),
        (lambda: Sent140GRU([4], 2, vocabulary=7, embedding_width=0), "embedding_width is 0"),
        (lambda: FedGroupLSTM(TWEET, 3), "2 labels, not 3"),
    ],
)
def test_net_that_cannot_be_built_is_refused(make: Callable[[], nn.Module], quoted: str):
    assert_refused(make, quoted)


@pytest.mark.parametrize(
    ("net", "least", "pad"), [(FEMNISTCNN, 16, 4), (LeNet, 16, 4), (SattlerCNN, 16, 4), (VGG16, 32, 12)]
)
def test_image_that_is_too_small_is_refused(net: type[Net], least: int, pad: int):
    with pytest.raises(InputError, match=rf"\[1, 8, 8\] .* {least} x {least} .* pad: {pad}\)"):
        net(input_shape=[1, 8, 8], num_labels=10)
    wide = net(input_shape=[1, least, least + 1], num_labels=10)
    assert wide(torch.zeros(1, 1, least, least + 1)).shape == (1, 10)
    with pytest.raises(InputError, match="too small"):
        net(input_shape=[1, least + 1, least - 1], num_labels=10)


# Nets for tweets


@pytest.mark.parametrize("net", RECURRENT)
def test_recurrent_kernels_start_orthogonal(net: type[Net]):
    weights = {name: weight for name, weight in net(TWEET, 2).named_parameters() if "weight_hh" in name}
    assert len(weights) == (2 if net is FedGroupLSTM else 4)
    for weight in weights.values():
        torch.testing.assert_close(weight.T @ weight, torch.eye(weight.shape[1]), rtol=0, atol=1e-5)


def test_an_lstm_starts_remembering_and_a_gru_with_zero_biases():
    for net, units in ((Sent140LSTM, 64), (FedGroupLSTM, 100)):
        bias = net(TWEET, 2).rnn1.bias_ih_l0
        assert bias.tolist() == [0.0] * units + [1.0] * units + [0.0] * 2 * units
    biases = [weight for name, weight in Sent140GRU(TWEET, 2).named_parameters() if "bias" in name]
    assert [bool(bias.any()) for bias in biases] == [False] * 10


@pytest.mark.parametrize("net", [Sent140LSTM, FedGroupLSTM])
def test_second_bias_of_an_lstm_is_never_trained_and_never_travels(net: type[Net]):
    built = net([4, 3], 2)
    frozen = [name for name, weight in built.named_parameters() if not weight.requires_grad]
    assert frozen
    assert all("bias_hh" in name for name in frozen)
    assert not any("bias_hh" in slot.name for slot in ParameterLayout.of(built).slots)
    optimizer = torch.optim.SGD(built.parameters(), lr=1.0, weight_decay=0.1)
    cross_entropy(built(inputs_of(5, 4, 3)), ids(0, 1, 1, 0, 1)).backward()
    optimizer.step()
    assert not any(bool(built.get_parameter(name).any()) for name in frozen)


@pytest.mark.parametrize("net", [Sent140GRU, Sent140LSTM])
def test_bidirectional_net_reads_where_each_direction_ends(net: type[Net]):
    built = net([4, 3], 2).eval()
    inputs = inputs_of(2, 4, 3)
    sequence, _ = built.rnn1(inputs)
    _, state = built.rnn2(sequence)
    last = state[0] if isinstance(state, tuple) else state  # [2, n, 32], the last state that PyTorch reports
    expected = built.fc2(torch.relu(built.fc1(torch.cat([last[0], last[1]], 1))))
    assert torch.equal(built(inputs), expected)


def test_one_logit_with_sigmoid_cross_entropy_is_the_loss_of_zero_and_the_logit():
    """FedGroup's LSTM is linear after its last step, and ends with one logit."""
    net, inputs, labels = FedGroupLSTM([4, 3], 2), inputs_of(6, 4, 3), ids(0, 1, 1, 0, 1, 0)
    with torch.no_grad():
        net.fc2.bias.fill_(1.5)
    _, (last, _) = net.rnn2(net.rnn1(inputs)[0])
    outputs = net(inputs)
    assert torch.equal(outputs[:, 1:], net.fc2(net.fc1(last[0])))
    assert outputs[:, 0].tolist() == [0.0] * 6
    expected = binary_cross_entropy_with_logits(10 * outputs[:, 1], labels.float(), reduction="none")
    found = cross_entropy(10 * outputs, labels, reduction="none")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    grads = [torch.autograd.grad(loss.mean(), net.fc1.weight, retain_graph=True)[0] for loss in (found, expected)]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-6)


@pytest.mark.parametrize("net", RECURRENT)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_token_ids_go_through_a_trained_embedding(net: type[Net], dtype: torch.dtype):
    built = net([4], 2, vocabulary=7, embedding_width=5).eval()
    plain = net([4, 5], 2).eval()
    plain.load_state_dict({name: value for name, value in built.state_dict().items() if "embedding" not in name})
    tokens = torch.tensor([[0, 0, 6, 1], [2, 3, 4, 5]], dtype=dtype)
    assert torch.equal(built(tokens), plain(built.embedding.weight[tokens.long()]))
    assert ParameterLayout.of(built).num_parameters == ParameterLayout.of(plain).num_parameters + 7 * 5
    assert ParameterLayout.of(built).layers == ("embedding", "rnn1", "rnn2", "fc1", "fc2")


def test_padding_has_the_vector_zero_for_ever():
    net = Sent140GRU([4], 2, vocabulary=7, embedding_width=5)
    weight = net.embedding.weight
    assert [bool(row.any()) for row in weight] == [False] + [True] * 6
    assert float(weight.detach().abs().max()) <= 0.05
    net(torch.tensor([[0, 0, 6, 1]])).sum().backward()
    assert [bool(row.any()) for row in weight.grad] == [False, True, False, False, False, False, True]
