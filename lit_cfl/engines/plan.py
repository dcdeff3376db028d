"""Describes how local training is computed. A plan is chosen by rule (`choose_plan.py`) and recorded, so that a rerun
computes the same.

In `32-true` all of float32 counts: products and convolutions on a GPU do not round to TF32, which PyTorch by itself
allows in convolutions. In `tf32` they do: numbers are float32, with ten bits of each factor in a product. A CPU takes
sixteen bits where that is faster (`dual.py`), elsewhere all.
"""

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import torch

from lit_cfl.errors import InputError

EngineName = Literal["trainer", "stacked", "ray"]
EngineOption = Literal["auto", "trainer", "stacked", "ray"]
Products = Literal["own", "torch"]
Precision = Literal["32-true", "64-true", "tf32", "16-mixed", "bf16-mixed", "bf16-true"]
_MIXED = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


@dataclass(frozen=True)
class PlanOptions:
    """Parts of a plan that are set by hand, or recorded by an earlier run; None = by rule.

    Args:
        engine: which engine fits the clients.
        device: `cpu` or `cuda:<i>`.
        precision: a `lightning.Trainer` precision, or `tf32`.
        threads: CPU threads of PyTorch, 1 or more.
        rows_mib: local models of one fit held in memory at once, MiB, 1 or more; a larger fit is read in chunks, which
            on a GPU have no fewer clients than the stack has lanes.
        lanes: clients that train together, 1 or more; 1 = a plain loop.
        narrow: width of the stack when no more lanes are busy, 1 to `lanes`.
        steps_per_call: training steps in one compiled function, 1 or more.
        compile: whether the stack is compiled.
        products: of matrices on a CPU: `own` (`products.py`; other types than float32 and float64 are left to
            PyTorch), with small convolutions of float32 (`convolutions.py`), or `torch`.
        fused: whether all steps of a client are one call of a C++ function (`perceptron.py`), and an evaluation another
            (`perceptron_scorer.py`); linear models and MLPs with plain SGD on a CPU.
        dual: whether clients keep the first layer's weights in dual form while they train (`dual.py`), where that takes
            less; MLPs with plain SGD on a CPU.
        workers: Ray actors of the engine `ray`, 1 or more.
    """

    engine: EngineName | None = None
    device: str | None = None
    precision: Precision | None = None
    threads: int | None = None
    rows_mib: int | None = None
    lanes: int | None = None
    narrow: int | None = None
    steps_per_call: int | None = None
    compile: bool | None = None
    products: Products | None = None
    fused: bool | None = None
    dual: bool | None = None
    workers: int | None = None


@dataclass(frozen=True)
class Plan:
    """How local training is computed. The parts as in `PlanOptions`; rows are float64 for `64-true`, else float32."""

    engine: EngineName = "trainer"
    device: str = "cpu"
    precision: Precision = "32-true"
    threads: int = 1
    rows_mib: int = 1024
    lanes: int = 1
    narrow: int = 1
    steps_per_call: int = 1
    compile: bool = False
    products: Products = "torch"
    fused: bool = False
    dual: bool = False
    workers: int = 1

    def __post_init__(self) -> None:
        for name in ("threads", "rows_mib", "lanes", "narrow", "steps_per_call", "workers"):
            if getattr(self, name) < 1:
                raise InputError(f"plan.{name} is {getattr(self, name)}; it must be 1 or more")
        if self.narrow > self.lanes:
            raise InputError(f"plan.narrow is {self.narrow}, plan.lanes {self.lanes}; it must not be more")
        if self.precision == "16-mixed" and self.device == "cpu":
            raise InputError("precision '16-mixed' needs a GPU; on a CPU use 32-true or bf16-mixed")
        exact = self.autocast is None and self.compute_dtype == self.dtype
        one_by_one = exact and self.device == "cpu" and self.lanes == 1 and not self.compile
        for name in ("fused", "dual"):
            if getattr(self, name) and not one_by_one:
                raise InputError(
                    f"plan.{name} is true with compile {self.compile}, {self.lanes} lanes, device {self.device!r} and "
                    f"precision {self.precision!r}; it needs no compile, 1 lane, cpu and 32-true, 64-true or tf32: set "
                    "these, or leave it out"
                )
        if self.fused and self.dual:
            raise InputError("plan.fused and plan.dual are true; a client trains in one of both ways: leave one out")

    def without_compiling(self) -> "Plan":
        """Returns the plan for a machine whose compiler fails: a plain loop on a CPU, the same stack on a GPU."""
        plan = replace(self, compile=False, products="torch", fused=False, dual=False)
        return replace(plan, lanes=1, narrow=1) if self.device == "cpu" else plan

    @property
    def kind_of_loop(self) -> str:
        """How clients train without compiling, for a message."""
        return "a plain loop" if self.lanes == 1 else "a stack that is not compiled"

    @property
    def dtype(self) -> torch.dtype:
        """The type of the rows' numbers."""
        return torch.float64 if self.precision == "64-true" else torch.float32

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type of models' numbers while they train."""
        return torch.bfloat16 if self.precision == "bf16-true" else self.dtype

    @property
    def autocast(self) -> torch.dtype | None:
        """The type in which losses are computed, where that is another than the models'."""
        return _MIXED.get(self.precision)


def set_up_torch(plan: Plan, deterministic: bool) -> None:
    """Sets options of the whole process: threads, TF32, deterministic operations alone or not, how memory is freed.

    To be called before anything runs on a GPU: cuBLAS reads its setting once, when it starts.
    """
    keep_freed_memory()
    torch.set_num_threads(plan.threads)
    shorter = plan.precision == "tf32" and plan.device != "cpu"
    torch.set_float32_matmul_precision("high" if shorter else "highest")
    torch.backends.cudnn.allow_tf32 = shorter
    torch.backends.cudnn.benchmark = False  # scores have batches of many sizes; see `CapturedSteps`
    deterministic = deterministic and plan.device != "cpu"
    if plan.device != "cpu":  # a later run in this process may be deterministic, and cuBLAS reads it once
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if deterministic:
        # PyTorch would fill every new tensor with NaN, a kernel each; ours are all written before they are read.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # torch has no stub
    torch.use_deterministic_algorithms(deterministic)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def keep_freed_memory() -> None:
    """Lets the C library keep blocks up to 128 MiB that are freed, 512 MiB in all, for the next tensors of their size.

    It would give each back to the kernel, which clears it anew: a third of the time of a run in which all clients
    train. Where the C library is not glibc, nothing changes.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        # glibc up to 2.30 refuses more than 32 MiB; either call ends what it would choose itself, so both or none
        if libc.mallopt(_MMAP_THRESHOLD, 128 * 2**20) or libc.mallopt(_MMAP_THRESHOLD, 32 * 2**20):
            libc.mallopt(_TRIM_THRESHOLD, 512 * 2**20)
