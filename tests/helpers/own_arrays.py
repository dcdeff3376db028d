"""Makes small arrays for clients of unequal size, and files of them; and asserts what a refusal names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_cfl.data import FederatedData
from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.errors import InputError

OWNERS = [7, 7, 7, 7, 2, 2, 2, 9, 9, 9, 9, 9]  # clients 7, 2 and 9 have 4, 3 and 5 examples


def given(**changes: Any) -> dict[str, Any]:
    """Returns arguments of ArrayData: the inputs [0, 1], [2, 3], ..., [22, 23], and the labels 0, 1, 2 in turn."""
    return {"x": np.arange(24.0).reshape(12, 2), "y": np.arange(12) % 3} | changes


def owned(**changes: Any) -> ArrayData:
    return ArrayData(**given(client=np.array(OWNERS)) | changes)


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


def folder_of(tmp_path: Path) -> Path:
    """Writes a folder of `.npz` files: b.npz with 2 examples, a.npz with 1 and a-c.npz with 3."""
    for name, rows in {"b": slice(0, 2), "a": slice(2, 3), "a-c": slice(3, 6)}.items():
        saved(tmp_path / f"{name}.npz", **{key: array[rows] for key, array in given().items()})
    (tmp_path / "notes.txt").write_text("not data")
    return tmp_path
