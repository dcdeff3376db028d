"""Measures what clients train, once for a run: every way of training reads from it whether it can train this."""

from dataclasses import dataclass
from functools import cached_property

from lightning import LightningModule

from lit_cfl.engines.operations import count_multiply_adds
from lit_cfl.engines.plan import Precision
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.parameters import ParameterLayout


@dataclass(frozen=True, eq=False)
class TaskTraits:
    """The task of a run.

    Args:
        module: as the user's task builds it, with keyed dropout, on the CPU; it must not be changed.
        layout: of its rows.
        batch: a few of the run's examples (8, or all where there are fewer), inputs that are floats in float32.
    """

    module: LightningModule
    layout: ParameterLayout
    batch: Batch

    @cached_property
    def multiply_adds(self) -> int:
        """Multiply-adds of products and convolutions in the loss of one example; 0 = unknown."""
        return count_multiply_adds(self.module, self.batch)

    def model_bytes(self, precision: Precision) -> int:
        """Computes the bytes of one model."""
        return self.layout.num_columns * (8 if precision == "64-true" else 4)
