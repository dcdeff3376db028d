"""The estimate of what a lane of a GPU's stack takes, against counts by hand and the records of the CPU's allocator."""

from functools import partial

import pytest
import torch
from ragged import SHAPE, ragged_data, task
from test_on_gpu import NETS
from torch.autograd.profiler import profile
from torch.optim import SGD, Adam

from lit_cfl.engines.base import Engine
from lit_cfl.engines.dropout import replace_dropout
from lit_cfl.engines.plan import Plan, Precision
from lit_cfl.engines.stacked import way as stack_way
from lit_cfl.engines.stacked.lane_memory import make_work
from lit_cfl.engines.stacked.lane_steps import Lanes
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.engines.workload import TaskTraits

MOMENTUM = partial(SGD, momentum=0.9)
PARAMETERS, INPUT = 8 * 8 * 10 + 10, 8 * 8  # of the linear net, numbers


def estimated(net: str, optimizer: type = SGD, batch_size: int = 10, precision: Precision = "32-true") -> int:
    traits = TaskTraits.of(replace_dropout(task(NETS[net], partial(optimizer, lr=0.1))()), ragged_data())
    return StackWay.client_bytes(traits, precision, batch_size)


@pytest.mark.parametrize(
    ("optimizer", "models"),
    [
        (SGD, 4 + 3),  # lane, its copy, centre, trained model; in a step: gradient, its distance, what both add up to
        (MOMENTUM, 6 + 3),  # one number more for each parameter: in the lane, and in its copy
        (Adam, 8 + 3),
    ],
)
def test_linear_net_takes_as_many_models_as_are_counted_by_hand(optimizer: type, models: int):
    assert SHAPE == [1, 8, 8]
    for size in (10, 20):
        counted = 4 * (models * PARAMETERS + size * INPUT)  # and the batch
        assert estimated("linear", optimizer, size) == pytest.approx(counted, rel=0.02)


@pytest.mark.long
def test_double_precision_takes_twice_the_memory():
    assert 1.9 < estimated("cnn", precision="64-true") / estimated("cnn") <= 2  # positions in a pool stay int64
    assert estimated("cnn", precision="tf32") == estimated("cnn")
    assert estimated("cnn", precision="bf16-true") < 0.6 * estimated("cnn")


@pytest.mark.long
@pytest.mark.parametrize(("net", "optimizer"), [(net, (SGD, Adam)[k % 2]) for k, net in enumerate(NETS)])
def test_estimate_is_what_the_allocator_records(net: str, optimizer: type):
    """Records six lanes, where the estimate takes two."""
    loop = Engine(task(NETS[net], partial(optimizer, lr=0.1)), Plan("stack"), 5, LocalTraining(1, 10)).way
    assert isinstance(loop, StackWay)
    slots, width = loop.layout.slots, 6
    rows = tuple(torch.rand(width, *slot.shape) for slot in slots)
    lanes = Lanes(rows, loop._optimizer.start(rows[: sum(not slot.is_buffer for slot in slots)]))
    work = make_work(lanes, ragged_data().examples.batch(torch.tensor([0])), 10)
    with torch.no_grad():
        loop._steps(lanes, work)  # once, for what is made once
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


def test_what_fake_tensors_cannot_take_counts_as_its_model(monkeypatch: pytest.MonkeyPatch):
    traits = TaskTraits.of(task(NETS["linear"])(), ragged_data())
    monkeypatch.setattr(stack_way, "lane_bytes", lambda *_: 1 / 0)
    assert StackWay.client_bytes(traits, "64-true", 10) == 8 * PARAMETERS
