"""Tests the `ray` engine: the same results as without Ray, workers that die, and unusable clusters."""

import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from time import sleep
from types import SimpleNamespace

import pytest
import ray
import torch
from processes import descendants
from quadratic import ids
from ragged import fitted, rows_of
from small_tasks import language, numbers, regression, sentences
from test_kernel_l2 import mlp
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.client_scores import score_clients
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.devices import count_cores
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.ray import cluster as ray_cluster
from lit_cfl.engines.ray import engine as ray_engine
from lit_cfl.engines.ray import worker as ray_worker
from lit_cfl.engines.ray.engine import deal
from lit_cfl.engines.task_protocol import TaskFactory
from lit_cfl.errors import DivergedError, InputError, Interrupted, Notice, WorkersLostError
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

SIZES = (0, 3, 17, 36, 8)
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
    ray.init("local", num_cpus=5, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
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

    class Obedient(Classification):
        def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            if os.getpid() == driver:
                return super().losses(batch)
            if (orders / "die").exists() or (orders / "die once").exists():
                (orders / "died").write_text(str(os.getpid()))
                (orders / "die once").unlink(missing_ok=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if (orders / "no memory").exists():
                (orders / "no memory").unlink()
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


def made_data(sizes: Sequence[int] = SIZES) -> FederatedData:
    rng, total = torch.Generator().manual_seed(0), sum(sizes)
    inputs = torch.randn(total, 5, generator=rng, dtype=torch.float64)
    examples = Examples(inputs, torch.randint(0, 3, (total,), generator=rng), 3)
    train = ClientIndex.from_lists(list(torch.arange(total).split(list(sizes))))
    none = ClientIndex.empty(len(sizes))
    return FederatedData(examples, train, none, none, torch.full((len(sizes),), -1))


def engine_of(task: TaskFactory, engine: str = "loop", workers: int = 1) -> Engine:
    plan = replace(DOUBLE, engine=engine, workers=workers)
    return build_engine(task, plan, 11, LocalTraining(epochs=2, batch_size=4))


def gone(pid: int) -> bool:
    """Returns whether a process ends within ten seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        sleep(0.1)
    return False


@pytest.mark.ray
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ray_that_is_started_for_a_run_gives_the_trainers_result_and_ends_with_the_run(monkeypatch: pytest.MonkeyPatch):
    """Must run before the tests with the fixture `cluster`, whose Ray lives until the end of this file."""
    assert not ray.is_initialized()
    monkeypatch.setenv("RAY_ADDRESS", "")
    others = descendants(os.getpid())
    before = signal.signal(signal.SIGTERM, own := lambda signum, frame: None)
    try:
        found, engine = fitted(mlp(0.1), replace(DOUBLE, engine="loop", workers=1))
        assert ray.is_initialized()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    expected, _ = fitted(mlp(0.1), DOUBLE)
    assert_close(rows_of(found), rows_of(expected), rtol=0, atol=1e-12)
    started = set(descendants(os.getpid())).difference(others)
    assert len(started) > 3
    del found, engine
    assert not ray.is_initialized()
    assert all(gone(pid) for pid in started)


@pytest.mark.ray
@pytest.mark.parametrize("workers", ["one_worker", "two_workers"])
def test_result_is_bit_for_bit_that_of_one_engine_alone(workers: str, task: TaskFactory, request):
    alone, data = engine_of(task, workers=0), made_data()
    models = torch.stack([alone.initial(number) for number in range(3)])
    centers = models.flip(0)
    work = request.getfixturevalue(workers).at(4, data)
    for clients, start in ((ids(3, 0, 2, 4, 1), ids(0, 2, 2, 0, 2)), (ids(4, 4, 3), ids(2, 0, 0))):
        options = {"start": start, "prox": 0.5, "centers": centers, "center": start.flip(0)}
        lengths = Budget(torch.arange(1, len(clients) + 1), "steps")
        for budget in (None, lengths, Budget(2, batch_size="full")):
            expected = alone.at(4, data).fit(models, clients, **options, budget=budget)
            fitted = work.fit(models, clients, **options, budget=budget)
            assert torch.equal(fitted.rows, expected.rows)
            assert torch.equal(fitted.trained, expected.trained)
            assert torch.equal(fitted.losses[fitted.trained], expected.losses[fitted.trained])
    assert fitted.trained.all()


@pytest.mark.ray
@pytest.mark.parametrize("way", ["loop", "trainer"])
def test_a_module_that_writes_into_its_parameters_changes_no_stored_model(cluster: None, way: str):
    class Shrinking(Classification):
        def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            for parameter in self.parameters():
                parameter.data.mul_(0.9)
            return super().losses(batch)

    def task() -> Classification:
        return Shrinking(MCLR([5], 3), partial(torch.optim.SGD, lr=0.1))

    spread, alone, data = engine_of(task, way), engine_of(task, way, 0), made_data()
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


@pytest.mark.ray
@pytest.mark.parametrize(
    ("task", "module"), [(regression, numbers), pytest.param(language, sentences, marks=pytest.mark.nightly)]
)
def test_tasks_with_other_labels_and_scores_have_the_result_of_one_engine_alone(cluster: None, task, module):
    data, found = module().federated(0), []
    for plan in (replace(DOUBLE, engine="loop"), replace(DOUBLE, engine="loop", workers=1)):
        engine = build_engine(task, plan, 11, LocalTraining(2, 4))
        rows = engine.at(1, data).fit(engine.initial(0)[None], ids(0, 1)).rows
        scores = score_clients(engine, rows, ids(0, 1), ids(0, 1), data, "test")
        found.append([rows, scores.loss, scores.sums, scores.weights])
        engine.close()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


@pytest.mark.ray
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
    assert work.map(lambda inputs, labels: labels, ids()) == []
    with pytest.raises(InputError, match=r"client 2: the function of work\.map returns a int"):
        work.map(lambda inputs, labels: len(labels), ids(2))
    with pytest.raises(ZeroDivisionError) as caught:
        work.map(lambda inputs, labels: inputs * (1 // 0), ids(4))
    assert "on client 4" in caught.value.__notes__[0]


@pytest.mark.ray
def test_chunks_and_order_change_no_bit(two_workers: Engine, monkeypatch: pytest.MonkeyPatch):
    work, start = two_workers.at(4, made_data()), two_workers.initial(0)[None]
    whole = work.fit(start, ids(1, 2, 3, 4)).rows
    monkeypatch.setattr(two_workers, "plan", replace(two_workers.plan, rows_mib=3))  # two clients per chunk
    fitted = work.fit(start, ids(4, 3, 1, 2))
    assert not fitted.held
    chunks = [chunk.models for chunk in fitted.chunks()]
    assert [len(chunk) for chunk in chunks] == [2, 2]
    assert torch.equal(torch.cat(chunks), whole[[3, 2, 0, 1]])


@pytest.mark.ray
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


@pytest.mark.ray
def test_a_worker_may_train_by_lightnings_trainer(cluster: None):
    def task() -> Classification:
        return Classification(
            nn.Sequential(nn.BatchNorm1d(5, momentum=None), MCLR([5], 3)), partial(torch.optim.SGD, lr=0.1)
        )

    spread, alone, data = engine_of(task, "trainer"), engine_of(task, "trainer", 0), made_data()
    try:
        start = alone.initial(0)[None]
        rows = spread.at(0, data).fit(start, ids(1, 3, 4)).rows
        assert torch.equal(rows, alone.at(0, data).fit(start, ids(1, 3, 4)).rows)
    finally:
        spread.close()


@pytest.mark.ray
def test_error_of_a_worker_arrives_unchanged(two_workers: Engine, order: Callable[[str], None]):
    order("diverge")
    with pytest.raises(DivergedError, match="client 2 diverged in round 7") as caught:
        two_workers.at(6, made_data()).fit(two_workers.initial(0)[None], ids(2))
    assert type(caught.value) is DivergedError


@pytest.mark.ray
@pytest.mark.parametrize("workers", ["one_worker", "two_workers"])
def test_worker_killed_in_the_middle_of_a_round_changes_nothing(
    workers: str, orders: Path, order: Callable[[str], None], request: pytest.FixtureRequest
):
    engine = request.getfixturevalue(workers)
    work, start = engine.at(4, made_data()), engine.initial(0)[None]
    expected = work.fit(start, ids(1, 2, 3, 4)).rows
    order("die once")
    assert torch.equal(work.fit(start, ids(1, 2, 3, 4)).rows, expected)
    assert gone(int((orders / "died").read_text()))


@ray.remote(num_cpus=0)
def asleep() -> None:
    sleep(60)


@pytest.mark.ray
def test_other_workers_take_over_where_a_lost_one_cannot_be_replaced(
    two_workers: Engine, order: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    work, start = two_workers.at(4, made_data()), two_workers.initial(0)[None]
    expected = work.fit(start, ids(1, 2, 3, 4)).rows
    nowhere = SimpleNamespace(ready=SimpleNamespace(remote=asleep.remote))  # no node has room for another actor
    monkeypatch.setattr(two_workers, "_actors", two_workers._actors.copy())
    monkeypatch.setattr(two_workers, "_actor_class", SimpleNamespace(remote=lambda paths: nowhere))
    order("die once")
    assert torch.equal(work.fit(start, ids(1, 2, 3, 4)).rows, expected)
    assert torch.equal(work.fit(start, ids(4, 2)).rows, expected[[3, 1]])


@pytest.mark.ray
def test_nobody_waits_for_ever_for_a_worker_that_does_not_start(cluster: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_engine, "_START_SECONDS", 0.0)
    engine = engine_of(lambda: Classification(MCLR([5], 3)))
    with pytest.raises(InputError, match="none of 1 Ray workers started in 0 s: other programs hold"):
        engine.at(0, made_data()).fit(engine.initial(0)[None], ids(2))
    engine.close()


@pytest.mark.ray
def test_chunks_become_smaller_for_all_when_a_worker_runs_out_of_memory(
    one_worker: Engine, order: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    work, start = one_worker.at(4, made_data()), one_worker.initial(0)[None]
    expected = work.fit(start, ids(2, 4)).rows
    monkeypatch.setattr(one_worker, "plan", one_worker.plan)  # restored after the test
    order("no memory")
    with pytest.warns(Notice, match="out of memory: reduced to 1 MiB of local models"):
        assert torch.equal(work.fit(start, ids(2, 4)).rows, expected)
    assert one_worker.plan.rows_mib == 1


@pytest.mark.nightly
@pytest.mark.ray
def test_workers_train_in_fewer_lanes_after_one_ran_out_of_memory(
    cluster: None, task: TaskFactory, order: Callable[[str], None]
):
    plan = replace(DOUBLE, engine="stack", lanes=4, workers=1)
    spread, data = build_engine(task, plan, 11, LocalTraining(epochs=2, batch_size=4)), made_data()
    order("no memory")
    with pytest.warns(Notice, match="and to 2 clients"):
        rows = spread.at(4, data).fit(spread.initial(0)[None], ids(3, 4, 2)).collect()
    spread.close()
    narrower = replace(spread.plan, workers=0, rows_mib=1024)
    alone = build_engine(task, narrower, 11, LocalTraining(epochs=2, batch_size=4))
    assert torch.equal(rows, alone.at(4, data).fit(alone.initial(0)[None], ids(3, 4, 2)).rows)


def test_gradients_are_those_of_the_stack():
    def make() -> Classification:
        return Classification(MCLR([5], 3))

    plan, clients = replace(DOUBLE, engine="stack", lanes=4, workers=2), ids(3, 0, 1, 4)
    rows = []
    for one in (plan, replace(plan, workers=0)):
        engine = build_engine(make, one, 11, LocalTraining(1, 4))
        rows.append(engine.at(4, made_data()).gradients(engine.initial(0), clients))
    assert torch.equal(*rows)


class Careful(Classification):
    """Task that refuses to score diverged models, and whose losses show which examples are scored together."""

    def outcomes(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        losses, right = super().outcomes(batch)
        if not losses.isfinite().all():
            raise ValueError("diverged")
        return losses + batch[0].mean(), right


@pytest.mark.ray
@pytest.mark.parametrize("way", ["loop", pytest.param("stack", marks=pytest.mark.nightly)])  # a stack is a GPU's
def test_losses_gradients_and_scores_from_two_workers_have_the_bits_of_one_engine(
    way: str, cluster: None, monkeypatch: pytest.MonkeyPatch
):
    def make() -> Classification:
        net = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.3), nn.ReLU(), nn.Linear(40, 3))
        return Careful(net, partial(torch.optim.SGD, lr=0.1))

    data, sent, each = made_data((0, 3, 2600, 36, 1500, 8, 1100, 20)), Counter[str](), ray_engine.RayEngine._each
    monkeypatch.setattr(ray_engine, "_HAND_OVER_PAYS", 0)

    def counting(engine: ray_engine.RayEngine, function: Callable[..., object], shares: list[object], data) -> object:
        sent[function.__name__] += len(shares)
        return each(engine, function, shares, data)

    monkeypatch.setattr(ray_engine.RayEngine, "_each", counting)
    plan, found = Plan(way, lanes=4, workers=2), []
    clients, index = ids(7, 3, 2, 0, 5, 4, 1, 6), torch.randperm(5267, generator=torch.Generator().manual_seed(1))
    which = torch.arange(5).repeat_interleave(ids(10, 2500, 3, 700, 2054))
    for one in (plan, replace(plan, workers=0)):
        engine = build_engine(make, one, 11, LocalTraining(1, 4))
        models = torch.stack([engine.initial(number) for number in range(5)])
        scores, work = engine.outcomes_of_each(models, which, index, data), engine.at(2, data)
        found.append([scores.losses, scores.values, scores.weights, work.losses(models, clients).nan_to_num()])
        found[-1].append(work.gradients(models[1], clients))
        models[3] = torch.nan
        with pytest.raises(ValueError, match="diverged") as caught:
            engine.outcomes_of_each(models, which, index, data, "the {}".format)
        assert caught.value.__notes__[0] == "It was raised while the 3 was scored."
        assert len(caught.value.__notes__) == (2 if one.workers else 1)  # and where in the worker
        engine.close()
    assert all(torch.equal(mine, alone) for mine, alone in zip(*found, strict=True))
    assert sent == {"outcomes_of_each": 4, "losses_of_all": 2, "gradient_rows": 2}


@pytest.mark.ray
def test_outputs_for_scores_of_sets_are_those_of_this_process(cluster: None, monkeypatch: pytest.MonkeyPatch):
    def make() -> Classification:
        return Classification(MCLR([5], 3), partial(torch.optim.SGD, lr=0.1), scores=["accuracy", "auroc"])

    data, found = made_data((0, 3, 2600, 36, 1500, 8, 1100, 20)), []
    monkeypatch.setattr(ray_engine, "_HAND_OVER_PAYS", 0)
    index = torch.randperm(5267, generator=torch.Generator().manual_seed(1))
    for workers in (2, 0):
        engine = build_engine(make, Plan("chain", workers=workers), 11, LocalTraining(1, 4))
        models = torch.stack([engine.initial(number) for number in range(5)])
        which = torch.arange(5).repeat_interleave(ids(10, 2500, 3, 700, 2054))
        scores = engine.outcomes_of_each(models, which, index, data)
        assert scores.outputs is not None
        found.append([scores.losses, scores.values, scores.weights, scores.outputs])
        engine.close()
    assert all(torch.equal(mine, alone) for mine, alone in zip(*found, strict=True))
    assert found[0][3].shape == (5267, 3)


@pytest.mark.parametrize(("hidden", "least"), [(1, 5_000), (100_000, 1_112)])  # the larger net has 900,003 parameters
def test_few_examples_are_not_handed_over(hidden: int, least: int):
    def make() -> Classification:
        return Classification(nn.Sequential(nn.Linear(5, hidden), nn.Linear(hidden, 3)))

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
    spec = engine_of(lambda: Classification(MCLR([5], 3)), workers=2)._spec()
    built = ray_worker.Worker([])._get_engine(spec)
    assert said == [(built.plan, deterministic)]
    assert (built.plan.engine, built.plan.workers) == ("loop", 0)


@pytest.mark.parametrize(
    ("sizes", "hands", "dealt"),
    [
        ([5, 1, 4, 2], 2, [[0, 1], [2, 3]]),
        ([1, 9, 1, 1], 2, [[1], [0, 2, 3]]),
        ([3], 4, [[0]]),
        ([], 2, []),
    ],
)
def test_work_is_dealt_the_largest_first(sizes: list[int], hands: int, dealt: list[list[int]]):
    assert deal(sizes, hands) == dealt


@pytest.mark.ray
def test_run_can_be_ended_while_workers_train_and_is_resumed_afterwards(
    one_worker: Engine, monkeypatch: pytest.MonkeyPatch
):
    def end() -> None:
        raise Interrupted(signal.SIGINT)

    work, start = one_worker.at(4, made_data()), one_worker.initial(0)[None]
    expected = work.fit(start, ids(2)).rows
    with monkeypatch.context() as patch:
        patch.setattr(one_worker, "between_clients", end)
        with pytest.raises(Interrupted):
            work.fit(start, ids(3), budget=Budget(20_000))
    assert torch.equal(work.fit(start, ids(2)).rows, expected)


@pytest.mark.ray
def test_round_fails_with_the_clients_named_when_workers_die_again_and_again(
    one_worker: Engine, order: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ray_engine, "MAX_RETRIES", 1)
    work, start = one_worker.at(7, made_data()), one_worker.initial(0)[None]
    order("die")
    with pytest.raises(WorkersLostError, match=r"trains clients 3, 2 in round 8 died 2 times"):
        work.fit(start, ids(3, 0, 2))


@pytest.mark.ray
def test_task_that_cannot_be_sent_is_refused(cluster: None):
    with socket.socket() as connection:
        engine = engine_of(lambda: Classification(MCLR([5], 3 if connection else 2)))
        with pytest.raises(InputError, match="the task cannot be sent to Ray's workers"):
            engine.at(0, made_data()).fit(engine.initial(0)[None], ids(2))


@pytest.mark.ray
def test_cluster_without_room_is_refused(cluster: None):
    engine = engine_of(lambda: Classification(MCLR([5], 3)), workers=9)
    with pytest.raises(InputError, match=r"plan.workers is 9, but Ray has room for 5 workers of 1 CPU each"):
        engine.at(0, made_data()).fit(engine.initial(0)[None], ids(2))


def test_each_worker_gets_its_share():
    node = {"CPU": 4.0, "GPU": 2.0}
    cpu, gpu = (replace(DOUBLE, workers=3, device=device) for device in ("cpu", "cuda:0"))
    assert ray_cluster.share_of_each(cpu, [node]) == {"CPU": 1.0}
    # with 2/3 of a GPU each, the third worker would have none
    assert ray_cluster.share_of_each(gpu, [node]) == {"CPU": 1.0, "GPU": 0.5}
    assert ray_cluster.share_of_each(replace(gpu, workers=7), [node, node])["GPU"] == 0.5
    assert ray_cluster.share_of_each(replace(gpu, workers=3), [{"CPU": 3, "GPU": 1}])["GPU"] == 0.3333
    assert ray_cluster.share_of_each(replace(gpu, workers=1), [node])["GPU"] == 1.0
    assert ray_cluster.share_of_each(replace(cpu, threads=2, workers=2), [node]) == {"CPU": 2.0}


@pytest.mark.parametrize(
    ("changes", "room", "message"),
    [
        ({"workers": 5}, [{"CPU": 4}], r"plan.workers is 5, but Ray has room for 4 workers of 1 CPU each"),
        ({"workers": 2, "threads": 3}, [{"CPU": 4}, {"CPU": 2}], r"room for 1 workers of 3 CPU each"),
        ({"workers": 1, "device": "cuda:0"}, [{"CPU": 4}], r"device is 'cuda:0', but Ray has no GPU"),
        ({"workers": 20_001, "device": "cuda:0"}, [{"CPU": 30_000, "GPU": 1}], r"room for 0 workers"),
    ],
    ids=["cores", "cores of a node", "no GPU", "less than Ray counts"],
)
def test_share_that_no_worker_can_get_is_refused(
    changes: dict[str, object], room: list[dict[str, float]], message: str
):
    with pytest.raises(InputError, match=message):
        ray_cluster.share_of_each(replace(DOUBLE, **changes), room)


def test_more_workers_than_cores_are_refused_before_ray_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(InputError, match=f"plan.workers is {count_cores() + 1}"):
        ray_cluster.connect(replace(DOUBLE, workers=count_cores() + 1))


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "gone", "no Ray"])
def test_address_that_does_not_answer_as_ray_is_refused_at_once(answer: bytes | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster, "_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        for scheme in ("", "ray://"):
            monkeypatch.setenv("RAY_ADDRESS", f"{scheme}127.0.0.1:{server.getsockname()[1]}")
            thread = Thread(target=_accept, args=(server, answer))
            thread.start()
            with pytest.raises(
                InputError, match=r"no Ray cluster answers at RAY_ADDRESS='(ray://)?127.0.0.1:.*start it"
            ):
                ray_cluster.connect(DOUBLE)
            thread.join()


def _accept(server: socket.socket, answer: bytes | None) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(100)
        if answer is None:
            sleep(2)
        else:
            connection.sendall(answer)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost", "no such host:6379", "127.0.0.1:port"])
def test_an_invalid_address_is_refused_at_once(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_cluster, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match=f"RAY_ADDRESS='{address}'"):
        ray_cluster.connect(DOUBLE)


def test_missing_ray_is_an_input_error_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("lit_cfl.engines.ray.engine", "lit_cfl.engines.ray"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match="needs Ray, which is not installed: pip install"):
        engine_of(lambda: Classification(MCLR([5], 3)))
