"""Tests the papers' nets for tweets: initial weights, outputs, and accepted inputs."""

import copy
from collections.abc import Sequence

import pytest
import torch
from paper_nets import RECURRENT, TWEET, inputs_of
from quadratic import ids
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.nets import FedGroupLSTM, Net, Sent140GRU, Sent140LSTM
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification


@pytest.mark.parametrize("net", RECURRENT)
def test_recurrent_layers_are_registered_in_the_order_they_are_used(net: type[Net]):
    assert ParameterLayout.of(net([25], 2, vocabulary=7)).layers == ("embedding", "rnn1", "rnn2", "fc1", "fc2")


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


# What is refused


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ([4], {}, r"inputs of shape \[4\] with vocabulary None are not text"),
        ([1, 8, 8], {}, r"inputs of shape \[1, 8, 8\] with vocabulary None are not text"),
        ([1, 8, 8], {"vocabulary": 7}, r"inputs of shape \[1, 8, 8\] with vocabulary 7 are not text"),
        ([4, 3], {"vocabulary": 7}, r"vectors already; leave out vocabulary, which is 7"),
        ([4], {"vocabulary": 7, "embedding_width": 0}, "embedding_width is 0; give 1 or more"),
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


def test_one_logit_is_refused_for_three_labels():
    with pytest.raises(InputError, match="enough for 2 labels, not 3; choose Sent140LSTM"):
        FedGroupLSTM(TWEET, 3)


def test_copy_of_a_recurrent_net_holds_the_row_it_is_given():
    engine = Engine(lambda: Classification(Sent140LSTM([4, 3], 2)), Plan(), 0, LocalTraining())
    row = engine.initial(0) + 0.25
    module = engine.module(row)
    assert torch.equal(engine.layout.read(module), row)
    assert not torch.equal(module(inputs_of(2, 4, 3)), copy.deepcopy(engine.template).eval()(inputs_of(2, 4, 3)))
