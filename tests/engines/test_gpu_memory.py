"""Tests data sets and stacks that do not fit into the memory of a simulated GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Semaphore, current_thread
from types import SimpleNamespace

import pytest
import torch
from digits_experiment import digits
from pretended_gpu import PretendedGPU, pretended
from ragged import SIZES, ragged_data
from test_on_gpu import CPU_PLAN, GPU_PLAN, engine_of
from torch import Tensor
from torch.testing import assert_close

import lit_cfl
from lit_cfl.algorithms import FedAvg
from lit_cfl.data import Examples
from lit_cfl.engines.cohort import split_clients
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked import way as stack_way
from lit_cfl.engines.stacked.lane_steps import Steps
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.errors import InputError, Notice
from lit_cfl.local_work import Budget

pytestmark = pytest.mark.nightly  # a pretended GPU

gpu = pytest.fixture(pretended)


def out_of_memory(*given: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def trained(engine: Engine) -> Tensor:
    return engine.at(2, ragged_data()).fit(engine.initial(0)[None], torch.arange(len(SIZES))).rows


def test_examples_on_the_cpu_are_gathered_while_those_before_train(gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Engine, "_split", lambda engine, sizes, data: split_clients(sizes, 40, 99))  # three groups
    monkeypatch.setattr("lit_cfl.engines.engine.fits_on", lambda *_: False)
    expected, gathered, threads = trained(engine_of("mlp", CPU_PLAN)), Semaphore(0), set()
    # the second group is gathered while the first one trains
    wanted, run, batch = [0, 1, 2], StackWay.fit, Examples.batch

    def running(loop: StackWay, *given: object) -> object:
        assert all(gathered.acquire(timeout=60) for _ in range(wanted.pop()))
        return run(loop, *given)

    def gathering(examples: Examples, *given: object) -> object:
        threads.add(current_thread())
        gathered.release()
        return batch(examples, *given)

    monkeypatch.setattr(StackWay, "fit", running)
    monkeypatch.setattr(Examples, "batch", gathering)
    assert torch.equal(trained(engine_of("mlp", GPU_PLAN)), expected)
    assert (wanted, len(threads), current_thread() in threads) == ([], 1, False)


def test_steps_that_cannot_be_captured_are_launched_one_by_one(gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch):
    tried = []

    @contextmanager
    def capture(graph: object, **options: object) -> Iterator[None]:
        tried.append(graph)
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore of it")
        yield

    expected = trained(engine_of("mlp", CPU_PLAN))
    monkeypatch.setattr(torch.cuda, "graph", capture)
    engine = engine_of("mlp", GPU_PLAN)
    with pytest.warns(
        Notice, match=r"captured \(CUDA error: operation not permitted when stream is capturing\), so the operations"
    ):
        assert torch.equal(trained(engine), expected)
    assert torch.equal(trained(engine), expected)
    assert len(tried) == 1  # capturing is not tried again in this run


def test_steps_that_wait_are_refused_before_a_capture_starts(gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch):
    modes, captured, gradients = [0], [], Steps.gradients

    def waiting(steps: Steps, *given: object) -> object:
        if modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return gradients(steps, *given)

    expected = trained(engine_of("mlp", CPU_PLAN))
    monkeypatch.setattr(Steps, "gradients", waiting)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: captured.append(graph))
    with pytest.warns(Notice, match=r"cannot be captured \(called a synchronizing CUDA operation\), so the operations"):
        assert torch.equal(trained(engine_of("mlp", GPU_PLAN)), expected)
    assert (modes, captured) == ([0, "error", 0], [])


@pytest.mark.parametrize("fits", [True, False])
def test_evaluation_waits_for_the_gpu_no_more_often_for_many_batches(
    fits: bool, gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lit_cfl.engines.engine.fits_on", lambda *_: fits)
    engine, data, waits = engine_of("linear", GPU_PLAN), ragged_data(), []
    models = torch.stack([engine.initial(number) for number in range(2)])
    for examples in (10, 10, 2500):  # only the first evaluation moves the data
        index = torch.arange(examples) % len(data.examples)
        with gpu.counting() as counts:
            engine.losses_of_all(models, index, data)
            engine.outcomes_of_each(models, torch.zeros_like(index), index, data)
        waits.append(counts.waits)
    assert gpu.holds(engine.examples(data).inputs) == fits
    assert 0 < waits[2] == waits[1]


def test_data_that_do_not_fit_after_all_stay_on_the_cpu(gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch):
    engine, data = engine_of("mlp", GPU_PLAN), ragged_data()
    monkeypatch.setattr(Examples, "to", out_of_memory)
    assert engine.examples(data) is data.examples
    monkeypatch.setattr(Examples, "to", lambda *_: 1 / 0)
    engine = engine_of("mlp", GPU_PLAN)
    with pytest.raises(ZeroDivisionError):
        engine.examples(data)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("net", ["mlp", "residual"])
def test_full_batches_have_few_lanes(net: str, monkeypatch: pytest.MonkeyPatch):
    expected = trained(engine_of(net, Plan("loop"), "full"))
    room = 64  # the next power of two above the largest client
    assert max(SIZES) == 36
    for most, lanes in ((10**6, 6), (2 * room + 1, 2), (room, 1)):
        monkeypatch.setattr(stack_way, "STACK_EXAMPLES", most)
        engine = engine_of(net, GPU_PLAN, "full")
        assert_close(trained(engine), expected, rtol=0, atol=1e-5)
        assert engine.way._held.index.shape[1:] == (lanes, room)


@pytest.mark.usefixtures("gpu")
def test_fit_with_batches_of_its_own_has_a_stack_and_gives_it_back():
    found = []
    for plan in (CPU_PLAN, GPU_PLAN):
        engine, data, clients = engine_of("linear", plan), ragged_data(), torch.arange(6)
        work, models = engine.at(2, data), engine.initial(0)[None]
        for size in (10, 4, "full", 10):
            rows = work.fit(models, clients, budget=Budget(2, "steps", size)).rows
            found.append(rows)
    for mine, theirs in zip(found[4:], found[:4], strict=True):
        assert_close(mine, theirs, rtol=0, atol=1e-6)
    assert torch.equal(found[4], found[7])


@pytest.mark.usefixtures("gpu")
def test_gpu_without_room_for_one_client_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Engine, "_train", out_of_memory)
    with (
        pytest.raises(
            InputError, match=r"too little memory for one client .*; choose a smaller net or batch_size, or use --dev"
        ),
        pytest.warns(Notice, match="out of memory"),
    ):
        trained(engine_of("mlp", GPU_PLAN))


@pytest.mark.usefixtures("gpu")
def test_a_resumed_run_starts_with_the_lanes_that_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    card = SimpleNamespace(total_memory=2**34)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr("lit_cfl.engines.choose_plan.count_gpus", lambda: 1)
    lanes, whole = [], Engine._train

    def train(self: Engine, *given: object) -> object:
        lanes.append(self.plan.lanes)
        return out_of_memory() if len(lanes) == 2 else whole(self, *given)

    def run(rounds: int) -> None:
        lit_cfl.run(digits(algorithm=FedAvg(), rounds=rounds, device="cuda"), tmp_path, mode="resume")

    monkeypatch.setattr(Engine, "_train", train)
    with pytest.warns(Notice, match="out of memory: .* and to 4 clients"):
        run(1)
    run(2)
    assert lanes == [8, 8, 4, 4, 4]  # before each run, a check trains one client
