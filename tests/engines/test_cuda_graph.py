"""Tests captured steps with a stand-in for CUDA graphs on the CPU."""

import gc
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from pretended_gpu import Graph, stand_in_for_cuda
from ragged import SHAPE, SIZES, ragged_data, task
from torch import Tensor, nn

from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked.cuda_graph import CapturedSteps
from lit_cfl.engines.stacked.lane_steps import Steps
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.errors import Notice
from lit_cfl.nets import MLP

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("devices")]  # a pretended GPU

WIDE = Plan("stack", lanes=4)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Lets stacks on the CPU capture their steps, as if on `cuda:1`; records each device that is made current."""
    make = StackWay.__init__

    def made(loop: StackWay, *given: object) -> None:
        make(loop, *given)
        loop._captured = CapturedSteps(loop._steps, "cuda:1")

    monkeypatch.setattr(StackWay, "__init__", made)
    return stand_in_for_cuda(monkeypatch)


def mlp() -> nn.Module:
    return nn.Sequential(MLP(12, SHAPE, 16), nn.Dropout(0.4), nn.Linear(16, 10))


def engine_of(plan: Plan, captured: bool = True) -> Engine:
    """Builds an engine whose stacks capture their steps if `captured` is true."""
    engine = build_engine(task(mlp, partial(torch.optim.Adam, lr=0.01)), plan, 5, LocalTraining(1, 10))
    if not captured:
        engine.way._captured = None
    return engine


def fit(engine: Engine, round: int = 2, sizes: tuple[int, ...] = SIZES, **options: Any) -> list[Tensor]:
    clients = options.pop("clients", torch.arange(len(sizes)))
    models = torch.stack([engine.initial(number) for number in range(3)])
    found = engine.at(round, ragged_data(sizes)).fit(models, clients, clients % 2, centers=models, center=2, **options)
    return [found.rows, found.losses.nan_to_num(-1)]


def test_replayed_steps_give_the_bits_of_steps_that_are_not_captured(devices: list[torch.device]):
    captured, plain = engine_of(WIDE), engine_of(WIDE, captured=False)
    weights = torch.rand(2, sum(SIZES), generator=torch.Generator().manual_seed(1))
    requests: list[dict[str, Any]] = [
        {"prox": 0.0},
        {"prox": 0.3},
        {"clients": torch.tensor([5, 3])},
        {"prox": 0.7, "clients": torch.tensor([2, 4, 1])},
        {"weights": weights[0]},
        {"prox": 0.0},
        {"weights": weights[1]},  # a replay uses the weights of its own fit
        {"sizes": (0, 3, 90, 40)},  # a larger pool, so that the graphs of the old one are dropped
    ]
    for options in requests:
        assert all(map(torch.equal, fit(captured, **options), fit(plain, **options))), options
    assert set(devices) == {torch.device("cuda:1")}
    assert len(captured.way._captured._captured) == 1
    assert Graph.made < len(requests)  # graphs are replayed in later fits


@pytest.mark.parametrize("deterministic", [False, True])
def test_cudnn_tries_its_algorithms_while_steps_are_captured_and_at_no_other_time(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    tried, step = [], Steps.gradients

    def seen(steps: Steps, *given: object) -> object:
        tried.append(torch.backends.cudnn.benchmark)
        return step(steps, *given)

    monkeypatch.setattr(Steps, "gradients", seen)
    fit(engine_of(WIDE))
    assert set(tried) == {not deterministic}
    assert not torch.backends.cudnn.benchmark


def test_stack_that_ran_out_of_memory_is_freed_with_its_graphs_before_the_next_is_made(
    monkeypatch: pytest.MonkeyPatch,
):
    engine, narrower = engine_of(WIDE), engine_of(replace(WIDE, lanes=2), captured=False)
    fit(engine)
    old, replay, freed = ref(engine.way), Graph.replay, []

    def without_memory(graph: Graph) -> None:
        if engine.way is old():
            raise torch.OutOfMemoryError("CUDA out of memory")
        freed.append(old() is None)
        replay(graph)

    monkeypatch.setattr(Graph, "replay", without_memory)
    gc.disable()  # PyTorch does not collect cycles when memory runs out
    try:
        with pytest.warns(Notice, match="out of memory"):
            found = fit(engine)
    finally:
        gc.enable()
    assert engine.way.plan.lanes == 2
    assert freed[0]
    assert all(map(torch.equal, found, fit(narrower)))
