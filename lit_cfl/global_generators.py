"""Seeds the global generators for random numbers that a user's module draws."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lit_cfl.seeds import derive


def seed_global_generators(seed: int, purpose: str, *ids: int) -> None:
    """Seeds the generators of PyTorch, NumPy and Python, from which a module may draw."""
    _seed(derive(seed, purpose, *ids))


def _seed(derived: int) -> None:
    torch.default_generator.manual_seed(derived)  # `torch.manual_seed` takes 0.2 ms if CUDA is not in use
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(derived)
    np.random.seed(derived % 2**32)
    random.seed(derived)


def generator_states() -> tuple[object, ...]:
    """Returns the states of the generators of PyTorch, NumPy and Python, to compare them."""
    numpys: Any = np.random.get_state()  # a name, a key [624], and numbers
    return torch.get_rng_state().numpy().tobytes(), numpys[1].tobytes(), numpys[2:], random.getstate()


@contextmanager
def seed_globally(derived: int | None, device: str) -> Iterator[None]:
    """Seeds the global generators within the block, and restores them afterwards, also after an error.

    Args:
        derived: A seed from `derive`; None = leave the generators unchanged.
        device: Device of the modules that draw.
    """
    if derived is None:
        yield
        return
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng([] if device == "cpu" else range(torch.cuda.device_count())):
            _seed(derived)
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)
