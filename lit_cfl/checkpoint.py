"""Saving a run's state, without pickled code and never half.

A state is saved as `{field: value}`; tensors that are views are cloned, for a view would save all of its
storage. A file appears under its name only when it is complete on the disk.
"""

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from lit_cfl.algorithms.base import State


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a file so that a reader sees the old content or the whole new one, whatever happens meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def state_to_dict(state: State) -> dict[str, Any]:
    """A state's fields by name, ready for `torch.save`."""
    return {field.name: _compact(getattr(state, field.name)) for field in fields(state)}


def state_from_dict(state_type: type, values: dict[str, Any]) -> State:
    """The state with these fields."""
    return state_type(**values)


def save(path: Path, content: dict[str, Any]) -> None:
    """Saves tensors, numbers, strings, lists and dicts."""
    write_atomically(path, lambda file: torch.save(content, file))


def load(path: Path) -> dict[str, Any]:
    """Loads what `save` wrote; no code in the file is run."""
    content: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    return content


def _compact(value: Any) -> Any:
    if isinstance(value, Tensor):
        whole = value.numel() * value.element_size() == value.untyped_storage().nbytes()
        return value if whole else value.clone()
    if isinstance(value, dict):
        return {key: _compact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_compact(item) for item in value]
    return value
