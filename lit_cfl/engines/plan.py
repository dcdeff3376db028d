"""Describes how local training is computed.

A plan is chosen by rule (`choose_plan.py`) and recorded, so that a rerun computes the same.

`32-true` is full float32: products and convolutions on a GPU do not round to TF32, which PyTorch allows in convolutions
by default. `tf32` rounds the factors of each product to ten bits on a GPU; tensors stay float32. A CPU never rounds.
"""

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from lit_cfl.errors import InputError

WayName = Literal["trainer", "loop", "chain", "stack"]
EngineOption = Literal["auto", WayName, "ray"]
REFERENCE: WayName = "trainer"  # the way that can train every module
Precision = Literal["32-true", "64-true", "tf32", "16-mixed", "bf16-mixed", "bf16-true"]
_MIXED = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


@dataclass(frozen=True)
class PlanOptions:
    """Parts of a plan that are set explicitly, or recorded by an earlier run; None = chosen by rule.

    Args:
        engine: Way in which clients train: `trainer`, `loop`, `chain` or `stack`.
        device: `cpu` or `cuda:<i>`.
        precision: A `lightning.Trainer` precision, or `tf32`.
        threads: CPU threads of PyTorch, 1 or more.
        rows_mib: Size of the local models of one fit held in memory at once, MiB, 1 or more; a larger fit is read in
            chunks, which on a GPU have at least as many clients as train together.
        lanes: Number of clients that train together on a GPU, 1 or more; without effect on a CPU.
        workers: Number of Ray actors among which the clients are divided; 0 = all train in this process.
    """

    engine: WayName | None = None
    device: str | None = None
    precision: Precision | None = None
    threads: int | None = None
    rows_mib: int | None = None
    lanes: int | None = None
    workers: int | None = None


@dataclass(frozen=True)
class Plan:
    """How local training is computed. Fields as in `PlanOptions`; rows are float64 for `64-true`, else float32."""

    engine: WayName = REFERENCE
    device: str = "cpu"
    precision: Precision = "32-true"
    threads: int = 1
    rows_mib: int = 1024
    lanes: int = 1
    workers: int = 0

    def __post_init__(self) -> None:
        for name, least in {"threads": 1, "rows_mib": 1, "lanes": 1, "workers": 0}.items():
            if getattr(self, name) < least:
                raise InputError(f"plan.{name} is {getattr(self, name)}; it must be {least} or more")
        if self.precision == "16-mixed" and self.device == "cpu":
            raise InputError("precision '16-mixed' needs a GPU; on a CPU use 32-true or bf16-mixed")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows."""
        return row_dtype(self.precision)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of models during training."""
        return compute_dtype(self.precision)

    @property
    def autocast(self) -> torch.dtype | None:
        """The autocast dtype for losses; None if it is the models' dtype."""
        return _MIXED.get(self.precision)


class RayRoom(NamedTuple):
    """Resources of Ray's workers on all machines together.

    Args:
        places: Number of workers that fit on the cores with their threads.
        gpus: Number of GPUs.
    """

    places: int = 0
    gpus: int = 0


def row_dtype(precision: Precision) -> torch.dtype:
    """Returns the dtype of the rows."""
    return torch.float64 if precision == "64-true" else torch.float32


def compute_dtype(precision: Precision) -> torch.dtype:
    """Returns the dtype of models during training."""
    return torch.bfloat16 if precision == "bf16-true" else row_dtype(precision)


def set_up_torch(plan: Plan, deterministic: bool) -> None:
    """Sets process-wide options: threads, TF32, deterministic operations, and how memory is freed.

    Call it before anything runs on a GPU: cuBLAS reads its setting once, when it starts.
    """
    keep_freed_memory()
    torch.set_num_threads(plan.threads)
    shorter = plan.precision == "tf32" and plan.device != "cpu"
    torch.set_float32_matmul_precision("high" if shorter else "highest")
    torch.backends.cudnn.allow_tf32 = shorter
    torch.backends.cudnn.benchmark = False  # evaluation has batches of many sizes; only `CapturedSteps` turns it on
    deterministic = deterministic and plan.device != "cpu"
    # set for every run on a GPU: cuBLAS reads it only once, and a later run in this process may be deterministic
    if plan.device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if deterministic:
        # PyTorch would fill every new tensor with NaN in a separate kernel; ours are all written before they are read.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # torch has no stub
    torch.use_deterministic_algorithms(deterministic)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # constants of <malloc.h>


def keep_freed_memory() -> None:
    """Lets the C library keep freed blocks of up to 128 MiB each, 512 MiB in all, for reuse.

    By default it returns each block to the kernel, which clears it again. This takes a third of the time of a run in
    which all clients train. If the C library is not glibc, nothing changes.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        # glibc up to 2.30 accepts at most 32 MiB. Setting one threshold stops its adjustment of both: set both or none.
        if libc.mallopt(_MMAP_THRESHOLD, 128 * 2**20) or libc.mallopt(_MMAP_THRESHOLD, 32 * 2**20):
            libc.mallopt(_TRIM_THRESHOLD, 512 * 2**20)


def release_freed_memory() -> None:
    """Gives the kernel back the freed memory that the C library has kept for reuse."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
