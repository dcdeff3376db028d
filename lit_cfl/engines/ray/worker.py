"""Computes shares of an engine's work in a Ray worker."""

import platform
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from lit_cfl.data import Examples
from lit_cfl.devices import is_out_of_memory
from lit_cfl.engines.base import Engine
from lit_cfl.engines.steps import describe_steps
from lit_cfl.engines.module_state import CONSTANTS, digest_of_constants
from lit_cfl.engines.plan import Plan, set_up_torch
from lit_cfl.engines.ray.shares import Share
from lit_cfl.engines.ray.tasks import Ref
from lit_cfl.engines.training_options import LocalTraining, TaskFactory
from lit_cfl.errors import InputError

Parts = dict[str, Any]  # fields of Examples, tensors as arrays, which Ray shares without a copy


@dataclass(frozen=True, eq=False)
class EngineSpec:
    """The arguments from which a worker builds its engine.

    Args:
        task, seed, local: See `Engine`.
        plan: Plan of the worker's engine, which has no workers.
        deterministic: True for deterministic operations only on a GPU, as in the driver.
        constants: The driver's digest of tensors that are in no row, such as frozen layers.
        steps: How small nets train on the driver (`describe_steps`); "" if that does not matter.
    """

    task: TaskFactory
    plan: Plan
    seed: int
    local: LocalTraining
    deterministic: bool = False
    constants: str = ""
    steps: str = ""


class Worker:
    """A Ray actor that computes shares of work with a separate engine.

    Args:
        spec: Reference to the engine's specification, inside a list, so that it is read only after the paths are set.
        paths: The driver's `sys.path`, on which the user's code is found.
    """

    def __init__(self, spec: Sequence[Ref], paths: Sequence[str]) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        self._spec = spec[0]
        self._engine: Engine | None = None
        self._examples_read: tuple[Ref, Examples] | None = None

    def ready(self) -> None:
        """Returns once the worker has started."""

    def run(self, share: Share, examples: Sequence[Ref], *tables: np.ndarray) -> Any:
        """Computes a share of the engine's work.

        Args:
            examples: Reference to the pool, inside a list, so that a pool that was read before is not read again.
            tables: Rows `[d]`, or tables of rows `[n, d]`.
        """
        engine, pool, rows = self._get_engine(), self._examples(examples[0]), torch.from_numpy(np.vstack(tables))
        try:
            return share.compute(engine, pool, rows)
        except RuntimeError as error:
            if not is_out_of_memory(error) or not engine.release_examples():
                raise
        return share.compute(engine, pool, rows)

    def _get_engine(self) -> Engine:
        """Returns the engine, which is built at the first share so that an error reaches the driver unchanged."""
        if self._engine is None:
            spec: EngineSpec = ray.get(self._spec)
            set_up_torch(spec.plan, spec.deterministic)
            self._engine = Engine(spec.task, spec.plan, spec.seed, spec.local)
            found = digest_of_constants(self._engine.template, self._engine.layout)
            if found != spec.constants:
                raise InputError(
                    f"a Ray worker on {platform.node()} has a {CONSTANTS} (SHA-256 {found[:12]}) that differs from "
                    f"that of the machine that started the run ({spec.constants[:12]}); put the same weight files on "
                    "every machine"
                )
            if spec.steps and describe_steps() != spec.steps:
                raise InputError(
                    f"a Ray worker on {platform.node()} would train small nets differently ({describe_steps()}) from "
                    f"the machine that started the run ({spec.steps}), so sums would round differently. Install "
                    "Lit-CFL with a C++ compiler on every machine, and set ATEN_CPU_CAPABILITY=avx2 on all if some "
                    "have no AVX-512; or use --engine loop with --plan.workers N"
                )
        return self._engine

    def _examples(self, reference: Ref) -> Examples:
        if self._examples_read is None or self._examples_read[0] != reference:
            self._examples_read = (reference, _assemble(ray.get(reference)))
        return self._examples_read[1]


def to_arrays(examples: Examples) -> Parts:
    """Converts examples to arrays, as Ray stores them."""
    return {f.name: _array(getattr(examples, f.name)) for f in fields(examples)}


def _array(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, Tensor) else value


def _assemble(parts: Parts) -> Examples:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the arrays are read-only; examples are never written
        tensors: Parts = {k: torch.from_numpy(part) for k, part in parts.items() if isinstance(part, np.ndarray)}
    return Examples(**parts | tensors)
