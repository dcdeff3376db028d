"""The plan: how local training is computed, chosen by rule and recorded, so that a rerun computes the same.

The rule looks at the model, the options and the kind of hardware, never at a timing or at free memory:

* engine: `trainer`, one `lightning.Trainer.fit` a client;
* device: the first GPU where there is one, else the CPU;
* threads: 1 below a million parameters (small tensors only lose time to a second thread), else all cores.
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
class Plan:
    """How local training is computed.

    Args:
        engine: which engine fits the clients.
        device: `cpu` or `cuda:<i>`.
        precision: a `lightning.Trainer` precision; rows are float64 for `64-true`, else float32.
        threads: CPU threads of PyTorch, 1 or more.
        rows_mib: local models of one fit held in memory at once, MiB; a larger fit is read in chunks.
    """

    engine: EngineName = "trainer"
    device: str = "cpu"
    precision: Precision = "32-true"
    threads: int = 1
    rows_mib: int = 1024

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return torch.float64 if self.precision == "64-true" else torch.float32

    def require_hardware(self) -> None:
        """Raises InputError where this machine has no such device."""
        if self.device != "cpu":
            _require_cuda(self.device)


def choose_plan(
    engine: EngineOption, device: str, precision: Precision, num_parameters: int, rows_mib: int = 1024
) -> Plan:
    """The plan for these options on this machine. Raises InputError for a device that is not there."""
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    elif device == "cuda":
        device = "cuda:0"
    if device != "cpu":
        _require_cuda(device)
    threads = 1 if num_parameters < _SMALL_MODEL else os.cpu_count() or 1
    return Plan("trainer" if engine == "auto" else engine, device, precision, threads, rows_mib)


def _require_cuda(device: str) -> None:
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number.isdigit():
        raise InputError(f"device {device!r} is not known; choose auto, cpu, cuda or cuda:<number>")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number) >= found:
        has = f"has {found} CUDA device(s)" if found else "has no CUDA device"
        raise InputError(f"device {device!r} was asked for, but this machine {has}; use --device cpu or auto")
