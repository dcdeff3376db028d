"""Tests the papers' nets for tweets: initial weights, outputs, and accepted inputs."""

from collections.abc import Callable

import pytest
import torch
from paper_nets import RECURRENT, TWEET, inputs_of
from quadratic import ids
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from lit_cfl.errors import InputError
from lit_cfl.nets import FedGroupLSTM, Net, Sent140GRU, Sent140LSTM
from lit_cfl.parameters import ParameterLayout


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
    assert ParameterLayout.of(built).layers == ("embedding", "rnn1", "rnn2", "fc1", "fc2")


def test_padding_has_the_vector_zero_for_ever():
    net = Sent140GRU([4], 2, vocabulary=7, embedding_width=5)
    weight = net.embedding.weight
    assert [bool(row.any()) for row in weight] == [False] + [True] * 6
    assert float(weight.detach().abs().max()) <= 0.05
    net(torch.tensor([[0, 0, 6, 1]])).sum().backward()
    assert [bool(row.any()) for row in weight.grad] == [False, True, False, False, False, False, True]


@pytest.mark.parametrize(
    ("make", "quoted"),
    [
        (lambda: Sent140GRU([4], 2), "[4] | vocabulary None"),
        (lambda: Sent140LSTM([1, 8, 8], 2, vocabulary=7), "[1, 8, 8] | vocabulary 7"),
        (lambda: FedGroupLSTM([4, 3], 2, vocabulary=7), "vectors | vocabulary, which is 7"),
        (lambda: Sent140GRU([4], 2, vocabulary=7, embedding_width=0), "embedding_width is 0"),
        (lambda: FedGroupLSTM(TWEET, 3), "2 labels, not 3"),
    ],
)
def test_a_net_refuses_what_it_cannot_read(make: Callable[[], Net], quoted: str):
    with pytest.raises(InputError) as refusal:
        make()
    assert all(part in str(refusal.value) for part in quoted.split(" | "))
