"""Compares run directories or comparisons, ignoring times and ids."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from lit_cfl.storage.checkpoint import Checkpoint
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
    """Lists files, except those of W&B and `rows/`, whose names are random: the checkpoint is compared with them."""
    files = [file for file in path.rglob("*") if file.is_file() and not {"wandb", "rows"} & {*file.parts}]
    return {str(file.relative_to(path)) for file in files}


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
            return _read_checkpoint(file.parent)
        case _:
            return file.read_bytes()


def _drop_clocks(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _drop_clocks(value) if isinstance(value, dict) else value
        for key, value in row.items()
        if not key.startswith(_CLOCKS)
    }


def _read_checkpoint(path: Path) -> Any:
    """Reads a checkpoint with its files in `rows/`, without what differs between equal runs: times, ids, clocks."""
    checkpoint = Checkpoint(path)
    saved = checkpoint.load() or {}
    left_out = ("seconds", "environment", "tables", "parts", "rows")
    kept = {key: value for key, value in saved.items() if key not in left_out}
    left_over = {file.name for file in (path / "rows").glob("*")} ^ checkpoint.row_files
    return _convert_to_bits(kept), left_over


def _convert_to_bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: _convert_to_bits(item) for key, item in value.items()}
    return [_convert_to_bits(item) for item in value] if isinstance(value, list) else value
