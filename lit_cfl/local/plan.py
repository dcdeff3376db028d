"""The plan: how local training is computed, chosen by rule and recorded, so that a rerun computes the same.

The rule looks at the model, the options, the amount of work and the kind of hardware, never at a timing or at free
memory:

* engine: `stacked`; `trainer` (one `lightning.Trainer.fit` a client) where the module needs it; `ray` when asked for;
* device: the first GPU where there is one, else the CPU;
* compile: on a CPU with a C++ compiler, from 50,000 client-steps in a run on: less does not pay for the compiling; no
  recurrent nets, whose graphs take a minute and a half each and make LSTMs no faster;
* lanes: 4 on a CPU that compiles (more fall out of its cache), 1 without (a plain loop: an eager stack is slower); on a
  GPU as many as a cohort has clients, rounded up to a multiple of 8, but no more than 256, and than models of 1 GiB;
* steps_per_call: 5 where it compiles a model below a million parameters, else 1;
* narrow: the width of a compiled stack when few lanes are busy: 1, but 2 for nets with convolutions, whose results in a
  stack of one differ from those in wider ones (so do all nets' where nothing is compiled); a quarter of the lanes on a
  GPU, where a run then captures at most four graphs: both widths, each with and without a proximal term;
* threads: 1 below a million parameters (small tensors only lose time to a second thread), else all cores;
* workers: of `ray`, one a core, or one a GPU;
* rows_mib: 1024.

In `32-true` all of float32 counts: products and convolutions on a GPU do not round to TF32, which PyTorch by itself
allows in convolutions.

Any part can be set by hand (`plan.threads: 2`); the rule fills the rest.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from lit_cfl.errors import InputError

EngineName = Literal["trainer", "stacked", "ray"]
EngineOption = Literal["auto", "trainer", "stacked", "ray"]
Precision = Literal["32-true", "64-true", "16-mixed", "bf16-mixed", "bf16-true"]
_SMALL_MODEL = 1_000_000  # parameters
_COMPILING_PAYS = 50_000  # client-steps
_MOST_LANES, _LANES_MIB = 256, 1024  # of a GPU's stack
_MIXED = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


@dataclass(frozen=True)
class PlanOptions:
    """Parts of a plan that are set by hand, or recorded by an earlier run; None = by rule.

    Args:
        engine: which engine fits the clients.
        device: `cpu` or `cuda:<i>`.
        precision: a `lightning.Trainer` precision.
        threads: CPU threads of PyTorch, 1 or more.
        rows_mib: local models of one fit held in memory at once, MiB, 1 or more; a larger fit is read in chunks, which
            on a GPU have no fewer clients than the stack has lanes.
        lanes: clients that train together, 1 or more; 1 = a plain loop.
        narrow: width of the stack when no more lanes are busy, 1 to `lanes`.
        steps_per_call: training steps in one compiled function, 1 or more.
        compile: whether the stack is compiled.
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
    workers: int = 1

    def __post_init__(self) -> None:
        for name in ("threads", "rows_mib", "lanes", "narrow", "steps_per_call", "workers"):
            if getattr(self, name) < 1:
                raise InputError(f"plan.{name} is {getattr(self, name)}; it must be 1 or more")
        if self.narrow > self.lanes:
            raise InputError(f"plan.narrow is {self.narrow}, plan.lanes {self.lanes}; it must not be more")
        if self.precision == "16-mixed" and self.device == "cpu":
            raise InputError("precision '16-mixed' needs a GPU; on a CPU use 32-true or bf16-mixed")

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return torch.float64 if self.precision == "64-true" else torch.float32

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of models while they train."""
        return torch.bfloat16 if self.precision == "bf16-true" else self.dtype

    @property
    def autocast(self) -> torch.dtype | None:
        """What losses are computed in where that is another type than the models'."""
        return _MIXED.get(self.precision)


@dataclass(frozen=True)
class Workload:
    """What the rule looks at beside options and hardware.

    Args:
        num_parameters: of the model.
        has_convolutions: whether it has any.
        is_recurrent: whether it has recurrent layers.
        client_steps: expected mini-batches in a run.
        obstacles: why the module cannot be stacked; empty if it can.
        cohort: clients of a round.
    """

    num_parameters: int = 0
    has_convolutions: bool = False
    is_recurrent: bool = False
    client_steps: int = 0
    obstacles: Sequence[str] = ()
    cohort: int = 64


def choose_plan(
    engine: EngineOption,
    device: str,
    precision: Precision,
    workload: Workload,
    by_hand: PlanOptions | None = None,
) -> Plan:
    """The plan for these options on this machine.

    Raises:
        InputError: a device that is not there, or an option that contradicts a part set by hand.
    """
    by_hand = by_hand or PlanOptions()
    device = "cuda:0" if device == "cuda" else device
    for name, asked, fixed in (("engine", engine, by_hand.engine), ("device", device, by_hand.device)):
        fell_back = (asked, fixed) == ("stacked", "trainer")
        if fixed is not None and asked not in ("auto", fixed) and not fell_back:
            raise InputError(f"{name} is {asked!r}, but plan.{name} says {fixed!r}; leave out one of them")
    if by_hand.precision not in (None, precision):
        raise InputError(f"precision is {precision!r}, but plan.precision says {by_hand.precision!r}; set both alike")
    device = by_hand.device or device
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    _require_device(device)
    chosen = by_hand.engine or ("stacked" if engine == "auto" else engine)
    if chosen == "stacked" and workload.obstacles:
        chosen = "trainer"
    given = {f.name: getattr(by_hand, f.name) for f in fields(by_hand) if getattr(by_hand, f.name) is not None}
    return Plan(**_by_rule(chosen, device, precision, workload, given) | given | {"engine": chosen})


def _by_rule(engine: str, device: str, precision: str, workload: Workload, given: dict[str, Any]) -> dict[str, Any]:
    on_cpu, small = device == "cpu", workload.num_parameters < _SMALL_MODEL
    stacks = engine != "trainer" and not workload.obstacles
    pays = workload.client_steps >= _COMPILING_PAYS and not workload.is_recurrent
    compiles = stacks and on_cpu and pays and has_compiler()
    compiles = given.get("compile", compiles)
    lanes = given.get("lanes", 1 if not stacks else lanes_of_gpu(workload) if not on_cpu else 4 if compiles else 1)
    cores = os.cpu_count() or 1
    return {
        "device": device,
        "precision": precision,
        "threads": 1 if small or engine == "ray" else cores,
        "lanes": lanes,
        "narrow": min(lanes, 2 if workload.has_convolutions else 1)
        if compiles
        else lanes
        if on_cpu
        else -(-lanes // 4),
        "steps_per_call": 5 if compiles and small else 1,
        "compile": compiles,
        "workers": 1 if engine != "ray" else cores if on_cpu else torch.cuda.device_count(),
    }


def lanes_of_gpu(workload: Workload) -> int:
    """Width of a GPU's stack."""
    fitting = _LANES_MIB * 2**20 // (4 * max(1, workload.num_parameters))
    return max(1, min(-(-workload.cohort // 8) * 8, _MOST_LANES, fitting))


def lacks_compiler(plan: Plan, workload: Workload) -> bool:
    """Whether the stack would have been compiled, had there been a compiler."""
    pays = workload.client_steps >= _COMPILING_PAYS and not workload.is_recurrent and not workload.obstacles
    return pays and plan.engine != "trainer" and plan.device == "cpu" and not plan.compile and not has_compiler()


def set_up_torch(plan: Plan, deterministic: bool) -> None:
    """Sets what belongs to the whole process: threads, full float32, whether only deterministic operations are allowed.

    To be called before anything runs on a GPU: cuBLAS reads its setting once, when it starts.
    """
    torch.set_num_threads(plan.threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    deterministic = deterministic and plan.device != "cpu"
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(deterministic)


def has_compiler() -> bool:
    """Whether `torch.compile` finds a C++ compiler."""
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++"]
    return any(shutil.which(name) for name in names)


def _require_device(device: str) -> None:
    kind, _, number = device.partition(":")
    if device == "cpu":
        return
    if kind != "cuda" or not number.isdigit():
        raise InputError(f"device {device!r} is not known; choose auto, cpu, cuda or cuda:<number>")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number) >= found:
        has = f"has {found} CUDA device(s)" if found else "has no CUDA device"
        raise InputError(f"device {device!r} was asked for, but this machine {has}; use --device cpu or auto")
