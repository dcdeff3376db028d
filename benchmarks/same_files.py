"""Compares run directories or comparisons, ignoring times and ids."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from lit_cfl.storage.csv_log import read_table
from lit_cfl.storage.digests import find_changed

# differ between equal runs: they contain ids or times
_OF_A_PROCESS = (".lock", "SHA256SUMS", "results.md", "results.tex", "results.csv")
_CLOCKS = ("time/", "seconds", "run_id")


def find_differences(path: Path, reference: Path) -> list[str]:
    """Lists the files that only one folder has, and those with different content."""
    mine, other = _list_files(path), _list_files(reference)
    found = [f"{name} is missing" for name in sorted(other - mine)]
    found += [f"{name} is left over" for name in sorted(mine - other)]
    return found + [
        f"{name} differs"
        for name in sorted(mine & other)
        if read_content(path / name) != read_content(reference / name)
    ]


def find_damages(path: Path) -> list[str]:
    """Lists runs below a folder whose files do not match their `SHA256SUMS`, or that have no such file."""
    runs = [file.parent for file in sorted(path.rglob("config.yaml")) if (file.parent / "metrics.csv").exists()]
    found = {run: find_changed(run) for run in runs}
    return [f"{run.relative_to(path)}: {names or 'not finished'}" for run, names in found.items() if names != []]


def _list_files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and "wandb" not in file.parts}


def read_content(file: Path) -> Any:
    """Reads the part of a file's content that must be equal in both folders."""
    if file.name in _OF_A_PROCESS:
        return None
    match file.suffix:
        case ".csv":
            return [_drop_clocks(row) for row in read_table(file)]
        case ".json":
            return _drop_clocks(json.loads(file.read_text()))
        case ".yaml":
            return yaml.safe_load(file.read_text())
        case ".npz":
            with np.load(file) as arrays:
                return {name: (array.dtype.str, array.tobytes()) for name, array in arrays.items()}
        case ".pt":
            return _convert_to_bits(_drop_identity(torch.load(file, weights_only=True)))
        case _:
            return file.read_bytes()


def _drop_clocks(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _drop_clocks(value) if isinstance(value, dict) else value
        for key, value in row.items()
        if not key.startswith(_CLOCKS)
    }


def _drop_identity(saved: Any) -> Any:
    """Returns a checkpoint without what differs between equal runs: times, run id, environment, marks of tables."""
    if not isinstance(saved, dict) or "tables" not in saved:
        return saved
    left_out = ("seconds", "run_id", "environment", "tables")
    return {key: value for key, value in saved.items() if key not in left_out}


def _convert_to_bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: _convert_to_bits(item) for key, item in value.items()}
    return [_convert_to_bits(item) for item in value] if isinstance(value, list) else value
