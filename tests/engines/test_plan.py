"""The rule that chooses a plan, and what it sets for the whole process."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lit_cfl.cores import count_cores
from lit_cfl.engines import choose_plan as rule
from lit_cfl.engines.choose_plan import RayRoom, Workload, choose_plan
from lit_cfl.engines.plan import Plan, PlanOptions, set_up_torch
from lit_cfl.errors import InputError


@pytest.fixture
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is set for the process is put back."""
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


@pytest.fixture(autouse=True)
def _amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "processor", lambda: "model name : AMD EPYC 9B14")


def test_plan_follows_its_rule(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    small = Workload(7_850, client_steps=1000)
    assert choose_plan("auto", "cpu", "32-true", small) == Plan("stacked", "cpu", "32-true", 1)
    assert choose_plan("trainer", "cpu", "32-true", small) == Plan("trainer", "cpu", "32-true", 1)
    assert choose_plan("auto", "cpu", "32-true", Workload(2_000_000)).threads == count_cores()
    with pytest.raises(InputError, match="'cuda:7' was asked for"):
        choose_plan("auto", "cuda:7", "32-true", small)
    with pytest.raises(InputError, match="'tpu' is not known"):
        choose_plan("auto", "tpu", "32-true", small)


@pytest.mark.parametrize(("compiler", "lanes"), [(True, 4), (False, 1)])
def test_long_runs_compile_where_there_is_a_compiler(compiler: bool, lanes: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "has_compiler", lambda: compiler)
    long = Workload(7_850, client_steps=50_000)
    chosen = choose_plan("auto", "cpu", "32-true", long)
    assert (chosen.compile, chosen.lanes, chosen.narrow) == (compiler, lanes, 1)
    conv = choose_plan("auto", "cpu", "32-true", Workload(3_000_000, has_convolutions=True, client_steps=50_000))
    assert (conv.narrow, conv.steps_per_call) == (min(2, lanes), 1)
    assert not choose_plan("auto", "cpu", "32-true", Workload(7_850, client_steps=49_999)).compile


def test_long_runs_of_small_perceptrons_are_fused_where_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "has_compiler", lambda: True)
    long = Workload(7_850, client_steps=50_000, perceptron=True)
    fused = Plan("stacked", products="own", fused=True)
    assert choose_plan("auto", "cpu", "32-true", long) == fused
    assert choose_plan("auto", "cpu", "32-true", long, PlanOptions(threads=1, rows_mib=1024)) == fused
    assert choose_plan("auto", "cpu", "64-true", long) == replace(fused, precision="64-true")
    assert choose_plan("ray", "cpu", "32-true", long, PlanOptions(workers=2)).fused
    others = (
        ("32-true", replace(long, client_steps=49_999), None),
        ("32-true", replace(long, num_parameters=1_000_000), None),
        ("32-true", replace(long, perceptron=False), None),
        ("bf16-mixed", long, None),
        ("32-true", long, PlanOptions(fused=False)),
        ("32-true", long, PlanOptions(compile=True, lanes=4, products="own")),  # recorded before plans had this part
        ("32-true", long, PlanOptions(compile=False)),
    )
    assert not any(choose_plan("auto", "cpu", *given).fused for given in others)
    assert not choose_plan("trainer", "cpu", "32-true", long).fused
    one_gpu(monkeypatch)
    assert not choose_plan("auto", "cuda", "32-true", long).fused
    monkeypatch.setattr(rule, "has_compiler", lambda: False)
    assert not choose_plan("auto", "cpu", "32-true", long).fused


def test_long_runs_of_nets_with_small_convolutions_have_a_plain_loop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "has_compiler", lambda: True)
    long = Workload(60_000, has_convolutions=True, client_steps=50_000, small_convolutions=True)
    plain = Plan("stacked", products="own")
    assert choose_plan("auto", "cpu", "32-true", long) == plain
    assert choose_plan("auto", "cpu", "tf32", long) == replace(plain, precision="tf32")
    for by_hand in (PlanOptions(compile=False), PlanOptions(lanes=1), PlanOptions(steps_per_call=1)):
        assert choose_plan("auto", "cpu", "32-true", long, by_hand) == plain
    others = (
        ("32-true", replace(long, small_convolutions=False), None),
        ("32-true", replace(long, num_parameters=1_000_000), None),
        ("32-true", long, PlanOptions(products="torch")),
        ("64-true", long, None),
        ("bf16-mixed", long, None),
        ("32-true", long, PlanOptions(lanes=2)),
        ("32-true", long, PlanOptions(compile=True)),
    )
    for precision, work, by_hand in others:
        assert choose_plan("auto", "cpu", precision, work, by_hand).compile
    short = choose_plan("auto", "cpu", "32-true", replace(long, client_steps=49_999))
    assert (short.compile, short.products) == (False, "torch")


def test_products_of_matrices_are_our_own_where_mkl_is_slow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "has_compiler", lambda: True)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plain = Workload(2_000_000, client_steps=5_000)
    fused = Workload(7_850, client_steps=50_000, perceptron=True)
    dual = Workload(10_000, client_steps=500, multiply_adds=2e9, has_dual=True)
    pays = (plain, replace(plain, client_steps=50_000), fused, dual)
    here = [choose_plan("auto", "cpu", "32-true", work) for work in pays]
    assert [plan.products for plan in here] == ["own"] * 4
    assert [(plan.compile, plan.fused, plan.dual) for plan in here] == [
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert choose_plan("auto", "cpu", "32-true", replace(plain, client_steps=4_999)).products == "torch"
    small = Workload(60_000, has_convolutions=True, client_steps=50_000, small_convolutions=True)
    monkeypatch.setattr(rule, "processor", lambda: "model name : Intel(R) Xeon(R) Processor")
    assert [choose_plan("auto", "cpu", "32-true", work) for work in pays] == [
        replace(p, products="torch") for p in here
    ]
    assert choose_plan("auto", "cpu", "32-true", small).products == "own"  # with the convolutions
    monkeypatch.setenv("RAY_ADDRESS", "node:6379")  # nobody knows its processors
    assert [choose_plan("auto", "cpu", "32-true", work) for work in pays] == here
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(rule, "processor", lambda: "arm arm64\nintel-7.lab")  # outside of Linux, a computer's name
    assert [choose_plan("auto", "cpu", "32-true", work) for work in pays] == here


def test_long_runs_of_perceptrons_on_full_batches_are_dual_where_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "has_compiler", lambda: True)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    work = Workload(2_000_000, client_steps=5_000, multiply_adds=2e9, has_dual=True)
    dual = Plan("stacked", products="own", dual=True)
    assert choose_plan("auto", "cpu", "32-true", work) == dual
    assert choose_plan("auto", "cpu", "tf32", work) == replace(dual, precision="tf32")
    assert choose_plan("auto", "cpu", "32-true", replace(work, num_parameters=10_000, client_steps=500)) == dual
    small = replace(work, num_parameters=10_000, client_steps=50_000, perceptron=True)
    assert choose_plan("auto", "cpu", "32-true", small) == Plan("stacked", products="own", fused=True)
    assert choose_plan("auto", "cpu", "32-true", small, PlanOptions(dual=True)) == dual
    others = (
        ("32-true", replace(work, client_steps=499), None),
        ("32-true", replace(work, has_dual=False), None),
        ("bf16-mixed", work, None),
        ("32-true", work, PlanOptions(dual=False)),
        ("32-true", work, PlanOptions(compile=True)),
    )
    assert not any(choose_plan("auto", "cpu", *given).dual for given in others)
    assert not choose_plan("trainer", "cpu", "32-true", work).dual
    monkeypatch.setattr(rule, "has_compiler", lambda: False)
    assert not choose_plan("auto", "cpu", "32-true", work).dual


@pytest.mark.parametrize(("parameters", "threads"), [(49_999, 1), (999_999, 1), (1_000_000, 16)])
def test_all_cores_are_used_from_a_million_parameters_on(
    parameters: int, threads: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rule, "has_compiler", lambda: True)
    monkeypatch.setattr(rule, "count_cores", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    chosen = choose_plan("auto", "cpu", "32-true", Workload(parameters, client_steps=50_000))
    assert (chosen.threads, chosen.narrow) == (threads, 1 if threads == 1 else 2)
    assert choose_plan("ray", "cpu", "32-true", Workload(parameters, client_steps=50_000)).threads == 1
    short = choose_plan("auto", "cpu", "32-true", Workload(parameters))
    assert short.threads == (16 if threads == 16 else 1)  # a plain loop
    by_hand = choose_plan("auto", "cpu", "32-true", Workload(10, client_steps=50_000), PlanOptions(threads=2))
    assert by_hand.narrow == 2


def test_long_runs_of_long_rounds_use_a_process_a_core(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "has_compiler", lambda: True)
    monkeypatch.setattr(rule, "count_cores", lambda: 16)
    for name in ("OMP_NUM_THREADS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    long = Workload(50_000, client_steps=100_000, multiply_adds=50_000_000, rounds=500, cohort=50)
    plan = choose_plan("auto", "auto", "32-true", long)
    assert (plan.engine, plan.device, plan.workers, plan.threads, plan.lanes) == ("ray", "cpu", 16, 1, 4)
    assert choose_plan("auto", "cpu", "32-true", replace(long, cohort=10)).workers == 10
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert choose_plan("auto", "cpu", "32-true", long).workers == 4
    assert choose_plan("ray", "cpu", "32-true", long).workers == 16  # as asked for
    others = (
        ("auto", "cpu", replace(long, client_steps=99_999), None),
        ("auto", "cpu", replace(long, num_parameters=10_000_000, multiply_adds=49_999_999), None),
        ("auto", "cpu", replace(long, rounds=501), None),
        ("auto", "cpu", replace(long, cohort=1), None),
        ("auto", "cpu", replace(long, obstacles=("a reason",)), None),
        ("auto", "cpu", long, PlanOptions(threads=1)),  # as `compare`, `tune` and `reproduce` have it
        ("stacked", "cpu", long, None),
    )
    engines = [choose_plan(engine, device, "32-true", load, by_hand).engine for engine, device, load, by_hand in others]
    assert engines == ["stacked", "stacked", "stacked", "stacked", "trainer", "stacked", "stacked"]
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert choose_plan("auto", "cpu", "32-true", long).engine == "stacked"
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(rule, "find_spec", lambda name: None)
    assert choose_plan("auto", "cpu", "32-true", long).engine == "stacked"


@pytest.mark.parametrize(
    ("multiply_adds", "engine"),
    [(7_840, "stacked"), (101_632, "stacked"), (281_640, "stacked"), (3_869_824, "ray"), (12_273_152, "ray")],
    ids=["MCLR", "MLP", "LeNet", "MNISTCNN", "CNN of 1.66 M"],
)
def test_nets_of_the_papers_use_workers_where_a_round_takes_a_second(
    multiply_adds: int, engine: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("OMP_NUM_THREADS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rule, "count_cores", lambda: 2)
    load = Workload(50_000, client_steps=300 * 1_200, multiply_adds=10 * multiply_adds, rounds=300, cohort=20)
    assert choose_plan("auto", "cpu", "32-true", load).engine == engine


@pytest.fixture
def one_core() -> Iterator[None]:
    """A job that may run on one of the machine's cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
def test_threads_and_workers_are_no_more_than_the_cores_of_a_job(monkeypatch: pytest.MonkeyPatch):
    for name in ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    assert choose_plan("auto", "cpu", "32-true", Workload(2_000_000)).threads == 1
    assert choose_plan("ray", "cpu", "32-true", Workload(2_000_000)).workers == 1
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    assert count_cores() == 1
    monkeypatch.setenv("OMP_PROC_BIND", "close")  # then OpenMP puts the thread that loads it on one core
    assert count_cores() == os.cpu_count()


@pytest.mark.parametrize(("asked", "large"), [("1", 1), ("3,1", 3), ("64", 16), ("", 16), ("0", 16)])
def test_omp_num_threads_bounds_the_threads(asked: str, large: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "has_compiler", lambda: True)
    monkeypatch.setattr(rule, "count_cores", lambda: 16)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    chosen = [choose_plan("auto", "cpu", "32-true", Workload(n, client_steps=50_000)) for n in (1_000_000, 100_000)]
    assert [plan.threads for plan in chosen] == [large, 1]
    by_hand = choose_plan("auto", "cpu", "32-true", Workload(2_000_000), PlanOptions(threads=2))
    assert by_hand.threads == 2  # what is set by hand stays


def test_module_that_cannot_be_stacked_falls_back():
    odd = Workload(7_850, client_steps=10**6, obstacles=["hook on_train_start"])
    assert choose_plan("auto", "cpu", "32-true", odd) == Plan("trainer", "cpu", "32-true", 1)
    assert choose_plan("stacked", "cpu", "32-true", odd).engine == "trainer"


def test_parts_of_the_plan_set_by_hand_stay():
    by_hand = PlanOptions(lanes=8, compile=True, threads=2)
    chosen = choose_plan("auto", "cpu", "32-true", Workload(7_850), by_hand)
    assert (chosen.lanes, chosen.compile, chosen.threads, chosen.steps_per_call) == (8, True, 2, 5)
    with pytest.raises(InputError, match=r"plan\.narrow is 3, plan\.lanes 2"):
        choose_plan("auto", "cpu", "32-true", Workload(7_850), PlanOptions(lanes=2, narrow=3))


def one_gpu(monkeypatch: pytest.MonkeyPatch, total: float = 79.1) -> None:
    """Pretends that there is a GPU of so many GiB."""
    card = SimpleNamespace(total_memory=int(total * 2**30))
    for name, answer in (("is_available", True), ("device_count", 1), ("get_device_properties", card)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)


@pytest.mark.parametrize(
    ("gib", "lane_mib", "cohort", "lanes"),
    [
        (79.1, 0.1, 20, 24),
        (79.1, 0.1, 100, 104),
        (79.1, 0.1, 5_000, 256),
        (79.1, 80.0, 300, 248),  # 19.75 GiB hold 252
        (78.6, 80.0, 300, 248),
        (39.6, 80.0, 300, 128),  # the same card, whatever its driver takes
        (40.3, 80.0, 300, 128),
        (16.0, 600.0, 20, 6),
        (16.0, 5_000.0, 20, 1),
        (0.1, 200.0, 20, 1),
    ],
)
def test_stack_of_a_gpu_is_as_wide_as_the_cohort_and_a_quarter_of_the_memory_allow(
    gib: float, lane_mib: float, cohort: int, lanes: int, monkeypatch: pytest.MonkeyPatch
):
    one_gpu(monkeypatch, gib)
    load = Workload(7_850, client_steps=10**6, cohort=cohort, lane_bytes=int(lane_mib * 2**20))
    chosen = choose_plan("auto", "auto", "32-true", load)
    assert (chosen.device, chosen.lanes, chosen.compile) == ("cuda:0", lanes, False)
    assert lanes / 27 <= chosen.narrow < lanes / 27 + 1


def test_stack_of_a_trial_is_as_wide_as_its_share_of_the_gpu_allows(monkeypatch: pytest.MonkeyPatch):
    one_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    load = Workload(7_850, client_steps=10**6, cohort=300, lane_bytes=80 * 2**20)
    lanes = []
    for share in (1.0, 0.25):
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device, share=share: share)
        lanes.append(choose_plan("auto", "auto", "32-true", load).lanes)
    assert lanes == [248, 64]  # of 80 MiB in 19.75 GiB: 252, in 5: 64


def test_lane_that_nobody_has_estimated_takes_eight_models(monkeypatch: pytest.MonkeyPatch):
    one_gpu(monkeypatch)
    load = Workload(16 * 2**20, cohort=100)
    assert choose_plan("auto", "auto", "32-true", load).lanes == 32  # of 512 MiB in 19.75 GiB: 39
    assert choose_plan("auto", "auto", "64-true", load).lanes == 16
    by_hand = choose_plan("auto", "auto", "32-true", load, PlanOptions(compile=True))
    assert (by_hand.compile, by_hand.products) == (True, "torch")


@pytest.mark.parametrize(("gpus", "lanes"), [(1, 64), (2, 32), (3, 24)])
def test_gpus_of_ray_share_the_cohort_and_need_not_be_on_this_machine(gpus: int, lanes: int):
    assert not torch.cuda.is_available()
    load = Workload(7_850, client_steps=10**6, cohort=64)
    chosen = choose_plan("ray", "auto", "32-true", load, room=RayRoom(gpus=gpus))
    assert (chosen.device, chosen.workers, chosen.lanes) == ("cuda:0", gpus, lanes)
    assert choose_plan("ray", "cuda", "32-true", load, room=RayRoom(gpus=gpus)) == chosen
    again = choose_plan("ray", "auto", "32-true", load, PlanOptions(**vars(chosen)), RayRoom(gpus=gpus))
    assert again == chosen
    assert choose_plan("ray", "cpu", "32-true", load).device == "cpu"
    large = replace(load, lane_bytes=2**30)  # four in a quarter of 16 GiB
    assert choose_plan("ray", "cuda", "32-true", large, room=RayRoom(gpus=gpus)).lanes == 4
    two_on_one = choose_plan("ray", "cuda", "32-true", large, PlanOptions(workers=2 * gpus), RayRoom(gpus=gpus))
    assert (two_on_one.lanes, two_on_one.workers) == (2, 2 * gpus)


def test_workers_of_ray_are_counted_where_they_are():
    load = Workload(7_850, cohort=40)
    places = [choose_plan("ray", "cpu", "32-true", load, room=RayRoom(n)).workers for n in (0, 1, 24, 1000)]
    assert places == [1, 1, 24, 40]  # no more than clients of a round
    by_hand = choose_plan("ray", "cpu", "32-true", load, PlanOptions(workers=64), RayRoom(24))
    assert by_hand.workers == 64


def test_gpu_of_this_machine_is_none_of_ray(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "count_gpus", lambda: 2)
    monkeypatch.setattr(rule, "gib_of_gpu", lambda device: 16)
    assert choose_plan("auto", "cuda:1", "32-true", Workload(10)).device == "cuda:1"
    assert choose_plan("ray", "auto", "32-true", Workload(10)).device == "cpu"
    with pytest.raises(InputError, match="device 'cuda:0' was asked for, but Ray has no GPU; use --device cpu or a"):
        choose_plan("ray", "cuda", "32-true", Workload(10))
    with pytest.raises(InputError, match="with engine ray there is no GPU 1: use --device cuda"):
        choose_plan("ray", "cuda:1", "32-true", Workload(10), room=RayRoom(gpus=4))


@pytest.mark.usefixtures("as_it_was")
@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_sets_what_a_gpu_needs_for_the_same_bits(deterministic: bool):
    torch.backends.cudnn.benchmark = True
    set_up_torch(Plan("stacked", "cuda:1", threads=1), deterministic)
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert not torch.backends.cudnn.benchmark  # captured steps switch it on
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"  # cuBLAS reads it once: the next run may need it
    del os.environ["CUBLAS_WORKSPACE_CONFIG"]
    set_up_torch(Plan("stacked"), deterministic)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert not torch.are_deterministic_algorithms_enabled()  # a CPU needs none of it


FAULTS = """
import resource, torch
from lit_cfl.engines.plan import Plan, set_up_torch

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

set_up_torch(Plan("stacked"), False)
print(min(faults() for _ in range(10)))
"""


@pytest.mark.slow  # a process of its own, whose memory no other test has touched
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such option")
def test_freed_memory_is_kept_for_the_next_tensor():
    """Else the kernel clears each page of 64 MiB anew: 16,384 faults."""
    done = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 100  # the first ones make room


@pytest.mark.usefixtures("as_it_was")
def test_tf32_shortens_factors_on_a_gpu():
    set_up_torch(Plan("stacked", "cuda:0", "tf32"), True)
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert Plan("stacked", "cuda:0", "tf32").dtype == torch.float32
    set_up_torch(Plan("stacked", precision="tf32"), True)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", False)


@pytest.mark.usefixtures("as_it_was")
def test_single_precision_is_not_rounded_to_tf32():
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    set_up_torch(Plan("stacked", "cuda:0"), False)
    assert torch.get_float32_matmul_precision() == "highest"
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (False, False)
