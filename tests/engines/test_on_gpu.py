"""Tests that a simulated GPU gives the CPU's bits, and that steps and evaluation do not wait for it or copy to it."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Semaphore, current_thread
from types import SimpleNamespace
from typing import Any, Literal
from weakref import ref

import pytest
import torch
from digits_experiment import digits
from pretended_gpu import Counts, Graph, PretendedGPU
from quadratic import ids, rng
from ragged import SHAPE, SIZES, clients_of, ragged_data, task
from torch import Tensor, nn

import lit_cfl
from lit_cfl import nets
from lit_cfl.aggregation import discrepancy, mean_by_cluster
from lit_cfl.algorithms import FedAvg
from lit_cfl.data import Examples, FederatedData
from lit_cfl.data.examples import View
from lit_cfl.engines.cohort import split_clients
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked import way as stack_way
from lit_cfl.engines.stacked.lane_steps import Steps
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.errors import Notice
from lit_cfl.nets import MLP

pytestmark = pytest.mark.nightly  # a pretended GPU

CPU_PLAN, GPU_PLAN = Plan("stack", lanes=6), Plan("stack", "cuda:0", lanes=6)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGPU]:
    """Yields a simulated GPU, and replaces the parts of torch.cuda used by graph capture."""
    gpu = PretendedGPU()

    @contextmanager
    def captured(graph: Graph, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"  # another thread may pin memory
        with graph:
            yield

    def current(device: torch.device) -> nullcontext[None]:
        gpu.made_current.append(device)
        return nullcontext()

    def stream(*_: object) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: None)

    Graph.made, Graph.gpu = 0, gpu
    parts = {
        "Stream": stream,
        "CUDAGraph": Graph,
        "graph": captured,
        "device": current,
        "current_stream": stream,
        "stream": lambda stream: nullcontext(),
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: None,
        "get_device_properties": lambda device: SimpleNamespace(total_memory=2**20),
    }
    for name, part in parts.items():
        monkeypatch.setattr(torch.cuda, name, part)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: gpu.pinned(tensor))  # also applies to other threads
    with gpu:
        yield gpu


@pytest.fixture(autouse=True)
def _one_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the GPU's stack a single width, as on the CPU, because the last bits may depend on the number of lanes."""
    monkeypatch.setattr(stack_way, "widths_of", lambda lanes, narrow: [lanes])


def mlp() -> nn.Module:
    return nn.Sequential(MLP(12, SHAPE, 16), nn.Dropout(0.4), nn.Linear(16, 10))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # constructor, and shape of an input
    "mlp": (mlp, (1, 8, 8)),
    "FEMNISTCNN": (partial(nets.FEMNISTCNN, [1, 28, 28], 10), (1, 28, 28)),
    "Sent140GRU": (partial(nets.Sent140GRU, [6, 5], 2), (6, 5)),
    "FedGroupLSTM": (partial(nets.FedGroupLSTM, [6, 5], 2), (6, 5)),
    "VGG16": (partial(nets.VGG16, [6], width=1, batch_norm=True, input_shape=[1, 32, 32], num_labels=10), (1, 32, 32)),
}


SGD, ADAM = partial(torch.optim.SGD, lr=0.1), partial(torch.optim.Adam, lr=0.01)


def engine_of(
    plan: Plan, batch_size: int | Literal["full"] = 10, net: Callable[[], nn.Module] = mlp, optimizer: Any = SGD
) -> Engine:
    return Engine(task(net, optimizer), plan, 5, LocalTraining(2, batch_size))


def trained(engine: Engine, sizes: tuple[int, ...] = SIZES, **options: Any) -> Tensor:
    """Trains clients from two models in turn; returns their models, and their losses as a last column."""
    clients = options.pop("clients", torch.arange(len(sizes)))
    models = torch.stack([engine.initial(number) for number in range(3)])
    found = engine.at(2, ragged_data(sizes)).fit(models, clients, clients % 2, centers=models, center=2, **options)
    return torch.cat([found.rows, found.losses[:, None].nan_to_num(-1).float()], 1)


def round_of(engine: Engine, data: FederatedData, prox: float = 0.0) -> list[Tensor]:
    """Trains all clients, averages their models in two clusters, and computes losses, gradients and scores."""
    work, clients = engine.at(2, data), torch.arange(data.num_clients)
    models, labels = torch.stack([engine.initial(number) for number in range(3)]), clients % 2
    fitted = work.fit(models, clients, labels, prox=prox, centers=models, center=2)
    means = mean_by_cluster(fitted, labels, data.num_examples, into=models[:2])
    gaps = discrepancy(fitted, means, labels)
    scored = engine.outcomes_of_each(means, torch.arange(2), torch.arange(2), data)
    found = means, gaps, work.losses(means, clients), work.gradients(means[0], clients), scored.losses
    return [torch.as_tensor(part).nan_to_num() for part in found]


@pytest.mark.parametrize(("net", "prox"), [(net, 0.3 * (k % 2)) for k, net in enumerate(NETS)])
def test_gpu_gives_the_bits_of_the_cpu(net: str, prox: float, gpu: PretendedGPU):
    make, shape = NETS[net]
    draws, classes = rng(), 2 if len(shape) == 2 else 10
    inputs, labels = torch.rand(21, *shape, generator=draws), torch.randint(0, classes, (21,), generator=draws)
    data = clients_of(Examples(inputs, labels, classes), (0, 3, 5, 13))
    data = replace(data, test=data.train)
    optimizer = partial(SGD, momentum=0.9)
    expected, found = (round_of(engine_of(plan, 2, make, optimizer), data, prox) for plan in (CPU_PLAN, GPU_PLAN))
    assert all(map(torch.equal, found, expected))


def test_steps_that_are_replayed_in_later_fits_give_the_bits_of_the_cpu(gpu: PretendedGPU):
    captured, plain = (engine_of(plan, optimizer=ADAM) for plan in (GPU_PLAN, CPU_PLAN))
    weights = torch.rand(2, sum(SIZES), generator=rng(1))
    requests: list[dict[str, Any]] = [
        {"prox": 0.0},
        {"prox": 0.3},
        {"clients": ids(5, 3)},
        {"prox": 0.7, "clients": ids(2, 4, 1)},
        {"weights": weights[0]},
        {"prox": 0.0},
        {"weights": weights[1]},  # a replay uses the weights of its own fit
        {"sizes": (0, 3, 90, 40)},  # a larger pool, so that the graphs of the old one are dropped
    ]
    for options in requests:
        assert torch.equal(trained(captured, **options), trained(plain, **options)), options
    assert set(gpu.made_current) == {torch.device("cuda:0")}
    assert len(captured.way._captured._captured) == 1
    assert Graph.made < len(requests)


def test_views_are_seen_without_a_wait_and_a_pool_may_stay_on_cpu(gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch):
    data = ragged_data()
    with gpu.counting() as without:
        round_of(engine_of(GPU_PLAN), data)
    views = (View(), View(quarter_turns=1, noise=0.3), View(label_map=(1, 0, *range(2, 10))))
    seen = data.train.values + len(data.examples) * (torch.arange(len(data.examples)) % 3)
    data = replace(data, examples=replace(data.examples, views=views), train=replace(data.train, values=seen))
    expected = round_of(engine_of(CPU_PLAN), data)[0]
    with gpu.counting() as counts:
        assert torch.equal(round_of(engine_of(GPU_PLAN), data)[0], expected)
    assert counts.waits == without.waits
    monkeypatch.setattr("lit_cfl.engines.engine.fits_on", lambda device, size: False)
    with gpu.counting() as small:
        assert torch.equal(round_of(engine_of(GPU_PLAN), data)[0], expected)
    assert small.waits <= counts.waits


def counted(gpu: PretendedGPU, clients: int, steps: int, prox: float = 0.0) -> Counts:
    """Counts the operations, copies and waits of a fit and its means, after everything has been captured."""
    engine, data = engine_of(GPU_PLAN), ragged_data((10 * steps // 2,) * clients)
    everyone, models = torch.arange(clients), engine.initial(0)[None]
    for _ in range(2):
        with gpu.counting() as counts:
            fitted = engine.at(2, data).fit(models, everyone, prox=prox, centers=models)
            mean_by_cluster(fitted, torch.zeros_like(everyone), data.num_examples, into=models)
    return counts


def test_a_step_is_one_replay_without_a_copy_or_a_wait(gpu: PretendedGPU):
    few, many, pulled = counted(gpu, 6, 4), counted(gpu, 6, 10), counted(gpu, 6, 10, 0.3)
    assert (few.replays, many.replays, pulled.replays) == (4, 10, 10)
    for name in ("launches", "uploads", "downloads", "waits"):
        assert getattr(many, name) == getattr(few, name), name
    assert (pulled.replayed - many.replayed) / 10 == 3 * 6  # the pull of six tensors, only with a proximal term
    assert many.waits <= 4  # waits for the losses, the check that they are finite, the sums of weights, and the means
    assert many.downloads <= 3
    assert many.uploads <= 12


def test_a_client_more_moves_only_its_batches(gpu: PretendedGPU):
    few, many = counted(gpu, 6, 4), counted(gpu, 12, 4)  # twelve clients take turns in six lanes
    assert many.replays == 2 * few.replays
    assert (many.uploads, many.downloads, many.waits) == (few.uploads, few.downloads, few.waits)
    row = 4 * engine_of(CPU_PLAN).layout.num_columns
    tables = 4 * 6 * (8 * 10 + 8 + 16 + 1)  # steps times lanes: batches, keys, corrections, first-step flags
    assert many.moved - few.moved < tables + row  # twelve rows would be more


@pytest.mark.parametrize("fits", [True, False])
def test_evaluation_waits_for_the_gpu_no_more_often_for_many_batches(
    fits: bool, gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lit_cfl.engines.engine.fits_on", lambda *_: fits)
    engine, data, waits = engine_of(GPU_PLAN), ragged_data(), []
    models = torch.stack([engine.initial(number) for number in range(2)])
    for examples in (10, 10, 2500):  # only the first evaluation moves the data
        index = torch.arange(examples) % len(data.examples)
        with gpu.counting() as counts:
            engine.losses_of_all(models, index, data)
            engine.outcomes_of_each(models, torch.zeros_like(index), index, data)
        waits.append(counts.waits)
    assert gpu.holds(engine.examples(data).inputs) == fits
    assert 0 < waits[2] == waits[1]


def test_examples_on_the_cpu_are_gathered_while_those_before_train(gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Engine, "_split", lambda engine, sizes, data: split_clients(sizes, 40, 99))  # three groups
    monkeypatch.setattr("lit_cfl.engines.engine.fits_on", lambda *_: False)
    expected, gathered, threads = trained(engine_of(CPU_PLAN)), Semaphore(0), set()
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
    assert torch.equal(trained(engine_of(GPU_PLAN)), expected)
    assert (wanted, len(threads), current_thread() in threads) == ([], 1, False)


@pytest.mark.parametrize("deterministic", [False, True])
def test_cudnn_tries_its_algorithms_while_steps_are_captured_and_at_no_other_time(
    deterministic: bool, gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    tried, step = list[bool](), Steps.gradients

    def seen(steps: Steps, *given: object) -> object:
        tried.append(torch.backends.cudnn.benchmark)
        return step(steps, *given)

    monkeypatch.setattr(Steps, "gradients", seen)
    trained(engine_of(GPU_PLAN))
    assert set(tried) == {not deterministic}
    assert not torch.backends.cudnn.benchmark


def test_stack_that_ran_out_of_memory_is_freed_with_its_graphs_before_the_next_is_made(
    gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch
):
    engine, expected = engine_of(GPU_PLAN), trained(engine_of(replace(CPU_PLAN, lanes=3)))
    trained(engine)
    old, replay, freed = ref(engine.way), Graph.replay, list[bool]()

    def without_memory(graph: Graph) -> None:
        if engine.way is old():
            raise torch.OutOfMemoryError("CUDA out of memory")
        freed.append(old() is None)
        replay(graph)

    monkeypatch.setattr(Graph, "replay", without_memory)
    gc.disable()  # PyTorch does not collect cycles when memory runs out
    try:
        with pytest.warns(Notice, match="out of memory"):
            found = trained(engine)
    finally:
        gc.enable()
    assert (engine.way.plan.lanes, freed[0]) == (3, True)
    assert torch.equal(found, expected)


def test_steps_that_cannot_be_captured_are_launched_one_by_one(gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch):
    tried = []

    @contextmanager
    def capture(graph: object, **options: object) -> Iterator[None]:
        tried.append(graph)
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore of it")
        yield

    expected = trained(engine_of(CPU_PLAN))
    monkeypatch.setattr(torch.cuda, "graph", capture)
    engine = engine_of(GPU_PLAN)
    with pytest.warns(Notice, match=r"captured \(CUDA error: operation not permitted when stream is capturing\), "):
        assert torch.equal(trained(engine), expected)
    assert torch.equal(trained(engine), expected)
    assert len(tried) == 1  # capturing is not tried again in this run


def test_steps_that_wait_are_refused_before_a_capture_starts(gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch):
    modes, captured, gradients = [0], [], Steps.gradients

    def waiting(steps: Steps, *given: object) -> object:
        if modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return gradients(steps, *given)

    expected = trained(engine_of(CPU_PLAN))
    monkeypatch.setattr(Steps, "gradients", waiting)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: captured.append(graph))
    with pytest.warns(Notice, match=r"cannot be captured \(called a synchronizing CUDA operation\)"):
        assert torch.equal(trained(engine_of(GPU_PLAN)), expected)
    assert (modes, captured) == ([0, "error", 0], [])


@pytest.mark.usefixtures("gpu")
def test_a_resumed_run_starts_with_the_lanes_that_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    card = SimpleNamespace(total_memory=2**34)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr("lit_cfl.engines.choose_plan.count_gpus", lambda: 1)
    lanes, whole = [], Engine._train

    def train(self: Engine, *given: object) -> object:
        lanes.append(self.plan.lanes)
        if len(lanes) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, *given)

    def run(rounds: int) -> None:
        lit_cfl.run(digits(algorithm=FedAvg(), rounds=rounds, device="cuda"), tmp_path, mode="resume")

    monkeypatch.setattr(Engine, "_train", train)
    with pytest.warns(Notice, match="and to 4 clients"):
        run(1)
    run(2)
    assert lanes == [8, 8, 4, 4, 4]  # before each run, a check trains one client
