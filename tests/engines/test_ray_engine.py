"""Tests the `ray` engine on real workers: their results, what is sent to them, and workers that fail or die.

That two workers train as one process does is stated by `test_ways.py`; what needs no Ray, by `test_ray_cluster.py`.
"""

import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from processes import descendants
from quadratic import ids, rng
from ragged import SHAPE, clients_of, fitted
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.data import Examples, FederatedData
from lit_cfl.engines.choose_plan import Workload, build_engine, choose_plan, room_of_ray
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan, PlanOptions
from lit_cfl.engines.ray import engine as ray_engine
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.engines.task_protocol import TaskFactory
from lit_cfl.errors import DivergedError, InputError, Interrupted, Notice, WorkersLostError
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR, MLP
from lit_cfl.tasks import Classification

pytestmark = pytest.mark.ray
DOUBLE = Plan(precision="64-true")
OWN_CODE = """
from torch import nn
class OwnNet(nn.Sequential):  # 1.2 MiB
    def __init__(self):
        super().__init__(nn.Linear(5, 18_000), nn.Dropout(0.3), nn.ReLU(), nn.Linear(18_000, 3))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Starts Ray as a user might, and gives PyTorch as many threads as the plan `DOUBLE` has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(DOUBLE.threads)
    ray.init("local", num_cpus=5, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides a folder; a file created there makes workers fail at their next step."""
    return tmp_path_factory.mktemp("orders")


@pytest.fixture(scope="module")
def task(orders: Path, tmp_path_factory: pytest.TempPathFactory) -> TaskFactory:
    """Returns a factory of a task whose net only the driver can import, and whose class is in no file."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "own_net_of_a_user.py").write_text(OWN_CODE)
    sys.path.append(str(folder))
    from own_net_of_a_user import OwnNet

    driver = os.getpid()

    def taken(name: str) -> bool:
        with suppress(FileNotFoundError):
            (orders / name).unlink()  # only one of the workers that see the file removes it
            return True
        return False

    class Obedient(Classification):
        def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            if os.getpid() == driver:
                return super().losses(batch)
            if (orders / "die").exists() or taken("die once"):
                (orders / "died").write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            if taken("no memory"):
                raise torch.OutOfMemoryError("none left")
            return super().losses(batch) + (float("nan") if (orders / "diverge").exists() else 0.0)

    return lambda: Obedient(OwnNet(), partial(torch.optim.SGD, lr=0.05, momentum=0.9))


@pytest.fixture
def order(orders: Path) -> Iterator[Callable[[str], None]]:
    """Provides a function that tells workers to fail, and revokes all orders afterwards."""
    yield lambda name: (orders / name).touch()
    for file in orders.iterdir():
        file.unlink()


@pytest.fixture(scope="module")
def two_workers(cluster: None, task: TaskFactory) -> Iterator[Engine]:
    engine = engine_of(task, workers=2)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def one_worker(cluster: None, task: TaskFactory) -> Iterator[Engine]:
    engine = engine_of(task, workers=1)
    yield engine
    engine.close()


def made_data(sizes: Sequence[int] = (0, 3, 17, 36, 8)) -> FederatedData:
    draws, total = rng(), sum(sizes)
    inputs = torch.randn(total, 5, generator=draws, dtype=torch.float64)
    return clients_of(Examples(inputs, torch.randint(0, 3, (total,), generator=draws), 3), sizes)


def engine_of(task: TaskFactory, workers: int = 1) -> Engine:
    plan = replace(DOUBLE, engine="loop", workers=workers)
    return build_engine(task, plan, 11, LocalTraining(epochs=2, batch_size=4))


def linear() -> Classification:
    return Classification(MCLR([5], 3), partial(torch.optim.SGD, lr=0.1))


def fit(engine: Engine, *clients: int, round: int = 4, **options: Any) -> Tensor:
    return engine.at(round, made_data()).fit(engine.initial(0)[None], ids(*clients), **options).collect()


def gone(pid: int) -> bool:
    """Returns whether a process ends within ten seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        sleep(0.1)
    return False


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ray_that_is_started_for_a_run_gives_the_trainers_result_and_ends_with_the_run(monkeypatch: pytest.MonkeyPatch):
    """Must run before the tests with the fixture `cluster`, whose Ray lives until the end of this file."""
    make = lambda: Classification(MLP(12, SHAPE, 10), partial(torch.optim.SGD, lr=0.1), 0.1)  # noqa: E731
    assert not ray.is_initialized()
    monkeypatch.setenv("RAY_ADDRESS", "")
    others = descendants(os.getpid())
    before = signal.signal(signal.SIGTERM, own := lambda signum, frame: None)
    try:
        found, engine = fitted(make, replace(DOUBLE, engine="loop", workers=1))
        assert ray.is_initialized()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    expected, _ = fitted(make, DOUBLE)
    assert_close(found.rows, expected.rows, rtol=0, atol=1e-12)
    started = set(descendants(os.getpid())).difference(others)
    assert len(started) > 3
    del found, engine
    assert not ray.is_initialized()
    assert all(gone(pid) for pid in started)


@pytest.mark.nightly
def test_chunks_have_the_rows_of_a_fit_that_is_held(two_workers: Engine, monkeypatch: pytest.MonkeyPatch):
    work, models = two_workers.at(4, made_data()), torch.stack([two_workers.initial(number) for number in range(3)])
    asked = {"start": ids(2, 0, 0, 1, 1), "budget": Budget(torch.arange(1, 6), "steps")}
    expected = work.fit(models, ids(4, 0, 3, 4, 2), **asked)
    monkeypatch.setattr(two_workers, "plan", replace(two_workers.plan, rows_mib=3))  # two clients per chunk
    chunked = two_workers.at(4, made_data()).fit(models, ids(4, 0, 3, 4, 2), **asked)
    chunks = list(chunked.chunks())
    assert [len(chunk.models) for chunk in chunks] == [2, 2, 1]
    assert torch.equal(torch.cat([chunk.models for chunk in chunks]), expected.rows)
    assert torch.equal(chunked.trained, expected.trained)
    assert torch.equal(chunked.losses.nan_to_num(-1), expected.losses.nan_to_num(-1))


@pytest.mark.nightly
def test_a_module_that_writes_into_its_parameters_changes_no_stored_model(cluster: None):
    class Shrinking(Classification):
        def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            for parameter in self.parameters():
                parameter.data.mul_(0.9)
            return super().losses(batch)

    task = lambda: Shrinking(MCLR([5], 3), partial(torch.optim.SGD, lr=0.1))  # noqa: E731
    spread, alone, data = engine_of(task), engine_of(task, workers=0), made_data()
    start, clients = alone.initial(0)[None], ids(3, 1, 3, 4)  # all read the same row in the object store
    try:
        work, expected = spread.at(0, data), alone.at(0, data).fit(start, clients, prox=0.1, centers=start).rows
        rows = work.fit(start, clients, prox=0.1, centers=start).rows
        work.map(lambda inputs, labels, module: module.losses((inputs, labels)), clients, start[0])
        assert torch.equal(rows, expected)
        assert torch.equal(rows[0], rows[2])
        assert torch.equal(work.fit(start, clients, prox=0.1, centers=start).rows, expected)
    finally:
        spread.close()


@pytest.mark.nightly
def test_functions_run_on_clients_in_the_workers(two_workers: Engine, task: TaskFactory):
    alone, data, driver = engine_of(task, workers=0), made_data(), os.getpid()
    row, clients = alone.initial(1), ids(3, 0, 2, 4, 1)

    def features(inputs: Tensor, labels: Tensor, module: nn.Module) -> dict[str, Tensor]:
        return {"features": module(inputs).mean(0), "noise": torch.rand(2), "here": torch.tensor(os.getpid() == driver)}

    work = two_workers.at(4, data)
    found, expected = work.map(features, clients, row), alone.at(4, data).map(features, clients, row)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert torch.equal(mine["features"], theirs["features"])
            assert torch.equal(mine["noise"], theirs["noise"])
            assert bool(theirs["here"])
            assert not bool(mine["here"])
    assert work.bytes_up == 4 * (3 * 8 + 2 * 4 + 1)
    with pytest.raises(ZeroDivisionError) as caught:
        work.map(lambda inputs, labels: inputs * (1 // 0), ids(4))
    assert "on client 4" in caught.value.__notes__[0]


@pytest.mark.nightly
def test_examples_are_stored_once_a_run_and_a_model_once_a_fit(two_workers: Engine, monkeypatch: pytest.MonkeyPatch):
    stored = []
    work = two_workers.at(4, made_data())
    models = torch.stack([two_workers.initial(number) for number in range(3)])
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: stored.append(value) or put(value))
    for _ in range(2):
        work.fit(models, ids(1, 2, 3, 4), ids(2, 0, 2, 0), prox=0.1, centers=models, center=ids(2, 2, 0, 0))
    kinds = Counter(type(value).__name__ for value in stored)
    shares = {"FitRequest": 4, "Tensor": 4}  # of a fit: two requests, and the models and the centres 0 and 2
    assert kinds == {"Examples": 1, "ClientIndex": 1, **shares}


def test_error_of_a_worker_arrives_unchanged(two_workers: Engine, order: Callable[[str], None]):
    order("diverge")
    with pytest.raises(DivergedError, match="client 2 diverged in round 7") as caught:
        fit(two_workers, 2, round=6)
    assert type(caught.value) is DivergedError


@pytest.mark.parametrize("workers", [pytest.param("one_worker", marks=pytest.mark.nightly), "two_workers"])
def test_worker_killed_in_the_middle_of_a_round_changes_nothing(
    workers: str, orders: Path, order: Callable[[str], None], request: pytest.FixtureRequest
):
    engine = request.getfixturevalue(workers)
    expected = fit(engine, 1, 2, 3, 4)
    order("die once")
    assert torch.equal(fit(engine, 1, 2, 3, 4), expected)
    assert gone(int((orders / "died").read_text()))


@ray.remote(num_cpus=0)
def asleep() -> None:
    sleep(60)


@pytest.mark.nightly
def test_other_workers_take_over_where_a_lost_one_cannot_be_replaced(
    two_workers: Engine, order: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    expected = fit(two_workers, 1, 2, 3, 4)
    nowhere = SimpleNamespace(ready=SimpleNamespace(remote=asleep.remote))  # no node has room for another actor
    monkeypatch.setattr(two_workers, "_actors", two_workers._actors.copy())
    monkeypatch.setattr(two_workers, "_actor_class", SimpleNamespace(remote=lambda paths: nowhere))
    order("die once")
    assert torch.equal(fit(two_workers, 1, 2, 3, 4), expected)
    assert torch.equal(fit(two_workers, 4, 2), expected[[3, 1]])


@pytest.mark.nightly
def test_nobody_waits_for_ever_for_a_worker_that_does_not_start(cluster: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_engine, "_START_SECONDS", 0.0)
    engine = engine_of(linear)
    with pytest.raises(InputError, match="none of 1 Ray workers started in 0 s"):
        fit(engine, 2)
    engine.close()


@pytest.mark.nightly
def test_chunks_become_smaller_for_all_when_a_worker_runs_out_of_memory(
    one_worker: Engine, order: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    expected = fit(one_worker, 2, 4)
    monkeypatch.setattr(one_worker, "plan", one_worker.plan)  # restored after the test
    order("no memory")
    with pytest.warns(Notice, match="1 MiB of local models"):
        assert torch.equal(fit(one_worker, 2, 4), expected)
    assert one_worker.plan.rows_mib == 1


@pytest.mark.nightly
def test_losses_gradients_and_scores_are_shared_by_the_workers_and_errors_say_what_was_scored(
    cluster: None, monkeypatch: pytest.MonkeyPatch
):
    class Careful(Classification):
        def outcomes(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
            losses, *others = super().outcomes(batch)
            if not losses.isfinite().all():
                raise ValueError("diverged")
            return losses, *others

    data, sent, each = made_data((0, 3, 2600, 36, 1500, 8, 1100, 20)), Counter[str](), ray_engine.RayEngine._each
    monkeypatch.setattr(ray_engine, "_HAND_OVER_PAYS", 0)

    def counting(engine: ray_engine.RayEngine, function: Callable[..., object], shares: list[object], data) -> object:
        sent[function.__name__] += len(shares)
        return each(engine, function, shares, data)

    monkeypatch.setattr(ray_engine.RayEngine, "_each", counting)
    clients, index = ids(7, 3, 2, 0, 5, 4, 1, 6), torch.randperm(5267, generator=rng(1))
    which, found = torch.arange(5).repeat_interleave(ids(10, 2500, 3, 700, 2054)), []
    for workers in (2, 0):
        engine = engine_of(lambda: Careful(MCLR([5], 3)), workers)
        models = torch.stack([engine.initial(number) for number in range(5)])
        scores, work = engine.outcomes_of_each(models, which, index, data), engine.at(2, data)
        found.append([scores.losses, scores.values, work.losses(models, clients).nan_to_num()])
        found[-1].append(work.gradients(models[1], clients))
        models[3] = torch.nan
        with pytest.raises(ValueError, match="diverged") as caught:
            engine.outcomes_of_each(models, which, index, data, "the {}".format)
        assert caught.value.__notes__[0] == "It was raised while the 3 was scored."
        assert len(caught.value.__notes__) == (2 if workers else 1)  # and where in the worker
        engine.close()
    assert all(torch.equal(mine, alone) for mine, alone in zip(*found, strict=True))
    assert sent == {"outcomes_of_each": 4, "losses_of_all": 2, "gradient_rows": 2}


class OnGPU(Classification):
    def outcomes(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if not ray.get_gpu_ids():
            raise RuntimeError("no GPU is here")
        return super().outcomes(batch)


@pytest.mark.nightly
def test_driver_without_a_gpu_trains_and_scores_on_that_of_the_cluster(cluster: None, monkeypatch: pytest.MonkeyPatch):
    make = lambda: OnGPU(MCLR([5], 3), partial(torch.optim.SGD, lr=0.1))  # noqa: E731
    assert not torch.cuda.is_available()
    with pytest.warns(Notice, match="Ray's cluster has 1 GPU"):
        room = room_of_ray("ray", "auto", None)
    data, local = made_data(), LocalTraining(2, 10)
    load = Workload.of(make, 5, local, data, 4)
    plan = choose_plan("ray", "auto", "32-true", load, PlanOptions(engine="stack"), room)
    assert (plan.device, plan.workers, plan.lanes) == ("cuda:0", 1, 8)
    spec = ray_engine.EngineSpec

    def on_cpu(task: TaskFactory, plan: Plan, *others: object) -> object:
        assert (plan.device, plan.workers) == ("cuda:0", 0)
        return spec(task, replace(plan, device="cpu"), *others)  # this machine has no GPU

    monkeypatch.setattr(ray_engine, "EngineSpec", on_cpu)
    spread, alone = (build_engine(make, one, 5, local) for one in (plan, replace(plan, workers=0, device="cpu")))
    models, clients = torch.stack([spread.initial(number) for number in range(2)]), ids(4, 1, 3, 2)
    expected = [alone.at(1, data).fit(models, clients).rows, alone.at(1, data).gradients(models[0], clients)]
    for name in ("scorer", "gradients", "fit"):
        monkeypatch.setattr(StackWay, name, lambda *_: 1 / 0)  # the driver computes nothing
    work = spread.at(1, data)
    found = [work.fit(models, clients).rows, work.gradients(models[0], clients)]
    assert all(map(torch.equal, found, expected))
    scores = spread.outcomes_of_each(models, torch.arange(2), torch.arange(2), data)
    assert scores.losses.isfinite().all()
    assert work.losses(models, clients).isfinite().all()
    assert spread.module(models[0]).device.type == "cpu"
    spread.close()


@pytest.mark.nightly
def test_run_can_be_ended_while_workers_train_and_is_resumed(one_worker: Engine, monkeypatch: pytest.MonkeyPatch):
    def end() -> None:
        raise Interrupted(signal.SIGINT)

    expected = fit(one_worker, 2)
    with monkeypatch.context() as patch:
        patch.setattr(one_worker, "between_clients", end)
        with pytest.raises(Interrupted):
            fit(one_worker, 3, budget=Budget(20_000))
    assert torch.equal(fit(one_worker, 2), expected)


@pytest.mark.nightly
def test_round_fails_with_the_clients_named_when_workers_die_again_and_again(
    one_worker: Engine, order: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ray_engine, "MAX_RETRIES", 1)
    order("die")
    with pytest.raises(WorkersLostError, match="clients 3, 2 in round 8 died 2 times"):
        fit(one_worker, 3, 0, 2, round=7)


@pytest.mark.nightly
def test_a_task_that_cannot_be_sent_and_a_cluster_without_room_are_refused(cluster: None):
    with socket.socket() as connection, pytest.raises(InputError, match="the task cannot be sent"):
        fit(engine_of(lambda: Classification(MCLR([5], 3 if connection else 2))), 2)
    with pytest.raises(InputError, match=r"plan.workers is 9, .* 5 workers of 1 CPU"):
        fit(engine_of(linear, workers=9), 2)
