"""Builds modules from the run's seed, and detects initial models that ignore the seed."""

import warnings
from hashlib import sha256

from lightning import LightningModule
from torch import Tensor

from lit_cfl.engines.dropout import replace_dropout
from lit_cfl.engines.training_options import TaskFactory
from lit_cfl.errors import Notice
from lit_cfl.global_generators import seed_globally
from lit_cfl.seeds import derive


def build_module(task: TaskFactory, seed: int, number: int = 0, device: str = "cpu") -> LightningModule:
    """Builds the task's module with the initial model of this number."""
    with seed_globally(derive(seed, "initial", number), device):
        return replace_dropout(task())


class InitialModels:
    """Warns once if two initial models with different numbers are equal."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}  # number of the first model with this digest
        self._noted = False

    def compare(self, number: int, parameters: Tensor) -> None:
        """Compares the trainable parameters `[p]` of an initial model with those of earlier numbers."""
        first = self._numbers.setdefault(sha256(parameters.contiguous().numpy().data).digest(), number)
        if first != number and not self._noted:
            self._noted = True
            warnings.warn(
                f"the initial models {first} and {number} are equal, though each has a separate seed: the module sets "
                "a seed itself, or starts from constants or from a file. Clients that choose a model by their loss "
                "then all choose the first; draw the initial weights at random",
                Notice,
                stacklevel=2,
            )
