"""Seeds what a module draws itself, and notices where initial models do not follow from their seeds."""

import random
import warnings
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from lit_cfl.errors import Notice
from lit_cfl.seeds import derive


def seed_global_generators(seed: int, purpose: str, *ids: int) -> None:
    """Seeds the generators of PyTorch, NumPy and Python, from which a module may draw."""
    derived = derive(seed, purpose, *ids)
    torch.default_generator.manual_seed(derived)  # `torch.manual_seed` takes 0.2 ms where CUDA is not in use
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(derived)
    np.random.seed(derived % 2**32)
    random.seed(derived)


class InitialModels:
    """Compares initial models as they are built, and notes once that two of different numbers are equal."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}  # of the first model with this digest
        self._noted = False

    def compare(self, number: int, parameters: Tensor) -> None:
        """Takes the trainable parameters `[p]` of the initial model of that number."""
        first = self._numbers.setdefault(sha256(parameters.contiguous().numpy().data).digest(), number)
        if first != number and not self._noted:
            self._noted = True
            warnings.warn(
                f"the initial models {first} and {number} are equal, though each has a seed of its own: the module "
                "sets a seed itself, or starts from constants or from a file; clients that choose among such models by "
                "their loss all choose the first",
                Notice,
                stacklevel=2,
            )
