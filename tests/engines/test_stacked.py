"""Tests stacks of clients: their layers against PyTorch's, and the schedule and memory of their lanes.

That whole fits of the papers' recurrent nets end alike is stated by `test_engines.py`.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import rng
from ragged import SHAPE, fitted, ragged_data, task
from torch import Tensor, nn
from torch.autograd.profiler import profile
from torch.func import grad, vmap
from torch.nn.functional import conv2d, linear
from torch.nn.utils.rnn import pack_sequence
from torch.optim import SGD, Adam
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.dropout import replace_dropout
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan, Precision
from lit_cfl.engines.stacked import way as stack_way
from lit_cfl.engines.stacked.lane_memory import make_work
from lit_cfl.engines.stacked.lane_schedule import busy_lanes, schedule_by_cost, schedule_lanes, width_for, widths_of
from lit_cfl.engines.stacked.lane_steps import Lanes
from lit_cfl.engines.stacked.products import StackedProducts
from lit_cfl.engines.stacked.stackable_layers import PlainGRU, PlainLSTM
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR, MLP, MNISTCNN

pytestmark = pytest.mark.usefixtures("one_thread")

# Products in place of convolutions and of linear layers' gradients: operation, shapes of inputs and weights, options
PRODUCTS: dict[str, tuple[Any, list[tuple[int, ...]], dict[str, Any]]] = {
    "convolution": (conv2d, [(3, 4, 9, 8), (6, 4, 3, 2), (6,)], {"padding": 1}),
    "strides and paddings of both axes": (
        conv2d, [(3, 4, 9, 8), (6, 4, 3, 2), (6,)], {"stride": (2, 3), "padding": (0, 2)},
    ),
    "same": (conv2d, [(3, 4, 9, 8), (6, 4, 3, 2), (6,)], {"padding": "same"}),
    "dilated": (conv2d, [(3, 4, 9, 8), (6, 4, 3, 2), (6,)], {"dilation": 2}),
    "in groups": (conv2d, [(3, 4, 9, 8), (6, 2, 3, 2), (6,)], {"groups": 2}),
    "linear": (linear, [(5, 7), (4, 7), (4,)], {}),
    "linear without bias": (linear, [(5, 7), (4, 7)], {}),
    "linear of one input": (linear, [(7,), (4, 7), (4,)], {}),
    "linear along an axis": (linear, [(2, 3, 7), (4, 7), (4,)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_outputs_and_gradients_of_products_are_those_of_pytorch(name: str):
    operation, shapes, options = PRODUCTS[name]
    rng = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=rng, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def outputs_and_slopes() -> list[Tensor]:
        found = operation(*tensors, **options)
        weights = torch.arange(found.numel(), dtype=found.dtype).view(found.shape).sin()
        return [found.detach(), *torch.autograd.grad((found * weights).sum(), tensors)]

    expected = outputs_and_slopes()
    with StackedProducts():
        found = outputs_and_slopes()
    for mine, theirs in zip(found, expected, strict=True):
        assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


def test_a_stack_computes_products_in_place_of_convolutions():
    convolution, images = nn.Conv2d(1, 2, 3), torch.randn(5, 4, 1, 6, 6)

    def layer(images: Tensor) -> Tensor:
        return convolution(images).amax((2, 3))

    with Operations() as before:
        expected = vmap(layer)(images)
    with Operations() as after, StackedProducts():
        found = vmap(layer)(images)
    with Operations() as many, StackedProducts():
        vmap(layer)(images.repeat(1, 5, 1, 1, 1))  # 20 images per client
    assert ["convolution" in one.names for one in (before, after, many)] == [True, False, True]
    assert_close(found, expected)


def test_a_stacks_gradients_of_linear_layers_lie_in_memory_as_their_weights_do():
    weights, inputs = torch.randn(3, 4, 7), torch.randn(3, 5, 7)

    def total(weights: Tensor) -> Tensor:
        return vmap(linear)(inputs, weights).square().sum()

    with StackedProducts():
        assert grad(total)(weights).is_contiguous()
    assert not grad(total)(weights).is_contiguous()  # otherwise, PyTorch's own gradient would do


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 8))
def test_every_job_sits_alone_in_lanes_without_gaps_of_which_the_first_is_busy_longest(calls: list[int], lanes: int):
    slots = schedule_lanes(torch.tensor(calls), lanes)
    assert sorted(slot.fit for slot in slots) == list(range(len(calls)))
    assert all(slot.stop - slot.start == calls[slot.fit] for slot in slots)
    taken = [(slot.lane, call) for slot in slots for call in range(slot.start, slot.stop)]
    assert len(set(taken)) == len(taken) == sum(calls)
    assert {lane for lane, _ in taken} <= set(range(lanes))
    busy = busy_lanes(slots)
    assert sum(busy) == sum(calls)  # lanes have no gaps
    assert busy == sorted(busy, reverse=True)
    assert len(busy) <= sum(calls) / lanes + max(calls)  # Graham's bound


def sizes_of_a_cohort(seed: int, cohort: int) -> Tensor:
    """Draws steps as in MNIST-1000: most clients have tens of images, some many hundreds."""
    sizes = 10 + np.random.default_rng(seed).lognormal(3, 1.2, cohort).astype(int)
    return torch.from_numpy(10 * -(-sizes // 10))


@pytest.mark.parametrize("cohort", [20, 100])
@pytest.mark.parametrize("seed", range(5))
def test_wide_stacks_of_a_gpu_cost_little_more_than_the_work_itself(seed: int, cohort: int):
    steps, lanes = sizes_of_a_cohort(seed, cohort), -(-cohort // 8) * 8
    widths = widths_of(lanes, -(-lanes // 27))
    assert len(widths) == 4
    calls, computed = [], []
    for call_cost in (0.0, 5.0, 1000.0):  # for a large, a medium and a small model
        busy = busy_lanes(schedule_by_cost(steps, widths, call_cost))
        calls.append(len(busy))
        computed.append(sum(width_for(lanes, widths) for lanes in busy))
        least = max(int(steps.max()), int(steps.sum()) / lanes)  # minimum number of calls of any schedule
        assert call_cost * len(busy) + computed[-1] < 1.25 * (call_cost * least + int(steps.sum()))
    assert calls == sorted(calls, reverse=True)
    assert computed == sorted(computed)
    assert calls[-1] == int(steps.max())  # as many as in the widest stack


@pytest.mark.parametrize(
    ("lanes", "narrow", "widths"), [(24, 1, [24, 8, 3, 1]), (161, 6, [161, 54, 18, 6]), (4, 2, [4, 3, 2]), (1, 1, [1])]
)
def test_widths_are_in_equal_ratios(lanes: int, narrow: int, widths: list[int]):
    assert widths_of(lanes, narrow) == widths


@pytest.mark.parametrize("prox", [0.0, 0.3])
def test_stack_of_many_widths_gives_the_same_rows(prox: float, monkeypatch: pytest.MonkeyPatch):
    make = task(lambda: MCLR(SHAPE, 10))
    expected, _ = fitted(make, Plan("loop"), prox=prox)
    monkeypatch.setattr(stack_way, "width_for", lambda busy, _: width_for(busy, [8, 4, 2, 1]))
    found, _ = fitted(make, Plan("stack", lanes=8), prox=prox)
    assert_close(found.rows, expected.rows, rtol=0, atol=1e-6)
    assert_close(found.losses, expected.losses, rtol=0, atol=1e-6, equal_nan=True)


NETS = {
    "linear": partial(MCLR, SHAPE, 10),
    "cnn": partial(MNISTCNN, SHAPE, 10),
    "dropout": lambda: nn.Sequential(MLP(12, SHAPE, 16), nn.BatchNorm1d(16), nn.Dropout(0.4), nn.Linear(16, 10)),
}


def estimated(net: str, optimizer: Any = SGD, precision: Precision = "32-true") -> int:
    module = replace_dropout(task(NETS[net], partial(optimizer, lr=0.1))())
    return StackWay.client_bytes(Trial.of(module, ragged_data(), LocalTraining()), precision, 10)


def test_double_precision_takes_twice_the_memory():
    single = estimated("cnn")
    assert 1.9 < estimated("cnn", precision="64-true") / single <= 2  # positions in a pool stay int64
    assert estimated("cnn", precision="tf32") == single
    assert estimated("cnn", precision="bf16-true") < 0.6 * single


@pytest.mark.parametrize(
    ("net", "optimizer"), [("linear", SGD), ("linear", partial(SGD, momentum=0.9)), ("cnn", Adam), ("dropout", SGD)]
)
def test_estimate_is_what_the_allocator_records(net: str, optimizer: Any):
    loop = Engine(task(NETS[net], partial(optimizer, lr=0.1)), Plan("stack"), 5, LocalTraining(1, 10)).way
    slots, width = loop.layout.slots, 6
    rows = tuple(torch.rand(width, *slot.shape) for slot in slots)
    lanes = Lanes(rows, loop._optimizer.start(rows[: sum(not slot.is_buffer for slot in slots)]))
    work = make_work(lanes, ragged_data().examples.batch(torch.tensor([0])), 10)
    with torch.no_grad():
        loop._steps(lanes, work)  # a first step, which also allocates memory that later steps reuse
        work.at.zero_()
        with profile(profile_memory=True) as recorded:
            loop._steps(lanes, work)
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    held = 2 * sum(tensor.nbytes for tensor in lanes.tensors) + 2 * width * 4 * loop.layout.num_columns
    assert estimated(net, optimizer) == pytest.approx((most + held) / width, rel=0.02)


Cells = nn.LSTM | nn.GRU
exactly = partial(assert_close, atol=1e-12, rtol=0)
of_both_kinds = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])


def cells(kind: type[Cells], **options: object) -> tuple[Cells, PlainLSTM | PlainGRU]:
    """Makes a fused layer with 4 inputs and 3 outputs, and its plain form with the same parameters."""
    torch.manual_seed(1)
    fused = kind(4, 3, **options).double()
    return fused, {nn.LSTM: PlainLSTM, nn.GRU: PlainGRU}[kind](fused)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng(seed), dtype=torch.float64)


def results(layer: nn.Module, inputs: Tensor, start: list[Tensor]) -> list[Tensor]:
    """Returns outputs, and gradients of their weighted sum with respect to parameters, inputs and initial states."""
    inputs, start = inputs.clone().requires_grad_(), [state.clone().requires_grad_() for state in start]
    outputs, last = layer(inputs, *([tuple(start)] if len(start) == 2 else start))
    found = [outputs, *([last] if isinstance(last, Tensor) else last)]  # of an LSTM, h_n and c_n are the last states
    total = sum((part * normal(9 + k, *part.shape)).sum() for k, part in enumerate(found))
    wanted = [p for p in layer.parameters() if p.requires_grad]
    return [*found, *torch.autograd.grad(total, [*wanted, inputs, *start])]


@of_both_kinds
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("started", "bias"), [(False, True), (True, True), (True, False)])
def test_outputs_states_and_gradients_are_those_of_the_fused_layer(
    kind: type[Cells], bidirectional: bool, num_layers: int, batch_first: bool, started: bool, bias: bool
):
    options = {"bidirectional": bidirectional, "num_layers": num_layers, "batch_first": batch_first, "bias": bias}
    fused, plain = cells(kind, **options)
    inputs = normal(2, 5, 6, 4)
    batch, parts = inputs.shape[0 if batch_first else 1], 2 if kind is nn.LSTM else 1
    shape = (num_layers * (1 + bidirectional), batch, 3)
    start = [normal(3 + k, *shape) for k in range(parts if started else 0)]
    expected = results(fused, inputs, start)
    assert len(expected) == 1 + parts + (4 if bias else 2) * shape[0] + 1 + len(start)
    for mine, theirs in zip(results(plain, inputs, start), expected, strict=True):
        exactly(mine, theirs)


@of_both_kinds
def test_frozen_biases_stay_so(kind: type[Cells]):
    fused, plain = cells(kind, bidirectional=True)
    fused.bias_hh_l0.requires_grad_(False)
    assert [p.requires_grad for p in plain.parameters()] == [True] * 3 + [False] + [True] * 4
    expected = results(fused, normal(2, 5, 6, 4), [])
    for found, part in zip(results(plain, normal(2, 5, 6, 4), []), expected, strict=True):
        exactly(found, part)


@of_both_kinds
def test_packed_and_single_sequences_are_refused(kind: type[Cells]):
    _, plain = cells(kind)
    for inputs in (pack_sequence([normal(0, 5, 4), normal(1, 3, 4)]), normal(0, 5, 4)):
        with pytest.raises(InputError, match="not packed or single sequences"):
            plain(inputs)
