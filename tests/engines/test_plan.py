"""Tests the rule that chooses a plan: its engine, device, threads, workers and lanes."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from ragged import SHAPE, ragged_data
from workloads import one_gpu, work

from lit_cfl.devices import count_cores
from lit_cfl.engines import choose_plan as rule
from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.choose_plan import Workload, choose_plan
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan, PlanOptions, RayRoom
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.engines.ways import WAYS
from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_plan_follows_its_rule():
    assert choose_plan("auto", "cpu", "32-true", work()) == Plan("loop", "cpu", "32-true", 1)
    assert choose_plan("trainer", "cpu", "32-true", work()) == Plan("trainer", "cpu", "32-true", 1)
    assert choose_plan("auto", "cpu", "32-true", work(2_000_000)).threads == count_cores()
    with pytest.raises(InputError, match="'cuda:7' was asked for"):
        choose_plan("auto", "cuda:7", "32-true", work())
    with pytest.raises(InputError, match="'tpu' is not known"):
        choose_plan("auto", "tpu", "32-true", work())


def test_each_way_is_the_first_that_can(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Trial, "_disagreement", lambda *_: None)
    for number, way in enumerate(WAYS):
        for other in WAYS:
            reason = "none of its business" if other in WAYS[:number] else None
            monkeypatch.setattr(other, "reason_against", classmethod(lambda *_, reason=reason: reason))
        assert choose_plan("auto", "cpu", "32-true", work()).engine == way.name


@pytest.mark.parametrize(("parameters", "threads"), [(49_999, 1), (999_999, 1), (1_000_000, 16)])
def test_all_cores_are_used_from_a_million_parameters_on(
    parameters: int, threads: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rule, "count_cores", lambda: 16)
    assert choose_plan("auto", "cpu", "32-true", work(parameters)).threads == threads
    assert choose_plan("ray", "cpu", "32-true", work(parameters)).threads == 1


def test_workload_is_that_of_a_client_of_mean_size_and_of_a_cohort_of_clients_in_training():
    data = ragged_data()
    sizes = data.num_examples[data.population].double()
    net = lambda: Classification(MCLR(SHAPE, data.examples.num_labels))  # noqa: E731
    cohorts = [Workload.of(net, 0, LocalTraining(), data, cohort).cohort for cohort in (2, 20)]
    assert cohorts == [2, len(sizes)]
    found = [Trial.of(net(), data, LocalTraining(1, size)).batch_size for size in ("full", 10**6, 3)]
    assert found == [round(float(sizes.mean())), round(float(sizes.mean())), 3]


@pytest.fixture
def one_core() -> Iterator[None]:
    """Restricts the process to one of the machine's cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
def test_threads_are_no_more_than_the_cores_of_a_job(monkeypatch: pytest.MonkeyPatch):
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    assert choose_plan("auto", "cpu", "32-true", work(2_000_000)).threads == 1
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    assert count_cores() == 1
    monkeypatch.setenv("OMP_PROC_BIND", "close")  # OpenMP then binds the thread that loads it to one core
    assert count_cores() == os.cpu_count()


@pytest.mark.parametrize(("asked", "large"), [("1", 1), ("3,1", 3), ("64", 16), ("", 16), ("0", 16)])
def test_omp_num_threads_bounds_the_threads(asked: str, large: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "count_cores", lambda: 16)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert [choose_plan("auto", "cpu", "32-true", work(n)).threads for n in (1_000_000, 100_000)] == [large, 1]
    options = choose_plan("auto", "cpu", "32-true", work(2_000_000), PlanOptions(threads=2))
    assert options.threads == 2  # a number that is set explicitly stays


def lanes_of(mib: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every task stackable, with lanes that take the given MiB."""
    monkeypatch.setattr(StackWay, "reason_against", classmethod(lambda *_: None))
    monkeypatch.setattr(StackWay, "client_bytes", classmethod(lambda *_: int(mib * 2**20)))


def test_auto_is_the_first_gpu(monkeypatch: pytest.MonkeyPatch):
    assert choose_plan("auto", "auto", "32-true", work()).device == "cpu"
    one_gpu(monkeypatch)
    devices = [choose_plan("auto", asked, "32-true", work()).device for asked in ("auto", "cuda", "cpu")]
    assert devices == ["cuda:0", "cuda:0", "cpu"]


@pytest.mark.parametrize(
    ("gib", "lane_mib", "cohort", "parameters", "lanes"),
    [
        (79.1, 0.1, 20, 7_850, 24),
        (79.1, 0.1, 100, 7_850, 104),
        (79.1, 0.1, 50_000, 7_850, 4_096),  # the limit for small nets
        (79.1, 0.1, 50_000, 100_000, 640),  # 64 million parameters in all lanes
        (79.1, 0.1, 50_000, 1_000_000, 256),
        (79.1, 80.0, 300, 7_850, 248),  # 19.75 GiB have room for 252
        (78.6, 80.0, 300, 7_850, 248),
        (39.6, 80.0, 300, 7_850, 128),  # equal for the same card, even if its drivers report slightly different totals
        (40.3, 80.0, 300, 7_850, 128),
        (16.0, 600.0, 20, 7_850, 6),
        (16.0, 5_000.0, 20, 7_850, 1),
        (0.1, 200.0, 20, 7_850, 1),
    ],
)
def test_stack_of_a_gpu_is_as_wide_as_the_cohort_and_a_quarter_of_the_memory_allow(
    gib: float, lane_mib: float, cohort: int, parameters: int, lanes: int, monkeypatch: pytest.MonkeyPatch
):
    one_gpu(monkeypatch, gib)
    lanes_of(lane_mib, monkeypatch)
    chosen = choose_plan("stack", "auto", "32-true", work(parameters, cohort=cohort))
    assert (chosen.device, chosen.lanes) == ("cuda:0", lanes)


def test_stack_of_a_trial_is_as_wide_as_its_share_of_the_gpu_allows(monkeypatch: pytest.MonkeyPatch):
    one_gpu(monkeypatch)
    lanes_of(80, monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    lanes = []
    for share in (1.0, 0.25):
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device, share=share: share)
        lanes.append(choose_plan("stack", "auto", "32-true", work(cohort=300)).lanes)
    assert lanes == [248, 64]  # 80 MiB per lane: 19.75 GiB have room for 252, 5 GiB for 64


@pytest.mark.parametrize(("gpus", "lanes"), [(1, 64), (2, 32), (3, 24)])
def test_gpus_of_ray_share_the_cohort_and_need_not_be_on_this_machine(
    gpus: int, lanes: int, monkeypatch: pytest.MonkeyPatch
):
    assert not torch.cuda.is_available()
    lanes_of(1, monkeypatch)
    load, only = work(cohort=64), PlanOptions(engine="stack")
    chosen = choose_plan("ray", "auto", "32-true", load, only, RayRoom(gpus=gpus))
    assert (chosen.device, chosen.workers, chosen.lanes) == ("cuda:0", gpus, lanes)
    assert choose_plan("ray", "cuda", "32-true", load, only, RayRoom(gpus=gpus)) == chosen
    again = choose_plan("ray", "auto", "32-true", load, PlanOptions(**vars(chosen)), RayRoom(gpus=gpus))
    assert again == chosen
    assert choose_plan("ray", "cpu", "32-true", work()).device == "cpu"
    lanes_of(1024, monkeypatch)  # a quarter of 16 GiB has room for four
    assert choose_plan("ray", "cuda", "32-true", load, only, RayRoom(gpus=gpus)).lanes == 4
    two = choose_plan("ray", "cuda", "32-true", load, replace(only, workers=2 * gpus), RayRoom(gpus=gpus))
    assert (two.lanes, two.workers) == (2, 2 * gpus)


def test_workers_of_ray_are_counted_where_they_are():
    load = work(cohort=40)
    places = [choose_plan("ray", "cpu", "32-true", load, room=RayRoom(n)).workers for n in (0, 1, 24, 1000)]
    assert places == [1, 1, 24, 40]  # at most as many as the clients of a round
    options = choose_plan("ray", "cpu", "32-true", load, PlanOptions(workers=64), RayRoom(24))
    assert options.workers == 64
