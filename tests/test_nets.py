"""The papers' nets: counts of parameters, shapes, starting weights, and what they take."""

import copy
from collections.abc import Sequence

import pytest
import torch
from conftest import ids, rng
from jsonargparse import Namespace
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from lit_cfl.configuration import task_factory
from lit_cfl.data import Examples
from lit_cfl.errors import InputError
from lit_cfl.local.engine import LocalTraining
from lit_cfl.local.plan import Plan
from lit_cfl.local.trainer import TrainerEngine
from lit_cfl.nets import (
    FEMNISTCNN,
    MNISTCNN,
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
CONVOLUTIONAL = [MNISTCNN, FEMNISTCNN, FashionCNN, LeNet, StoCFLCNN, SattlerCNN]
RECURRENT = [Sent140GRU, Sent140LSTM, FedGroupLSTM]


def inputs_of(count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, generator=rng(1))


def sizes_after(net: Net, inputs: Tensor, kind: type[nn.Module]) -> list[int]:
    """The height of what each layer of a kind puts out, in order."""
    seen: list[int] = []
    for layer in net.modules():
        if isinstance(layer, kind):
            layer.register_forward_hook(lambda _, __, output: seen.append(output.shape[-2]))
    net(inputs)
    return seen


# Counts, names, shapes


@pytest.mark.parametrize(
    ("net", "shape", "labels", "count"),
    [
        (MNISTCNN, GREY, 10, 50_186),
        (FEMNISTCNN, GREY, 10, 325_578),
        (FashionCNN, GREY, 10, 3_274_634),
        (LeNet, COLOUR, 10, 62_006),
        (StoCFLCNN, GREY, 62, 1_206_590),
        (SattlerCNN, GREY, 62, 18_506),
        (Sent140GRU, TWEET, 2, 175_938),
        (Sent140LSTM, TWEET, 2, 232_386),
        (FedGroupLSTM, TWEET, 2, 243_861),
    ],
)
def test_net_has_as_many_parameters_as_the_papers(net: type[Net], shape: list[int], labels: int, count: int):
    built = net(shape, labels)
    layout = ParameterLayout.of(built)
    assert (layout.num_parameters, layout.num_columns) == (count, count)
    assert built(inputs_of(3, *shape)).shape == (3, labels)


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


@pytest.mark.parametrize("net", RECURRENT)
def test_recurrent_layers_are_registered_in_the_order_they_are_used(net: type[Net]):
    assert ParameterLayout.of(net([25], 2, vocabulary=7)).layers == ("embedding", "rnn1", "rnn2", "fc1", "fc2")


@pytest.mark.parametrize("net", CONVOLUTIONAL)
@pytest.mark.parametrize("shape", [[3, 32, 32], [1, 29, 30], [2, 16, 21]])
def test_convolutional_net_takes_images_of_other_sizes(net: type[Net], shape: list[int]):
    assert net(shape, 5)(inputs_of(2, *shape)).shape == (2, 5)


def test_sizes_within_the_femnist_net_are_those_of_the_paper():
    inputs = inputs_of(1, *GREY)
    assert [28, *sizes_after(FEMNISTCNN(GREY, 10), inputs, nn.Conv2d)] == [28, 26, 24, 12, 10, 8, 4]


def test_padding_at_stride_2_is_one_in_front_and_two_behind():
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


@pytest.mark.parametrize(("net", "rates"), [
    (MNISTCNN, [0.5]), (FEMNISTCNN, [0.4] * 3), (StoCFLCNN, [0.25, 0.5]), (Sent140GRU, [0.5]), (Sent140LSTM, [0.5]),
])  # fmt: skip
def test_dropout_is_the_papers_and_off_in_evaluation(net: type[Net], rates: list[float]):
    shape = GREY if net in CONVOLUTIONAL else TWEET
    built, inputs = net(shape, 2), inputs_of(2, *shape)
    used: list[float] = []
    for layer in built.modules():
        if isinstance(layer, nn.Dropout):
            layer.register_forward_hook(lambda layer, *_: used.append(layer.p))
    assert not torch.equal(built(inputs), built(inputs))
    assert used == rates * 2
    built.eval()
    assert torch.equal(built(inputs), built(inputs))


# Starting weights


@pytest.mark.parametrize("net", [*CONVOLUTIONAL, *RECURRENT])
def test_kernels_start_glorot_uniform_and_biases_at_zero(net: type[Net]):
    built = net(GREY if net in CONVOLUTIONAL else TWEET, 2)
    for layer in built.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(layer.weight)
            bound = (6 / (fan_in + fan_out)) ** 0.5
            assert 0.8 * bound < float(layer.weight.detach().abs().max()) <= bound
            assert not layer.bias.any()


@pytest.mark.parametrize("net", RECURRENT)
def test_recurrent_kernels_start_orthogonal(net: type[Net]):
    weights = {name: weight for name, weight in net(TWEET, 2).named_parameters() if "weight_hh" in name}
    assert len(weights) == (2 if net is FedGroupLSTM else 4)
    for weight in weights.values():
        torch.testing.assert_close(weight.T @ weight, torch.eye(weight.shape[1]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("net", "units"), [(Sent140LSTM, 64), (FedGroupLSTM, 100)])
def test_an_lstm_starts_remembering(net: type[Net], units: int):
    bias = net(TWEET, 2).rnn1.bias_ih_l0
    assert bias.tolist() == [0.0] * units + [1.0] * units + [0.0] * 2 * units


def test_a_gru_starts_with_zero_biases():
    biases = [weight for name, weight in Sent140GRU(TWEET, 2).named_parameters() if "bias" in name]
    assert len(biases) == 10
    assert not any(bool(bias.any()) for bias in biases)


# Recurrent nets


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
    last = state[0] if isinstance(state, tuple) else state  # [2, n, 32], as PyTorch itself reports it
    expected = built.fc2(torch.relu(built.fc1(torch.cat([last[0], last[1]], 1))))
    assert torch.equal(built(inputs), expected)


def test_one_logit_with_sigmoid_cross_entropy_is_the_loss_of_zero_and_the_logit():
    net, labels = FedGroupLSTM([4, 3], 2), ids(0, 1, 1, 0, 1, 0)
    with torch.no_grad():
        net.fc2.bias.fill_(1.5)
    outputs = 10 * net(inputs_of(6, 4, 3))
    assert outputs[:, 0].tolist() == [0.0] * 6
    expected = binary_cross_entropy_with_logits(outputs[:, 1], labels.float(), reduction="none")
    torch.testing.assert_close(cross_entropy(outputs, labels, reduction="none"), expected, rtol=0, atol=1e-6)
    grads = [
        torch.autograd.grad(loss, net.fc1.weight, retain_graph=True)[0]
        for loss in (cross_entropy(outputs, labels), expected.mean())
    ]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-6)


def test_fedgroup_lstm_is_linear_after_the_last_step():
    net, inputs = FedGroupLSTM([4, 3], 2), inputs_of(2, 4, 3)
    _, (last, _) = net.rnn2(net.rnn1(inputs)[0])
    assert torch.equal(net(inputs)[:, 1:], net.fc2(net.fc1(last[0])))


@pytest.mark.parametrize("net", RECURRENT)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_token_ids_go_through_a_trained_embedding(net: type[Net], dtype: torch.dtype):
    built = net([4], 2, vocabulary=7, embedding_width=5).eval()
    plain = net([4, 5], 2).eval()
    plain.load_state_dict({name: value for name, value in built.state_dict().items() if "embedding" not in name})
    tokens = torch.tensor([[0, 0, 6, 1], [2, 3, 4, 5]], dtype=dtype)
    assert torch.equal(built(tokens), plain(built.embedding.weight[tokens.long()]))
    assert ParameterLayout.of(built).num_parameters == ParameterLayout.of(plain).num_parameters + 7 * 5


def test_padding_has_the_vector_zero_for_ever():
    net = Sent140GRU([4], 2, vocabulary=7, embedding_width=5)
    weight = net.embedding.weight
    assert [bool(row.any()) for row in weight] == [False] + [True] * 6
    assert float(weight.detach().abs().max()) <= 0.05
    net(torch.tensor([[0, 0, 6, 1]])).sum().backward()
    assert [bool(row.any()) for row in weight.grad] == [False, True, False, False, False, False, True]


# What nets are told by the data


def task(net: str, **options: object) -> Namespace:
    given = Namespace(input_shape=None, num_labels=None, **options)
    net_of_task = Namespace(class_path=f"lit_cfl.nets.{net}", init_args=given)
    return Namespace(class_path="lit_cfl.tasks.Classification", init_args=Namespace(net=net_of_task))


def tweets(vectors: bool) -> Examples:
    embeddings = torch.zeros(9, 6) if vectors else None
    return Examples(torch.ones(3, 4, dtype=torch.int32), ids(0, 1, 0), 2, embeddings=embeddings, vocabulary=9)


@pytest.mark.parametrize("unsaid", [None, 0])
def test_net_is_told_the_size_of_the_vocabulary(unsaid: int | None):
    net = task_factory(task("Sent140GRU", vocabulary=unsaid, embedding_width=5), lambda: tweets(False))().net
    assert net.embedding.weight.shape == (9, 5)


def test_net_is_told_of_no_vocabulary_where_the_data_give_vectors():
    net = task_factory(task("Sent140GRU", vocabulary=None), lambda: tweets(True))().net
    assert (net.rnn1.input_size, isinstance(net.embedding, nn.Identity)) == (6, True)


def test_vocabulary_that_is_said_stays():
    net = task_factory(task("Sent140GRU", vocabulary=20, embedding_width=5), lambda: tweets(False))().net
    assert net.embedding.num_embeddings == 20


def test_input_shape_and_labels_are_told_as_before():
    net = task_factory(task("LeNet"), lambda: Examples(torch.zeros(3, 1, 28, 28), ids(0, 1, 3), 4))().net
    assert (net.conv1.in_channels, net.fc3.out_features) == (1, 4)


def test_no_labels_are_refused_and_not_replaced():
    wrong = task("LeNet")
    wrong.init_args.net.init_args.num_labels = 0
    with pytest.raises(InputError, match="num_labels 0"):
        task_factory(wrong, lambda: Examples(torch.zeros(3, 1, 28, 28), ids(0, 1, 3), 4))()


@pytest.mark.parametrize("net", [FEMNISTCNN, LeNet, SattlerCNN])
def test_image_that_is_too_small_is_refused(net: type[Net]):
    with pytest.raises(InputError, match=r"images of \[1, 8, 8\] are too small for this net; choose MNISTCNN"):
        net([1, 8, 8], 10)


@pytest.mark.parametrize("net", CONVOLUTIONAL)
def test_convolutional_net_refuses_what_is_no_image(net: type[Net]):
    with pytest.raises(InputError, match=r"inputs of shape \[60\] are no images"):
        net([60], 10)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ([4], {}, r"inputs of shape \[4\] with vocabulary None are no text"),
        ([1, 8, 8], {}, r"inputs of shape \[1, 8, 8\] with vocabulary None are no text"),
        ([1, 8, 8], {"vocabulary": 7}, r"inputs of shape \[1, 8, 8\] with vocabulary 7 are no text"),
        ([4, 3], {"vocabulary": 7}, r"vectors already; leave out vocabulary, which is 7"),
        ([4], {"vocabulary": 7, "embedding_width": 0}, "embedding_width 0; give 1 or more"),
        ([4], {"vocabulary": -7}, "vocabulary is -7"),
        (None, {}, "needs both"),
    ],
)
@pytest.mark.parametrize("net", RECURRENT)
def test_recurrent_net_refuses_what_it_cannot_read(
    net: type[Net], shape: Sequence[int] | None, options: dict[str, int], message: str
):
    with pytest.raises(InputError, match=message):
        net(shape, 2, **options)


def test_one_logit_cannot_tell_three_labels_apart():
    with pytest.raises(InputError, match="2 labels apart, not 3; choose Sent140LSTM"):
        FedGroupLSTM(TWEET, 3)


def test_copy_of_a_recurrent_net_holds_the_row_it_is_given():
    engine = TrainerEngine(lambda: Classification(Sent140LSTM([4, 3], 2)), Plan(), 0, LocalTraining())
    row = engine.initial(0) + 0.25
    module = engine.module(row)
    assert torch.equal(engine.layout.read(module), row)
    assert not torch.equal(module(inputs_of(2, 4, 3)), copy.deepcopy(engine.template).eval()(inputs_of(2, 4, 3)))
