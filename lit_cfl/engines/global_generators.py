"""Seeds the global generators for what a user's module draws itself."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng


@contextmanager
def seeded_globally(seed: int | None, device: str) -> Iterator[None]:
    """Seeds the generators of torch, NumPy and Python in the block, and restores them afterwards.

    Args:
        seed: None = leave them alone.
        device: of the modules that draw.
    """
    if seed is None:
        yield
        return
    with isolate_rng(include_cuda=device != "cpu"):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        yield
