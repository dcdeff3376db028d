"""Measures a run's task once: every way of training decides from this whether it can train the task."""

from dataclasses import dataclass
from functools import cached_property

import torch
from lightning import LightningModule

from lit_cfl.data import FederatedData
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.operations import count_multiply_adds
from lit_cfl.engines.plan import Precision, row_dtype
from lit_cfl.engines.stacked.stackable import reasons_for_no_stack, reasons_for_trainer
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.parameters import ParameterLayout, copy_sharing_frozen

_SOME = 8  # examples


@dataclass(frozen=True, eq=False)
class TaskTraits:
    """Properties of the task of a run.

    Args:
        module: as the user's task builds it, with keyed dropout, on the CPU; it must not be changed.
        layout: Layout of the module's rows.
        batch: a few of the run's examples (8, or all where there are fewer), inputs that are floats in float32.
        mean_size: examples of a mean client in training.
    """

    module: LightningModule
    layout: ParameterLayout
    batch: Batch
    mean_size: int = 1

    @classmethod
    def of(cls, module: LightningModule, data: FederatedData) -> "TaskTraits":
        """Measures the properties with the run's data."""
        some = torch.arange(min(_SOME, len(data.examples)))
        mean = int(data.num_examples[data.population].sum()) / max(1, len(data.population))
        batch = data.examples.batch(some, device="cpu")
        return cls(module, ParameterLayout.of(module), batch, max(1, round(mean)))

    @cached_property
    def multiply_adds(self) -> int:
        """Multiply-adds of products and convolutions in the loss of one example; 0 = unknown."""
        return count_multiply_adds(self.module, self.batch)

    @cached_property
    def trainer_reasons(self) -> list[str]:
        """Why only `trainer` can train this task; empty if `losses` and one plain optimizer suffice."""
        return reasons_for_trainer(self.module, self.layout, self.batch)

    @cached_property
    def stack_reasons(self) -> list[str]:
        """Why `torch.func.vmap` cannot train several clients; empty if it can. Read `trainer_reasons` first."""
        return reasons_for_no_stack(self.module, self.layout, self.batch)

    def batch_size(self, local: LocalTraining) -> int:
        """Returns the mini-batch size of a client of mean size."""
        return self.mean_size if local.batch_size == "full" else min(local.batch_size, self.mean_size)

    def model_bytes(self, precision: Precision) -> int:
        """Computes the bytes of one model."""
        return self.layout.num_columns * row_dtype(precision).itemsize

    def copied(self) -> LightningModule:
        """Copies the module; the copy may be changed, except for frozen parameters."""
        return copy_sharing_frozen(self.module)
