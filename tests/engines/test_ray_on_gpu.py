"""Tests the engine `ray` on a GPU that only Ray reports, with a driver that has none."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from quadratic import ids
from ragged import SHAPE, ragged_data

from lit_cfl.engines.choose_plan import Workload, build_engine, choose_plan, room_of_ray
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan, PlanOptions, RayRoom
from lit_cfl.engines.ray import cluster as ray_cluster
from lit_cfl.engines.ray import engine as ray_engine
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.engines.task_protocol import TaskFactory
from lit_cfl.errors import InputError, Notice
from lit_cfl.nets import MLP
from lit_cfl.tasks import Classification


class OnGPU(Classification):
    """Task that scores only if Ray has assigned a GPU."""

    def outcomes(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        import ray

        if not ray.get_gpu_ids():
            raise RuntimeError("no GPU is here")
        return super().outcomes(batch)


def make() -> Classification:
    return OnGPU(MLP(12, SHAPE, 10), partial(torch.optim.SGD, lr=0.1))


def load() -> Workload:
    return Workload.of(make, 5, LocalTraining(2, 10), ragged_data(), 4)


def forbidden(*given: object) -> None:
    raise AssertionError("the driver computes")


@pytest.mark.ray
def test_driver_without_a_gpu_trains_and_scores_on_that_of_the_cluster(cluster: None, monkeypatch: pytest.MonkeyPatch):
    assert not torch.cuda.is_available()
    with pytest.warns(Notice, match=r"Ray's cluster has 1 GPU: clients train on them"):
        room = room_of_ray("ray", "auto", None)
    plan = choose_plan("ray", "auto", "32-true", load(), PlanOptions(engine="stack"), room)
    assert (plan.device, plan.workers, plan.lanes) == ("cuda:0", 1, 8)
    spec = ray_engine.EngineSpec

    def on_cpu(task: TaskFactory, plan: Plan, *others: object) -> object:
        assert (plan.device, plan.workers) == ("cuda:0", 0)
        return spec(task, replace(plan, device="cpu"), *others)  # this machine has no GPU

    monkeypatch.setattr(ray_engine, "EngineSpec", on_cpu)
    spread, data = build_engine(make, plan, 5, LocalTraining(2, 10)), ragged_data()
    models, clients = torch.stack([spread.initial(number) for number in range(2)]), ids(4, 1, 5, 2)
    alone = build_engine(make, replace(plan, workers=0, device="cpu"), 5, LocalTraining(2, 10))
    expected = [alone.at(1, data).fit(models, clients).rows, alone.at(1, data).gradients(models[0], clients)]
    for name in ("scorer", "gradients", "fit"):
        monkeypatch.setattr(StackWay, name, forbidden)
    work = spread.at(1, data)
    found = [work.fit(models, clients).rows, work.gradients(models[0], clients)]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    scores = spread.outcomes_of_each(models, torch.arange(2), torch.arange(2), data)
    assert scores.losses.isfinite().all()
    assert work.losses(models, clients).isfinite().all()
    assert spread.module(models[0]).device.type == "cpu"
    spread.close()


def test_cluster_without_a_gpu_is_noted_or_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_cluster, "is_there", lambda: True)
    monkeypatch.setattr(ray_cluster, "_join", lambda plan: None)
    monkeypatch.setattr(ray_cluster, "_room", lambda: [{"CPU": 4.0}, {"CPU": 8.0}])
    with pytest.warns(Notice, match="Ray's cluster has no GPU: clients train on CPUs"):
        assert room_of_ray("ray", "auto", PlanOptions()) == RayRoom(12, 0)
    with pytest.raises(InputError, match="Ray has no CUDA device; use --device cpu or auto"):
        choose_plan("ray", "cuda", "32-true", load(), room=room_of_ray("ray", "cuda", None))
    monkeypatch.setattr(ray_cluster, "_room", lambda: [{"CPU": 4.0, "GPU": 0.5}, {"CPU": 8.0, "GPU": 2.0}])
    assert room_of_ray("ray", "cuda", None) == RayRoom(12, 3)  # half a GPU counts as room for one worker
    monkeypatch.setattr(ray_cluster, "_room", lambda: [{"CPU": 3.0}, {"CPU": 8.5}, {"memory": 1.0}])
    assert room_of_ray("ray", "cpu", PlanOptions(threads=2)) == RayRoom(5, 0)
    assert choose_plan("ray", "cpu", "32-true", load(), room=RayRoom(3)).workers == 3


def test_nobody_asks_ray_who_does_not_need_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_cluster, "count_room", forbidden)
    assert room_of_ray("auto", "auto", None) == RayRoom()
    assert room_of_ray("ray", "cpu", PlanOptions(workers=2)) == RayRoom()
    assert room_of_ray("auto", "auto", PlanOptions(device="cpu", workers=2)) == RayRoom()
