"""Tests plain LSTM and GRU layers against PyTorch's fused layers, alone and in whole fits."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from quadratic import ids, rng
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pack_sequence
from torch.testing import assert_close

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked.stackable_layers import PlainEmbedding, PlainGRU, PlainLSTM, replace_unstackable_layers
from lit_cfl.errors import InputError
from lit_cfl.local_work import Fitted
from lit_cfl.nets import FedGroupLSTM, Sent140GRU, Sent140LSTM
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification

Cells = nn.LSTM | nn.GRU
SIZES = (0, 3, 17, 36)
exactly = partial(assert_close, atol=1e-12, rtol=0)


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


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
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


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
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


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_each_lane_of_a_stack_is_that_client_alone(kind: type[Cells]):
    _, plain = cells(kind, bidirectional=True, num_layers=2, batch_first=True)
    models = {name: normal(k, 3, *p.shape) for k, (name, p) in enumerate(plain.named_parameters())}
    inputs = normal(50, 3, 2, 5, 4)

    def outputs(model: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat(functional_call(plain, model, (inputs,))))

    together = vmap(outputs)(models, inputs)
    for lane in range(3):
        alone = outputs({name: rows[lane] for name, rows in models.items()}, inputs[lane])
        for mine, expected in zip(together, alone, strict=True):
            exactly(mine[lane], expected)


@pytest.mark.parametrize("padding", [0, 2])
def test_no_gradient_reaches_the_padding_row_of_any_lane(padding: int):
    fused, scale = nn.Embedding(4, 3, padding_idx=padding).double(), normal(1, 8, 3)
    plain, tokens, weights = PlainEmbedding(fused), torch.arange(8).remainder(4).expand(3, 8), normal(0, 3, 4, 3)

    def loss(layer: nn.Embedding, weight: Tensor, tokens: Tensor) -> Tensor:
        return (functional_call(layer, {"weight": weight}, (tokens,)) * scale).square().sum()

    def gradients(stacked: Tensor) -> Tensor:
        return grad(lambda stacked: vmap(partial(loss, plain))(stacked, tokens).sum())(stacked)

    for lane, found in enumerate(gradients(weights)):
        alone = grad(partial(loss, fused))(weights[lane], tokens[lane])
        exactly(found, alone)
        assert found.ne(0).any(1).tolist() == [row != padding for row in range(4)]
    exactly(plain(tokens), fused(tokens))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_and_single_sequences_are_refused(kind: type[Cells]):
    _, plain = cells(kind)
    for inputs in (pack_sequence([normal(0, 5, 4), normal(1, 3, 4)]), normal(0, 5, 4)):
        with pytest.raises(InputError, match="not packed or single sequences"):
            plain(inputs)


def task(net: nn.Module) -> Classification:
    return Classification(net, partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True))


NETS: dict[str, Callable[[], nn.Module]] = {
    f"{net.__name__}-{inputs}": partial(net, *options)
    for net in (Sent140GRU, Sent140LSTM, FedGroupLSTM)
    for inputs, options in {"vectors": ([5, 4], 2), "tokens": ([5], 2, 7, 4)}.items()
}


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_rows_of_a_net_with_plain_cells_are_laid_out_as_before(net: Callable[[], nn.Module]):
    module = task(net())
    before, held = ParameterLayout.of(module), dict(module.named_parameters())
    after = ParameterLayout.of(replace_unstackable_layers(module))
    assert not any(isinstance(layer, nn.RNNBase) for layer in module.modules())
    assert [(s.name, s.layer, s.shape, s.start) for s in after.slots] == [
        (s.name, s.layer, s.shape, s.start) for s in before.slots
    ]
    assert all(parameter is held[name] for name, parameter in module.named_parameters())


def test_layer_of_two_names_stays_one():
    shared = nn.GRU(4, 3)
    module = task(nn.ModuleDict({"a": shared, "b": nn.ModuleList([nn.LSTM(4, 3), shared])}))
    replace_unstackable_layers(module)
    assert module.net["a"] is module.net["b"][1]
    assert [type(layer) for layer in (module.net["a"], module.net["b"][0])] == [PlainGRU, PlainLSTM]


def text_data(tokens: bool) -> FederatedData:
    total = sum(SIZES)
    inputs = torch.randint(0, 7, (total, 5), generator=rng(0)) if tokens else normal(0, total, 5, 4)
    labels = torch.randint(0, 2, (total,), generator=rng(1))
    examples = Examples(inputs, labels, 2, vocabulary=7 if tokens else 0)
    train, none = ClientIndex.from_sizes(torch.arange(total), torch.tensor(SIZES)), ClientIndex.empty(len(SIZES))
    return FederatedData(examples, train, none, none, torch.zeros(len(SIZES), dtype=torch.int64))


@pytest.mark.nightly
@pytest.mark.parametrize("name", NETS)
def test_clients_of_the_papers_recurrent_nets_end_alike_in_every_engine(name: str):
    data = text_data(name.endswith("tokens"))

    def fitted(way: str, lanes: int = 1) -> Fitted:
        local = LocalTraining(epochs=1, batch_size=10, gradient_clip=0.5)
        engine = Engine(lambda: task(NETS[name]()), Plan(way, precision="64-true", lanes=lanes), 3, local)
        start = engine.initial(0)[None]
        found = engine.at(2, data).fit(start, ids(3, 0, 1, 2), prox=0.1, centers=start + 0.01)
        assert (found.rows - start).norm(dim=1).gt(0.05).tolist() == [True, False, True, True]
        return found

    expected = fitted("trainer")
    for plan in (("loop", 1), ("stack", 4)):
        found = fitted(*plan)
        exactly(found.rows, expected.rows)
        exactly(found.losses, expected.losses, equal_nan=True)


class Reader(nn.Module):
    """Net of a recurrent layer, the mean of its outputs, and a linear layer."""

    def __init__(self, rnn: nn.RNNBase, packed: bool = False) -> None:
        super().__init__()
        self.rnn, self.packed = rnn, packed
        self.out = nn.LazyLinear(2)
        self(torch.zeros(2, 5, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        self.rnn.flatten_parameters()
        if self.packed:
            packed = nn.utils.rnn.pack_padded_sequence(inputs, [5] * len(inputs), batch_first=True)
            return self.out(self.rnn(packed)[1][-1])
        return self.out(self.rnn(input=inputs, hx=None)[0].mean(1))  # the names of PyTorch's arguments


@pytest.mark.parametrize("packed", [True, False])
def test_gru_in_a_loop_reads_packed_sequences_too(packed: bool):
    data = text_data(tokens=False)

    def rows(way: str) -> Tensor:
        engine = Engine(lambda: task(Reader(nn.GRU(4, 3, batch_first=True), packed)), Plan(way, precision="64-true"), 3)
        return engine.at(0, data).fit(engine.initial(0)[None], ids(0, 1)).rows

    exactly(rows("loop"), rows("trainer"))
