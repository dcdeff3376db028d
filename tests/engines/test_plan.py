"""Tests the rule that chooses a plan, which plans are refused, and the process-wide options that a plan sets."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ragged import SHAPE, ragged_data
from torch import nn

from lit_cfl.devices import count_cores
from lit_cfl.engines import choose_plan as rule
from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.choose_plan import Workload, choose_plan
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan, PlanOptions, RayRoom, set_up_torch
from lit_cfl.engines.reproducible_products import SETTING, STRICT, ask_for_reproducible_products
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.engines.ways import WAYS
from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification


class Branching(nn.Module):
    """Net that is not a chain of layers, with the given number of parameters."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.weight.mean()


class Hooked(Classification):
    def on_train_start(self) -> None: ...


def work(parameters: int = 7_850, cohort: int = 64, kind: type[Classification] = Classification) -> Workload:
    batch = torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64)
    return Workload(Trial(kind(Branching(parameters)), batch, LocalTraining(1, 10), 100), cohort)


def one_gpu(monkeypatch: pytest.MonkeyPatch, gib: float = 79.1) -> None:
    card = SimpleNamespace(total_memory=int(gib * 2**30))
    for name, answer in (("is_available", True), ("device_count", 1), ("get_device_properties", card)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a machine of 16 cores, whose user has not set a number of threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(rule, "count_cores", lambda: 16)


@pytest.fixture
def agreeing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ways agree untried: `test_modules.py` tests whether they do, and a trial of a large net takes a second."""
    monkeypatch.setattr(Trial, "_disagreement", lambda *_: None)


def chosen(engine: Any = "auto", device: str = "cpu", load: Workload | None = None, *others: Any) -> Plan:
    return choose_plan(engine, device, "32-true", load or work(), *others)


def test_plan_follows_its_rule():
    assert chosen() == Plan("loop", "cpu", "32-true", 1)
    assert chosen("trainer") == Plan("trainer", "cpu", "32-true", 1)
    assert chosen(load=work(kind=Hooked)).engine == "trainer"
    options = PlanOptions(lanes=8, threads=2, rows_mib=3, workers=1)
    assert chosen("auto", "cpu", work(), options) == Plan("loop", threads=2, rows_mib=3, lanes=8, workers=1)
    for plan in (Plan("loop", threads=3), Plan("trainer", rows_mib=7), Plan("loop", workers=2)):
        assert chosen("auto", "cpu", work(), PlanOptions(**vars(plan))) == plan


@pytest.mark.usefixtures("agreeing")
def test_each_way_is_the_first_that_can(monkeypatch: pytest.MonkeyPatch):
    for number, way in enumerate(WAYS):
        for other in WAYS:
            reason = "none of its business" if other in WAYS[:number] else None
            monkeypatch.setattr(other, "reason_against", classmethod(lambda *_, reason=reason: reason))
        assert chosen().engine == way.name


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (lambda: chosen("auto", "cuda:7"), "'cuda:7'"),
        (lambda: chosen("loop", "cpu", work(kind=Hooked)), "engine is 'loop'.*hook on_train_start"),
        (lambda: chosen("stack"), "engine is 'stack'.*slower than a loop on a CPU"),
        (lambda: chosen("ray", "cpu", work(), PlanOptions(workers=0)), r"'ray'.*plan\.workers is 0"),
        (lambda: chosen("ray", "cuda:1", work(), None, RayRoom(gpus=4)), "cuda:0 there"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(given: Any, named: str):
    with pytest.raises(InputError, match=named):
        given()


def test_workload_is_that_of_a_client_of_mean_size_and_of_a_cohort_of_clients_in_training():
    data = ragged_data()
    sizes = data.num_examples[data.population].double()
    net = lambda: Classification(MCLR(SHAPE, data.examples.num_labels))  # noqa: E731
    cohorts = [Workload.of(net, 0, LocalTraining(), data, cohort).cohort for cohort in (2, 20)]
    assert cohorts == [2, len(sizes)]
    found = [Trial.of(net(), data, LocalTraining(1, size)).batch_size for size in ("full", 10**6, 3)]
    assert found == [round(float(sizes.mean())), round(float(sizes.mean())), 3]


@pytest.mark.usefixtures("agreeing")
@pytest.mark.parametrize(("asked", "large"), [(None, 16), ("3,1", 3), ("64", 16), ("", 16)])
def test_all_cores_are_used_from_a_million_parameters_on_or_as_many_as_omp_num_threads(
    asked: str | None, large: int, monkeypatch: pytest.MonkeyPatch
):
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert [chosen(load=work(n)).threads for n in (1_000_000, 999_999)] == [large, 1]
    assert chosen("ray", load=work(1_000_000)).threads == 1
    # a number that is set explicitly stays
    assert chosen("auto", "cpu", work(2_000_000), PlanOptions(threads=2)).threads == 2


@pytest.mark.usefixtures("agreeing")
def test_threads_are_no_more_than_the_cores_of_a_job(monkeypatch: pytest.MonkeyPatch):
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert count_cores() == 1
        monkeypatch.setattr(rule, "count_cores", count_cores)
        assert chosen(load=work(2_000_000)).threads == 1
        monkeypatch.setenv("OMP_PROC_BIND", "false")
        assert count_cores() == 1
        monkeypatch.setenv("OMP_PROC_BIND", "close")  # OpenMP then binds the thread that loads it to one core
        assert count_cores() == os.cpu_count()
    finally:
        os.sched_setaffinity(0, before)


def set_lane_mib(mib: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every task stackable, with lanes that take the given MiB."""
    monkeypatch.setattr(StackWay, "reason_against", classmethod(lambda *_: None))
    monkeypatch.setattr(StackWay, "client_bytes", classmethod(lambda *_: int(mib * 2**20)))


@pytest.mark.usefixtures("agreeing")
def test_auto_is_the_first_gpu(monkeypatch: pytest.MonkeyPatch):
    assert chosen("auto", "auto").device == "cpu"
    one_gpu(monkeypatch)
    assert [chosen("auto", asked).device for asked in ("auto", "cuda", "cpu")] == ["cuda:0", "cuda:0", "cpu"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen("trainer", "cuda:1").device == "cuda:1"
    assert chosen("ray", "auto").device == "cpu"  # a GPU of this machine is not Ray's
    with pytest.raises(InputError, match=r"'cuda:0'.*Ray has no CUDA device"):
        chosen("ray", "cuda")


@pytest.mark.parametrize(
    ("gib", "lane_mib", "cohort", "parameters", "lanes"),
    [
        (79.1, 0.1, 100, 7_850, 104),
        (79.1, 0.1, 50_000, 7_850, 4_096),  # the limit for small nets
        (79.1, 0.1, 50_000, 100_000, 640),  # 64 million parameters in all lanes
        (79.1, 80.0, 300, 7_850, 248),  # 19.75 GiB have room for 252
        (39.6, 80.0, 300, 7_850, 128),  # equal for the same card, even if its drivers report slightly different totals
        (16.0, 600.0, 20, 7_850, 6),
        (0.1, 200.0, 20, 7_850, 1),
    ],
)
def test_stack_of_a_gpu_is_as_wide_as_the_cohort_and_a_quarter_of_the_memory_allow(
    gib: float, lane_mib: float, cohort: int, parameters: int, lanes: int, monkeypatch: pytest.MonkeyPatch
):
    one_gpu(monkeypatch, gib)
    set_lane_mib(lane_mib, monkeypatch)
    load = work(parameters, cohort=cohort)
    found = chosen("stack", "auto", load)
    assert (found.device, found.lanes) == ("cuda:0", lanes)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.25)  # the share of a trial
    if (gib, lane_mib) == (79.1, 80.0):
        assert chosen("stack", "auto", load).lanes == 64  # 5 GiB have room for 64


@pytest.mark.parametrize(("gpus", "lanes"), [(1, 64), (2, 32), (3, 24)])
def test_gpus_of_ray_share_the_cohort_and_may_be_elsewhere(gpus: int, lanes: int, monkeypatch: pytest.MonkeyPatch):
    assert not torch.cuda.is_available()
    set_lane_mib(1, monkeypatch)
    load, only, room = work(cohort=64), PlanOptions(engine="stack"), RayRoom(gpus=gpus)
    found = chosen("ray", "auto", load, only, room)
    assert (found.device, found.workers, found.lanes) == ("cuda:0", gpus, lanes)
    assert chosen("ray", "cuda", load, only, room) == found
    assert chosen("ray", "auto", load, PlanOptions(**vars(found)), room) == found
    set_lane_mib(1024, monkeypatch)  # a quarter of 16 GiB has room for four
    assert chosen("ray", "cuda", load, only, room).lanes == 4
    two = chosen("ray", "cuda", load, replace(only, workers=2 * gpus), room)
    assert (two.lanes, two.workers) == (2, 2 * gpus)


def test_workers_of_ray_are_counted_where_they_are():
    load = work(cohort=40)
    places = [chosen("ray", "cpu", load, None, RayRoom(n)).workers for n in (0, 1, 24, 1000)]
    assert places == [1, 1, 24, 40]  # at most as many as the clients of a round
    assert chosen("ray", "cpu", load, PlanOptions(workers=64), RayRoom(24)).workers == 64


@pytest.fixture
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "put back in the end")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    flags, filled = (cudnn.allow_tf32, cudnn.benchmark), torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.utils.deterministic.fill_uninitialized_memory = filled
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(before[0])
    torch.set_float32_matmul_precision(before[1])
    cudnn.allow_tf32, cudnn.benchmark = flags


@pytest.mark.usefixtures("as_it_was")
@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_sets_what_a_gpu_needs_for_the_same_bits(deterministic: bool):
    torch.backends.cudnn.benchmark = True
    set_up_torch(Plan("loop", "cuda:1", threads=1), deterministic)
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert not torch.backends.cudnn.benchmark  # captured steps switch it on
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"  # cuBLAS reads it once: the next run may need it
    del os.environ["CUBLAS_WORKSPACE_CONFIG"]
    set_up_torch(Plan("loop"), deterministic)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert not torch.are_deterministic_algorithms_enabled()  # a CPU does not need this setting


FAULTS = """
import resource, torch
from lit_cfl.engines.plan import Plan, set_up_torch

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

set_up_torch(Plan("loop"), False)
print(min(faults() for _ in range(10)))
"""


@pytest.mark.nightly  # starts a separate process, whose memory no other test has touched
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such option")
def test_freed_memory_is_kept_for_the_next_tensor():
    """If freed memory were returned to the system, allocating 64 MiB again would take 16,384 page faults."""
    done = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 100  # only the first tensors request memory


@pytest.mark.usefixtures("as_it_was")
def test_tf32_shortens_factors_on_a_gpu_where_it_is_asked_for():
    set_up_torch(Plan("loop", "cuda:0", "tf32"), True)
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert Plan("loop", "cuda:0", "tf32").dtype == torch.float32
    for plan in (Plan("loop", precision="tf32"), Plan("loop", "cuda:0")):  # on a CPU, and in single precision
        torch.set_float32_matmul_precision("medium")
        torch.backends.cudnn.allow_tf32 = True
        set_up_torch(plan, True)
        assert torch.get_float32_matmul_precision() == "highest"
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (False, False)


AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512dq\n"
INTEL = "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f avx512dq\n"
OLDER = "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2\n"


@pytest.mark.parametrize(
    ("processor", "before", "after"),
    [(AMD, None, STRICT), (OLDER, None, STRICT), (None, None, STRICT), (INTEL, None, None), (AMD, "AVX2", "AVX2")],
    ids=["AMD", "Intel with AVX2", "no list", "Intel with AVX-512", "user's own"],
)
def test_mkl_is_asked_unless_the_user_or_the_processor_decides(
    processor: str | None, before: str | None, after: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(SETTING, before or "")  # even to be removed, so that Ray's workers in later tests lack it, too
    if before is None:
        monkeypatch.delenv(SETTING)
    file = tmp_path / "cpuinfo"
    if processor is not None:
        file.write_text(processor)
    ask_for_reproducible_products(file)
    assert os.environ.get(SETTING) == after
