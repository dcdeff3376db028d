"""Tests captured steps with a stand-in for CUDA graphs on the CPU, and engines that run out of memory."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from weakref import ref

import pytest
import torch
from pretended_gpu import Graph, stand_in_for_cuda
from ragged import SHAPE, SIZES, ragged_data, task
from torch import Tensor, nn

from lit_cfl.devices import is_out_of_memory
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked.cuda_graph import CapturedSteps
from lit_cfl.engines.stacked.lane_steps import Steps
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.errors import InputError, Notice
from lit_cfl.nets import MLP

pytestmark = pytest.mark.nightly  # a pretended GPU

ADAM = partial(torch.optim.Adam, lr=0.01)
WIDE = Plan("stack", lanes=4)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Replaces the parts of torch.cuda used by graph capture; returns a list that records each device made current."""
    return stand_in_for_cuda(monkeypatch)


def mlp() -> nn.Module:
    return nn.Sequential(MLP(12, SHAPE, 16), nn.Dropout(0.4), nn.Linear(16, 10))


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets stacks on the CPU capture their steps, as if they were on the GPU `cuda:1`."""
    make = StackWay.__init__

    def made(loop: StackWay, *given: object) -> None:
        make(loop, *given)
        loop._captured = CapturedSteps(loop._steps, "cuda:1")

    monkeypatch.setattr(StackWay, "__init__", made)


def engine_of(plan: Plan, captured: bool = True) -> Engine:
    """Builds an engine whose stacks capture their steps if `captured` is true."""
    engine = build_engine(task(mlp, ADAM), plan, 5, LocalTraining(1, 10))
    if not captured:
        engine.way._captured = None
    return engine


@pytest.mark.usefixtures("captures")
def test_replayed_steps_give_the_bits_of_steps_that_are_not_captured(devices: list[torch.device]):
    engines = [engine_of(WIDE), engine_of(WIDE, captured=False)]
    data = ragged_data()
    models = torch.stack([engines[0].initial(number) for number in range(3)])
    for prox, clients in ((0.0, range(6)), (0.3, range(6)), (0.0, [5, 3]), (0.7, [2, 4, 1]), (0.0, [4, 2])):
        asked = torch.tensor(list(clients))
        found, expected = (
            engine.at(2, data).fit(models, asked, asked % 2, prox=prox, centers=models, center=2) for engine in engines
        )
        assert torch.equal(found.rows, expected.rows)
        assert torch.equal(found.losses.nan_to_num(-1), expected.losses.nan_to_num(-1))
        assert not torch.equal(found.rows, models[asked % 2])
    # one without and one with a proximal term; the first one with it also needed new tensors for the centres
    assert Graph.made == 3
    assert set(devices) == {torch.device("cuda:1")}


@pytest.mark.usefixtures("devices", "captures")
def test_steps_with_and_without_weights_of_examples_are_captured_apart():
    engines = [engine_of(WIDE), engine_of(WIDE, captured=False)]
    data, rng, results = ragged_data(), torch.Generator().manual_seed(1), []
    models, everyone = torch.stack([engines[0].initial(number) for number in range(2)]), torch.arange(6)
    for weighted in (False, True, False, True, True):
        weights = torch.rand(sum(SIZES), generator=rng) if weighted else None
        found, expected = (
            engine.at(2, data).fit(models, everyone, everyone % 2, weights=weights) for engine in engines
        )
        assert torch.equal(found.rows, expected.rows)
        assert torch.equal(found.losses.nan_to_num(-1), expected.losses.nan_to_num(-1))
        results.append(found.rows)
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[3], results[4])  # a replay uses the weights of its own fit


@pytest.mark.usefixtures("devices", "captures")
@pytest.mark.parametrize("deterministic", [False, True])
def test_cudnn_tries_its_algorithms_while_steps_are_captured_and_at_no_other_time(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    engine, tried, step = engine_of(WIDE), [], Steps.gradients

    def seen(steps: Steps, *given: object) -> object:
        tried.append(torch.backends.cudnn.benchmark)
        return step(steps, *given)

    monkeypatch.setattr(Steps, "gradients", seen)
    fit(engine, 1)
    assert set(tried) == {not deterministic}
    assert not torch.backends.cudnn.benchmark


@pytest.mark.usefixtures("devices", "captures")
def test_larger_pool_drops_the_graphs_that_read_the_old_one():
    engine, plain = engine_of(WIDE), engine_of(WIDE, captured=False)
    models = engine.initial(0)[None]
    for sizes in (SIZES, (0, 3, 90, 40)):
        data, clients = ragged_data(sizes), torch.arange(len(sizes))
        assert torch.equal(engine.at(1, data).fit(models, clients).rows, plain.at(1, data).fit(models, clients).rows)
    assert len(engine.way._captured._captured) == 1  # the graph for the old pool was discarded


@pytest.mark.usefixtures("devices", "captures")
def test_capture_that_breaks_off_for_want_of_memory_halves_the_lanes(monkeypatch: pytest.MonkeyPatch):
    @contextmanager
    def broken(graph: Graph, **options: object) -> Iterator[None]:
        if engine.plan.lanes > 1:
            try:
                raise torch.OutOfMemoryError("no memory")
            except torch.OutOfMemoryError as error:
                raise RuntimeError("operation failed due to a previous error during capture") from error
        with graph:
            yield

    monkeypatch.setattr(torch.cuda, "graph", broken)
    engine = engine_of(WIDE)
    with pytest.warns(Notice, match="out of memory: .* and to 2 clients"):
        rows = fit(engine, 1)
    assert engine.plan.lanes == 1
    assert torch.equal(rows, fit(engine_of(replace(WIDE, lanes=1), captured=False), 1))


def test_other_errors_are_not_taken_for_a_want_of_memory():
    assert is_out_of_memory(RuntimeError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    tried = "FIND was unable to find an engine to execute this computation after trying 9 plans."
    assert is_out_of_memory(RuntimeError(tried))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(h)`"))
    assert is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"))
    assert not is_out_of_memory(RuntimeError("illegal memory access"))
    assert not is_out_of_memory(None)


def fit(engine: Engine, round: int) -> Tensor:
    data = ragged_data()
    return engine.at(round, data).fit(engine.initial(0)[None], torch.arange(data.num_clients)).rows


def short_of_memory(monkeypatch: pytest.MonkeyPatch, lanes: int) -> list[int]:
    """Makes stacks of at least `lanes` lanes run out of memory; returns a list that records each number of lanes."""
    whole, tried = StackWay._fit, []

    def fit(loop: StackWay, *given: object) -> object:
        tried.append(loop.plan.lanes)
        if tried[-1] >= lanes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(loop, *given)

    monkeypatch.setattr(StackWay, "_fit", fit)
    return tried


@pytest.mark.parametrize("lanes", [2, 3, 8])
def test_running_out_of_memory_halves_the_lanes_and_says_so_once(lanes: int, monkeypatch: pytest.MonkeyPatch):
    engine = build_engine(task(mlp, ADAM), Plan("stack", lanes=16), 5, LocalTraining(1, 10))
    tried = short_of_memory(monkeypatch, lanes)
    with pytest.warns(Notice, match="out of memory: reduced to 1 MiB of local models at once, and to 8 client") as said:
        rows, _ = (fit(engine, round) for round in (2, 3))
    left = {2: 1, 3: 2, 8: 4}[lanes]
    assert len(said) == 1
    assert tried == [*(width for width in (16, 8, 4, 2) if width >= lanes), left, left]
    assert engine.plan.lanes == left
    alone = build_engine(task(mlp, ADAM), engine.plan, 5, LocalTraining(1, 10))
    assert torch.equal(rows, fit(alone, 2))


@pytest.mark.usefixtures("devices", "captures")
def test_stack_that_ran_out_of_memory_is_freed_with_its_graphs_before_the_next_is_made(
    monkeypatch: pytest.MonkeyPatch,
):
    engine, narrower = engine_of(WIDE), engine_of(replace(WIDE, lanes=2), captured=False)
    fit(engine, 1)
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
            rows = fit(engine, 2)
    finally:
        gc.enable()
    assert engine.way.plan.lanes == 2
    assert freed[0]
    assert torch.equal(rows, fit(narrower, 2))


def test_memory_that_does_not_do_for_one_client_is_an_error():
    engine = build_engine(task(mlp), Plan("loop"), 5, LocalTraining(1, 10))

    def nothing_fits(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    engine._fit_part = nothing_fits
    with pytest.warns(Notice), pytest.raises(InputError, match=r"too little memory for one client.*choose a smaller"):
        fit(engine, 2)


def test_part_of_a_gpu_fills_its_stack():
    engine = build_engine(task(mlp), Plan("stack", rows_mib=1, lanes=4), 5, LocalTraining(1, 10))
    fitting = 2**20 // (4 * engine.layout.num_columns)
    for device, lanes, clients in (("cpu", 512, fitting), ("cuda:0", 512, 512), ("cuda:0", 8, fitting // 8 * 8)):
        engine.plan = Plan("stack", device, rows_mib=1, lanes=lanes)
        assert engine._clients_that_fit == clients
