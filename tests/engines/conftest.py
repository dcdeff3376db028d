"""Fixtures of the tests of engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def steps_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides a folder of steps that are compiled from the present source."""
    from compiled_steps import compile_steps

    return compile_steps(tmp_path_factory.mktemp("steps"))


@pytest.fixture(autouse=True)
def compiled_steps(steps_folder: Path) -> Iterator[None]:
    """Lets every test use them, also in a checkout whose compiled steps are of another version."""
    from compiled_steps import steps_of

    with steps_of(steps_folder):
        yield
