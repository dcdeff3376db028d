"""Fixtures of the tests of engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def steps_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides steps of the present source: those of the checkout if they are, else newly compiled ones.

    Without a compiler the folder stays empty: a package without compiled steps trains in other ways.
    """
    from compiled_steps import HAS_COMPILER

    import hatch_build
    from lit_cfl.engines import steps

    if steps.describe_steps().startswith("compiled for "):
        return steps.FOLDER
    folder = tmp_path_factory.mktemp("steps")
    assert not HAS_COMPILER or hatch_build.compile_steps(steps.SOURCE, folder)
    return folder


@pytest.fixture(autouse=True)
def compiled_steps(steps_folder: Path) -> Iterator[None]:
    """Lets every test use them, also in a checkout whose compiled steps are of another version."""
    from compiled_steps import steps_of

    with steps_of(steps_folder):
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sets one thread, as each of Ray's workers has: products in more threads round differently."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
