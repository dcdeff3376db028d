"""Tests plain LSTM, GRU and embedding layers, which can be stacked, against PyTorch's layers.

That whole fits of the papers' recurrent nets end alike is stated by `test_engines.py`.
"""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from quadratic import rng
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pack_sequence
from torch.testing import assert_close

from lit_cfl.engines.stacked.stackable_layers import PlainEmbedding, PlainGRU, PlainLSTM, replace_unstackable_layers
from lit_cfl.errors import InputError
from lit_cfl.nets import FedGroupLSTM, Sent140GRU
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification

Cells = nn.LSTM | nn.GRU
exactly = partial(assert_close, atol=1e-12, rtol=0)
of_both_kinds = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limits PyTorch to one thread, as runs of small models do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def cells(kind: type[Cells], **options: object) -> tuple[Cells, PlainLSTM | PlainGRU]:
    """Makes a fused layer with 4 inputs and 3 outputs, and its plain form with the same parameters."""
    torch.manual_seed(1)
    fused = kind(4, 3, **options).double()
    return fused, {nn.LSTM: PlainLSTM, nn.GRU: PlainGRU}[kind](fused)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng(seed), dtype=torch.float64)


def flat(found: tuple[Tensor, Tensor | tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Returns a list of the outputs, h_n, and for an LSTM also c_n."""
    return [found[0], *([found[1]] if isinstance(found[1], Tensor) else found[1])]


def results(layer: nn.Module, inputs: Tensor, start: list[Tensor]) -> list[Tensor]:
    """Returns outputs, and gradients of their weighted sum with respect to parameters, inputs and initial states."""
    inputs, start = inputs.clone().requires_grad_(), [state.clone().requires_grad_() for state in start]
    found = flat(layer(inputs, *([tuple(start)] if len(start) == 2 else start)))
    total = sum((part * normal(9 + k, *part.shape)).sum() for k, part in enumerate(found))
    wanted = [p for p in layer.parameters() if p.requires_grad]
    return [*found, *torch.autograd.grad(total, [*wanted, inputs, *start])]


@of_both_kinds
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_outputs_states_and_gradients_are_those_of_the_fused_layer(
    kind: type[Cells], bidirectional: bool, num_layers: int, batch_first: bool, started: bool
):
    fused, plain = cells(kind, bidirectional=bidirectional, num_layers=num_layers, batch_first=batch_first)
    inputs = normal(2, 5, 6, 4)
    batch, parts = inputs.shape[0 if batch_first else 1], 2 if kind is nn.LSTM else 1
    shape = (num_layers * (1 + bidirectional), batch, 3)
    start = [normal(3 + k, *shape) for k in range(parts if started else 0)]
    expected = results(fused, inputs, start)
    assert len(expected) == 1 + parts + 4 * shape[0] + 1 + len(start)
    for mine, theirs in zip(results(plain, inputs, start), expected, strict=True):
        exactly(mine, theirs)


@of_both_kinds
def test_frozen_and_missing_biases_stay_so(kind: type[Cells]):
    fused, plain = cells(kind, bidirectional=True)
    fused.bias_hh_l0.requires_grad_(False)
    assert [p.requires_grad for p in plain.parameters()] == [True] * 3 + [False] + [True] * 4
    without, plain_without = cells(kind, bias=False)
    assert [name for name, _ in plain_without.named_parameters()] == ["weight_ih_l0", "weight_hh_l0"]
    for theirs, mine in ((fused, plain), (without, plain_without)):
        expected = results(theirs, normal(2, 5, 6, 4), [])
        for found, part in zip(results(mine, normal(2, 5, 6, 4), []), expected, strict=True):
            exactly(found, part)


@pytest.mark.parametrize("padding", [0, 2])
def test_no_gradient_reaches_the_padding_row_of_any_lane(padding: int):
    fused, scale = nn.Embedding(4, 3, padding_idx=padding).double(), normal(1, 8, 3)
    plain, tokens, weights = PlainEmbedding(fused), torch.arange(8).remainder(4).expand(3, 8), normal(0, 3, 4, 3)

    def loss(layer: nn.Embedding, weight: Tensor, tokens: Tensor) -> Tensor:
        return (functional_call(layer, {"weight": weight}, (tokens,)) * scale).square().sum()

    def gradients(stacked: Tensor) -> Tensor:
        return grad(lambda stacked: vmap(partial(loss, plain))(stacked, tokens).sum())(stacked)

    for lane, found in enumerate(gradients(weights)):
        exactly(found, grad(partial(loss, fused))(weights[lane], tokens[lane]))
        assert found.ne(0).any(1).tolist() == [row != padding for row in range(4)]
    exactly(plain(tokens), fused(tokens))


@of_both_kinds
def test_packed_and_single_sequences_are_refused(kind: type[Cells]):
    _, plain = cells(kind)
    for inputs in (pack_sequence([normal(0, 5, 4), normal(1, 3, 4)]), normal(0, 5, 4)):
        with pytest.raises(InputError, match="not packed or single sequences"):
            plain(inputs)


@pytest.mark.parametrize("net", [partial(Sent140GRU, [5, 4], 2), partial(FedGroupLSTM, [5], 2, 7, 4)])
def test_rows_of_a_net_with_plain_cells_have_the_same_layout_and_parameters(net: partial[nn.Module]):
    module = Classification(net())
    before, held = ParameterLayout.of(module), dict(module.named_parameters())
    after = ParameterLayout.of(replace_unstackable_layers(module))
    assert not any(isinstance(layer, nn.RNNBase) for layer in module.modules())
    places = [[(slot.name, slot.layer, slot.shape, slot.start) for slot in one.slots] for one in (before, after)]
    assert places[0] == places[1]
    assert all(parameter is held[name] for name, parameter in module.named_parameters())
