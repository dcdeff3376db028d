"""Tests the process-wide options that a plan sets, and whether MKL is asked for reproducible products."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lit_cfl.engines.plan import Plan, set_up_torch
from lit_cfl.engines.reproducible_products import SETTING, STRICT, ask_for_reproducible_products


@pytest.fixture
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores the process-wide options after a test."""
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


# Matrix products that do not depend on memory alignment


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
