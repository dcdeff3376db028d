"""The estimate of what a lane of a GPU's stack takes, against counts by hand and the records of the CPU's allocator."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest
import torch
from digits_experiment import digits
from ragged import SHAPE, SIZES, ragged_data, task
from test_on_gpu import NETS
from torch.autograd.profiler import profile
from torch.optim import SGD, Adam

from lit_cfl import experiment
from lit_cfl.engines import choose_plan
from lit_cfl.engines.factory import workload
from lit_cfl.engines.lane_memory import make_work
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.plan import Plan, Precision
from lit_cfl.engines.stacked.engine import StackedEngine
from lit_cfl.engines.steps import Lanes

MOMENTUM = partial(SGD, momentum=0.9)
PARAMETERS, INPUT = 8 * 8 * 10 + 10, 8 * 8  # of the linear net, numbers


def estimated(
    net: str, optimizer: type = SGD, batch_size: int | Literal["full"] = 10, precision: Precision = "32-true"
) -> int:
    make, local = task(NETS[net], partial(optimizer, lr=0.1)), LocalTraining(1, batch_size)
    return workload(make, 5, local, ragged_data(), precision, client_fits=1, on_gpu=True).lane_bytes


@pytest.mark.parametrize(
    ("optimizer", "models"),
    [
        (SGD, 4 + 3),  # lane, its copy, centre, trained model; in a step: gradient, new model, model of active lanes
        (MOMENTUM, 6 + 5),  # one number more for each parameter: in the lane, its copy, the new and the active state
        (Adam, 8 + 7),
    ],
)
def test_linear_net_takes_as_many_models_as_are_counted_by_hand(optimizer: type, models: int):
    assert SHAPE == [1, 8, 8]
    for size in (10, 20):
        counted = 4 * (models * PARAMETERS + size * INPUT)  # and the batch
        assert estimated("linear", optimizer, size) == pytest.approx(counted, rel=0.02)


def test_double_precision_takes_twice_the_memory():
    assert 1.9 < estimated("cnn", precision="64-true") / estimated("cnn") <= 2  # positions in a pool stay int64
    assert estimated("cnn", precision="tf32") == estimated("cnn")
    assert estimated("cnn", precision="bf16-true") < 0.6 * estimated("cnn")


def test_full_batches_are_as_large_as_the_largest_client():
    assert estimated("mlp", batch_size="full") == estimated("mlp", batch_size=max(SIZES))


@pytest.mark.parametrize(("net", "optimizer"), [(net, (SGD, Adam)[k % 2]) for k, net in enumerate(NETS)])
def test_estimate_is_what_the_allocator_records(net: str, optimizer: type):
    """Records six lanes, where the estimate takes two."""
    engine = StackedEngine(task(NETS[net], partial(optimizer, lr=0.1)), Plan("stacked"), 5, LocalTraining(1, 10))
    slots, width = engine.layout.slots, 6
    rows = tuple(torch.rand(width, *slot.shape) for slot in slots)
    lanes = Lanes(rows, engine._optimizer.start(rows[: sum(not slot.is_buffer for slot in slots)]))
    work = make_work(lanes, ragged_data().examples.batch(torch.tensor([0])), 10)
    with torch.no_grad():
        engine._steps(lanes, work)  # once, for what is made once
        with profile(profile_memory=True) as recorded:
            engine._steps(lanes, work)
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    held = 2 * sum(tensor.nbytes for tensor in lanes.tensors) + 2 * width * 4 * engine.layout.num_columns
    assert estimated(net, optimizer) == pytest.approx((most + held) / width, rel=0.02)


@pytest.mark.parametrize(("estimate", "lanes"), [(lambda *_: 2**26, 4), (lambda *_: 1 / 0, 8)])
def test_run_on_a_gpu_has_the_lanes_of_its_estimate(
    estimate: Callable[..., float], lanes: int, monkeypatch: pytest.MonkeyPatch
):
    for module in (experiment, choose_plan):
        monkeypatch.setattr(module, "count_gpus", lambda: 1)
    monkeypatch.setattr(choose_plan, "gib_of_gpu", lambda device: 1)
    monkeypatch.setattr(StackedEngine, "lane_bytes", estimate)
    run = digits()  # five clients a round
    assert run.chosen_plan(run.data.federated(3)).lanes == lanes


def test_nothing_is_estimated_for_a_cpu():
    load = workload(task(NETS["linear"]), 5, LocalTraining(1, 10), ragged_data(), "32-true", client_fits=1)
    assert load.lane_bytes is None
