"""Saves arrays, lists the examples of clients, and asserts what a refusal names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_cfl.data import FederatedData
from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.errors import InputError


def examples_of_clients(data: FederatedData) -> list[list[int]]:
    """Returns the sorted examples of each client's training, validation and test data, regardless of their view."""
    parts = zip(data.train, data.validation, data.test, strict=True)
    return [sorted(number % len(data.examples) for part in client for number in part.tolist()) for client in parts]


def assert_refused(make: Callable[[], object] | FederatedDataModule, words: str) -> None:
    """Asserts that data are refused in one line that has all of these words, which ` | ` separates."""
    with pytest.raises(InputError) as error:
        make.federated(0) if isinstance(make, FederatedDataModule) else make()
    said = str(error.value)
    assert "\n" not in said
    assert [word for word in words.split(" | ") if word not in said] == [], said


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path
