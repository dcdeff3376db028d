"""Tests what the engine `ray` decides without Ray: shares of a cluster, addresses, who works, and lists of tasks."""

import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ragged import SHAPE, ragged_data, task
from ray.exceptions import RayError
from torch import nn

from lit_cfl.devices import count_cores
from lit_cfl.engines.choose_plan import Workload, build_engine, choose_plan, room_of_ray
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan, PlanOptions, RayRoom
from lit_cfl.engines.ray import cluster, tasks
from lit_cfl.engines.ray import worker as ray_worker
from lit_cfl.engines.ray.engine import deal
from lit_cfl.errors import InputError, Notice
from lit_cfl.nets import MCLR

CPU = {"CPU": 1.0}
LINEAR = task(lambda: MCLR(SHAPE, 10))


def engine_of(make: Any = LINEAR, **options: Any) -> Engine:
    return build_engine(make, Plan("loop", **options), 11, LocalTraining(1, 4))


def test_each_worker_gets_its_share():
    node = {"CPU": 4.0, "GPU": 2.0}
    cpu, gpu = (Plan(workers=3, device=device) for device in ("cpu", "cuda:0"))
    assert cluster.share_of_each(cpu, [node]) == {"CPU": 1.0}
    # with 2/3 of a GPU each, the third worker would have none
    assert cluster.share_of_each(gpu, [node]) == {"CPU": 1.0, "GPU": 0.5}
    assert cluster.share_of_each(replace(gpu, workers=7), [node, node])["GPU"] == 0.5
    assert cluster.share_of_each(replace(gpu, workers=3), [{"CPU": 3, "GPU": 1}])["GPU"] == 0.3333
    assert cluster.share_of_each(replace(gpu, workers=1), [node])["GPU"] == 1.0
    assert cluster.share_of_each(replace(cpu, threads=2, workers=2), [node]) == {"CPU": 2.0}


@pytest.mark.parametrize(
    ("plan", "room", "named"),
    [
        (Plan(workers=2, threads=3), [{"CPU": 4}, {"CPU": 2}], "room for 1 workers of 3 CPU"),
        (Plan(workers=1, device="cuda:0"), [{"CPU": 4}], "device is 'cuda:0'"),
        (Plan(workers=20_001, device="cuda:0"), [{"CPU": 30_000, "GPU": 1}], "room for 0 workers"),
    ],
    ids=["cores of a node", "no GPU", "less than Ray counts"],
)
def test_share_that_no_worker_can_get_is_refused(plan: Plan, room: list[dict[str, float]], named: str):
    with pytest.raises(InputError, match=named):
        cluster.share_of_each(plan, room)


def test_a_cluster_without_a_gpu_is_noted_or_refused(monkeypatch: pytest.MonkeyPatch):
    load = Workload.of(LINEAR, 5, LocalTraining(2, 10), ragged_data(), 4)
    monkeypatch.setattr(cluster, "is_there", lambda: True)
    monkeypatch.setattr(cluster, "_join", lambda plan: None)
    monkeypatch.setattr(cluster, "_room", lambda: [{"CPU": 4.0}, {"CPU": 8.0}])
    with pytest.warns(Notice, match="no GPU"):
        assert room_of_ray("ray", "auto", PlanOptions()) == RayRoom(12, 0)
    with pytest.raises(InputError, match="no CUDA device"):
        choose_plan("ray", "cuda", "32-true", load, room=room_of_ray("ray", "cuda", None))
    monkeypatch.setattr(cluster, "_room", lambda: [{"CPU": 4.0, "GPU": 0.5}, {"CPU": 8.0, "GPU": 2.0}])
    assert room_of_ray("ray", "cuda", None) == RayRoom(12, 3)  # half a GPU counts as room for one worker
    monkeypatch.setattr(cluster, "_room", lambda: [{"CPU": 3.0}, {"CPU": 8.5}, {"memory": 1.0}])
    assert room_of_ray("ray", "cpu", PlanOptions(threads=2)) == RayRoom(5, 0)


def test_nobody_asks_ray_who_does_not_need_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "count_room", lambda *given: 1 / 0)
    assert room_of_ray("auto", "auto", None) == RayRoom()
    assert room_of_ray("ray", "cpu", PlanOptions(workers=2)) == RayRoom()


@pytest.fixture(autouse=True)
def not_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr(cluster, "_ANSWER_SECONDS", 0.5)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "gone", "no Ray"])
def test_address_that_does_not_answer_as_ray_is_refused_at_once(answer: bytes | None, monkeypatch: pytest.MonkeyPatch):
    def accept() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            sleep(2) if answer is None else connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        thread = Thread(target=accept)
        thread.start()
        with pytest.raises(InputError, match=f"RAY_ADDRESS='{address}'"):
            cluster.connect(Plan())
        thread.join()


def test_an_address_without_ray_and_more_workers_than_cores_are_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match=f"plan.workers is {count_cores() + 1}"):
        cluster.connect(Plan(workers=count_cores() + 1))
    for address in ("127.0.0.1:1", "localhost"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=f"RAY_ADDRESS='{address}'"):
            cluster.connect(Plan())
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("lit_cfl.engines.ray.engine", "lit_cfl.engines.ray"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match="pip install"):
        engine_of(workers=2)


def test_work_is_dealt_the_largest_first():
    assert deal([5, 1, 4, 2], 2) == [[0, 1], [2, 3]]
    assert deal([3], 4) == [[0]]


@pytest.mark.parametrize(("hidden", "least"), [(1, 5_000), (100_000, 1_112)])  # the larger net has 900,003 parameters
def test_few_examples_are_not_handed_over(hidden: int, least: int):
    make = task(lambda: nn.Sequential(nn.Linear(5, hidden), nn.Linear(hidden, 3)))
    engine = engine_of(make, workers=2)
    assert (engine._pays(least - 1), engine._pays(least)) == (False, True)
    assert not engine_of(make, workers=1)._pays(least)
    engine.plan = replace(engine.plan, device="cuda:0", workers=1)
    assert engine._pays(1)


@pytest.mark.parametrize("deterministic", [True, False])
def test_workers_are_as_deterministic_as_the_driver(deterministic: bool, monkeypatch: pytest.MonkeyPatch):
    said = []
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    monkeypatch.setattr(ray_worker, "set_up_torch", lambda *given: said.append(given))
    monkeypatch.setattr("ray.get", lambda reference: reference)
    built = ray_worker.Worker([])._get_engine(engine_of(workers=2)._spec())
    assert said == [(built.plan, deterministic)]
    assert (built.plan.engine, built.plan.workers) == ("loop", 0)


class CallsInTurn:
    """Stand-in for Ray whose calls end one by one, the last started first."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.waits: list[tuple[Any, ...]] = []

    def remote(self, **options: Any) -> Callable[..., Any]:
        self.options = options
        return lambda function: SimpleNamespace(remote=lambda *words: (function, words))

    def wait(self, running: Sequence[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.waits.append(tuple(words for _, words in running))
        return [running[-1]], list(running[:-1])

    def get(self, ref: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
        return ref[0](*ref[1])


def divided(a: int, b: int) -> float:
    if b == 0:
        raise RayError("nothing to divide by")
    return a / b


def test_tasks_start_in_order_and_return_as_they_finish(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "ray", calls := CallsInTurn())
    begun: list[str] = []
    arguments = {"a": (4, 2), "b": (1, 0), "c": (9, 3)}
    found = tasks.run_tasks(divided, arguments, CPU, 2, lambda: None, 2, begun.append)
    (first, error), *others = list(found)
    assert begun == ["a", "b", "c"]
    assert calls.waits == [((4, 2), (1, 0)), ((4, 2), (9, 3)), ((4, 2),)]
    assert (first, str(error), others) == ("b", "nothing to divide by", [("c", 3.0), ("a", 2.0)])
    assert calls.options == {"num_cpus": 1.0, "num_gpus": 0, "max_retries": 2}
