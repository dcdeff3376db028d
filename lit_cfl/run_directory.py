"""The files of a run. `docs/results.md` explains each of them and every column."""

import csv
import json
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from math import isnan
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
import yaml

from lit_cfl.checkpoint import write_atomically
from lit_cfl.columns import CLIENTS, CLUSTERS, METRICS
from lit_cfl.errors import InputError

_PACKAGES = ("lit-cfl", "torch", "lightning", "numpy", "scikit-learn", "scipy")


def default_run_directory(name: str) -> Path:
    """`runs/<name>-<time>`, a path that is not there yet."""
    base = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    path = base
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


class RunDirectory:
    """Writes the files of one run.

    Args:
        path: a directory that holds no run yet; made with its parents.
        config: the resolved configuration, written at once.
        score_columns: further columns of `metrics.csv`, the algorithm's own.

    Raises:
        InputError: the directory holds a run, or cannot be written.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], score_columns: Sequence[str] = ()) -> None:
        self.path = path
        self.columns = (*METRICS, *score_columns)
        self.rows: list[dict[str, Any]] = []
        claim(path, config)
        write_json(path / "environment.json", environment())
        _append(path / "metrics.csv", [self.columns])
        _append(path / "clusters.csv", [CLUSTERS])

    def discard(self) -> None:
        """Removes the files made so far, and the directory if nothing else is in it."""
        for name in ("config.yaml", "environment.json", "metrics.csv", "clusters.csv"):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):  # loggers may have left files of theirs
            self.path.rmdir()

    def add_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Appends a row to `metrics.csv`; nan and missing values are left blank. Returns the row as written."""
        unknown = row.keys() - set(self.columns)
        if unknown:
            raise KeyError(f"{sorted(unknown)} are no columns of metrics.csv; name them in score_columns")
        whole = {column: _blank_nan(row.get(column)) for column in self.columns}
        self.rows.append(whole)
        _append(self.path / "metrics.csv", [whole.values()])
        return whole

    def add_clusters(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends to `clusters.csv`."""
        table = [[_blank_nan(row.get(column)) for column in CLUSTERS] for row in rows]
        _append(self.path / "clusters.csv", table)

    def write_clients(self, rows: Iterable[Sequence[Any]]) -> None:
        """Writes `clients.csv` whole."""

        def write(file: IO[bytes]) -> None:
            text = TextIOWrapper(file, newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(CLIENTS)
            writer.writerows([_blank_nan(value) for value in row] for row in rows)
            text.detach()

        write_atomically(self.path / "clients.csv", write)

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes a compressed `.npz`."""
        target = self.path / name
        target.parent.mkdir(exist_ok=True)
        write_atomically(target, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]  # numpy's stub takes every keyword for allow_pickle


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def claim(path: Path, config: Mapping[str, Any]) -> None:
    """Makes the directory and writes `config.yaml`, which marks it as taken.

    Raises:
        InputError: a run lives there already, or it cannot be written.
    """
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    if (path / "config.yaml").exists():
        raise InputError(f"{path} already holds a run; choose another --run_dir")
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "config.yaml", lambda file: file.write(text.encode()))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another --run_dir") from error


def environment() -> dict[str, Any]:
    """Versions and hardware, nothing personal."""
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": sys.version.split()[0],
        "system": platform.system(),
        "machine": platform.machine(),
        "gpus": gpus,
        "packages": found,
    }


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of one of our CSV files: numbers as numbers, blanks as None."""
    with path.open(newline="") as file:
        return [{key: _number(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _append(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _blank_nan(value: Any) -> Any:
    return None if isinstance(value, float) and isnan(value) else value


def _number(text: str) -> int | float | str | None:
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
