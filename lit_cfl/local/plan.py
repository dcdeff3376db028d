"""The plan: how local training is computed, chosen by rule and recorded, so that a rerun computes the same.

The rule looks at the model, the options and the kind of hardware, never at a timing or at free memory:

* engine: `trainer`, one `lightning.Trainer.fit` a client;
* device: the first GPU where there is one, else the CPU;
* threads: 1 below a million parameters (small tensors only lose time to a second thread), else all cores;
* rows_mib: 1024.

Any part can be set by hand (`plan.threads: 2`); the rule fills the rest.
"""

import os
from dataclasses import dataclass
from typing import Literal

import torch

from lit_cfl.errors import InputError

EngineName = Literal["trainer"]
EngineOption = Literal["auto", "trainer"]
Precision = Literal["32-true", "64-true", "16-mixed", "bf16-mixed", "bf16-true"]
_SMALL_MODEL = 1_000_000  # parameters


@dataclass(frozen=True)
class PlanOptions:
    """Parts of a plan that are set by hand, or recorded by an earlier run; None = by rule.

    Args:
        engine: which engine fits the clients.
        device: `cpu` or `cuda:<i>`.
        precision: a `lightning.Trainer` precision.
        threads: CPU threads of PyTorch, 1 or more.
        rows_mib: local models of one fit held in memory at once, MiB, 1 or more; a larger fit is read in chunks.
    """

    engine: EngineName | None = None
    device: str | None = None
    precision: Precision | None = None
    threads: int | None = None
    rows_mib: int | None = None


@dataclass(frozen=True)
class Plan:
    """How local training is computed. The parts as in `PlanOptions`; rows are float64 for `64-true`, else float32."""

    engine: EngineName = "trainer"
    device: str = "cpu"
    precision: Precision = "32-true"
    threads: int = 1
    rows_mib: int = 1024

    def __post_init__(self) -> None:
        for name in ("threads", "rows_mib"):
            if getattr(self, name) < 1:
                raise InputError(f"plan.{name} is {getattr(self, name)}; it must be 1 or more")
        if self.precision == "16-mixed" and self.device == "cpu":
            raise InputError("precision '16-mixed' needs a GPU; on a CPU use 32-true or bf16-mixed")

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return torch.float64 if self.precision == "64-true" else torch.float32


def choose_plan(
    engine: EngineOption, device: str, precision: Precision, num_parameters: int, by_hand: PlanOptions | None = None
) -> Plan:
    """The plan for these options on this machine.

    Raises:
        InputError: a device that is not there, or an option that contradicts a part set by hand.
    """
    by_hand = by_hand or PlanOptions()
    device = "cuda:0" if device == "cuda" else device
    for name, asked, fixed in (("engine", engine, by_hand.engine), ("device", device, by_hand.device)):
        if fixed is not None and asked not in ("auto", fixed):
            raise InputError(f"{name} is {asked!r}, but plan.{name} says {fixed!r}; leave out one of them")
    if by_hand.precision not in (None, precision):
        raise InputError(f"precision is {precision!r}, but plan.precision says {by_hand.precision!r}; set both alike")
    device = by_hand.device or device
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    _require_device(device)
    by_rule = 1 if num_parameters < _SMALL_MODEL else os.cpu_count() or 1
    threads = by_rule if by_hand.threads is None else by_hand.threads
    rows_mib = Plan.rows_mib if by_hand.rows_mib is None else by_hand.rows_mib
    return Plan("trainer", device, precision, threads, rows_mib)


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
