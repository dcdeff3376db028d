"""Tests that invalid plans are refused, and that explicit parts of a plan are kept."""

import pytest
import torch
from workloads import Hooked, one_gpu, work

from lit_cfl.engines.choose_plan import choose_plan
from lit_cfl.engines.plan import Plan, PlanOptions, RayRoom
from lit_cfl.errors import InputError


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_a_way_that_cannot_is_refused_with_its_reason():
    load = work(kind=Hooked)
    assert choose_plan("auto", "cpu", "32-true", load).engine == "trainer"
    with pytest.raises(
        InputError, match="engine is 'loop', which this run cannot use: hook on_train_start; use --engine auto"
    ):
        choose_plan("loop", "cpu", "32-true", load)
    with pytest.raises(
        InputError, match="engine is 'stack', which this run cannot use: a stack is slower than a loop on a CPU"
    ):
        choose_plan("stack", "cpu", "32-true", work())
    with pytest.raises(InputError, match=r"engine is .loop., but plan\.engine is .trainer."):
        choose_plan("loop", "cpu", "32-true", work(), PlanOptions(engine="trainer"))
    with pytest.raises(InputError, match=r"engine is .ray., but plan\.workers is 0"):
        choose_plan("ray", "cpu", "32-true", work(), PlanOptions(workers=0))


def test_a_recorded_plan_is_chosen_again():
    for plan in (Plan("loop", threads=3), Plan("trainer", rows_mib=7), Plan("loop", workers=2)):
        assert choose_plan("auto", "cpu", "32-true", work(), PlanOptions(**vars(plan))) == plan


def test_parts_of_the_plan_set_by_hand_stay():
    options = PlanOptions(lanes=8, threads=2, rows_mib=3, workers=1)
    assert choose_plan("auto", "cpu", "32-true", work(), options) == Plan(
        "loop", threads=2, rows_mib=3, lanes=8, workers=1
    )
    with pytest.raises(InputError, match=r"plan\.lanes is 0; it must be 1 or more"):
        choose_plan("auto", "cpu", "32-true", work(), PlanOptions(lanes=0))


def test_gpu_of_this_machine_is_not_counted_as_rays(monkeypatch: pytest.MonkeyPatch):
    one_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_plan("trainer", "cuda:1", "32-true", work(10)).device == "cuda:1"
    assert choose_plan("ray", "auto", "32-true", work(10)).device == "cpu"
    with pytest.raises(InputError, match="device 'cuda:0' was asked for, but Ray has no CUDA device; use"):
        choose_plan("ray", "cuda", "32-true", work(10))
    with pytest.raises(InputError, match="each Ray worker sees one GPU, which is cuda:0 there: give cuda"):
        choose_plan("ray", "cuda:1", "32-true", work(10), room=RayRoom(gpus=4))
