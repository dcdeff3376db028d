"""The files of a run. `docs/results.md` explains each of them and every column."""

import csv
import fcntl
import json
import os
import platform
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from math import isfinite
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

import numpy as np
import torch
import yaml

from lit_cfl.checkpoint import FORMAT, write_atomically
from lit_cfl.columns import SHIFTS, client_columns, cluster_columns, metric_columns
from lit_cfl.errors import InputError
from lit_cfl.scores import CLASSIFIER, Scores
from lit_cfl.tables import Mark, Table, blank_nan, read_table

_FILES = (
    "config.yaml", "environment.json", "partition.npz", "metrics.csv", "clusters.csv", "shift.csv", "clients.csv",
    "memberships.npz", "checkpoint.pt", "summary.json",
)  # fmt: skip
_WAIT_SECONDS, _POLL_SECONDS = 60.0, 0.2
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


@contextmanager
def locked(path: Path, option: str = "--run_dir") -> Iterator[None]:
    """Makes the directory and holds it for this process until the block ends, or the process does.

    Args:
        path: of the directory.
        option: by which the user chose it.

    Raises:
        InputError: another process holds it, or it cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / ".lock").open("a+")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another {option}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise InputError(
                f"{path} is in use by process {file.read().strip()}; wait for it, or choose another {option}"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            if [entry.name for entry in path.iterdir()] == [".lock"]:  # nothing came of it
                (path / ".lock").unlink()
                path.rmdir()


def wait_until_free(path: Path) -> None:
    """Waits while another process holds a directory, a minute at most: one that was killed may be about to end."""
    deadline = monotonic() + _WAIT_SECONDS
    while monotonic() < deadline and (path / ".lock").exists():
        with (path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sleep(_POLL_SECONDS)
            else:
                return


class RunDirectory:
    """Writes the files of one run. `create` or `reopen` comes first.

    Args:
        path: a directory that this process holds.
        score_columns: further columns of `metrics.csv`, the algorithm's own.
        tables: columns after `round` of the algorithm's own tables, by name.
        shifting: whether the run logs shifts, too.
        scores: of the task.
    """

    def __init__(
        self,
        path: Path,
        score_columns: Sequence[str] = (),
        tables: Mapping[str, Sequence[str]] | None = None,
        shifting: bool = False,
        scores: Scores = CLASSIFIER,
    ) -> None:
        self.path, self.scores = path, scores
        self.metrics = Table(path / "metrics.csv", (*metric_columns(scores), *score_columns))
        self.clusters = Table(path / "clusters.csv", cluster_columns(scores))
        self.shifts = Table(path / "shift.csv", SHIFTS)
        own = (tables or {}).items()
        self.own = {name: Table(path / f"{name}.csv", ("round", *columns)) for name, columns in own}
        logs = [self.shifts] if shifting else []
        self._tables = [self.metrics, self.clusters, *logs, *self.own.values()]
        self.rows: list[dict[str, Any]] = []  # of metrics.csv

    def create(self, config: Mapping[str, Any]) -> None:
        """Starts a new run. Raises InputError where one lives already."""
        refuse_used(self.path)
        self.discard()  # of a run that left no config
        write_config(self.path, config)
        write_json(self.path / "environment.json", environment() | {"run_id": secrets.token_hex(4)})
        for table in self._tables:
            table.start()

    def reopen(self, config: Mapping[str, Any], marks: Mapping[str, Mark] | None) -> int:
        """Goes on with a run: its tables are cut back to a checkpoint's marks, or to nothing if there was none.

        Returns:
            the round of the last row before the cut, 0 if there was none: rows up to it will be made again.
        """
        written = self.metrics.path.read_bytes() if self.metrics.path.exists() else b""
        for table in self._tables:
            if marks is None:
                table.start()
            else:
                table.cut_back(marks[table.path.name])
        self.rows = read_table(self.metrics.path)
        write_config(self.path, config)
        if self.run_id is None:
            write_json(self.path / "environment.json", environment() | {"run_id": secrets.token_hex(4)})
        rounds = [int(line) for line in re.findall(rb"^(\d+),", written, flags=re.MULTILINE)]
        return max(rounds, default=0)

    def discard(self) -> None:
        """Removes the files made so far."""
        for path in (*(self.path / name for name in _FILES), *(table.path for table in self._tables)):
            path.unlink(missing_ok=True)

    @property
    def run_id(self) -> str | None:
        """Of this run, for trackers; the same after every resume; None where its file is damaged."""
        try:
            run_id: str = json.loads((self.path / "environment.json").read_text())["run_id"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return run_id

    def sync(self) -> None:
        """Waits until the tables are on the disk: a checkpoint names their ends."""
        for table in self._tables:
            with table.path.open("rb") as file:
                os.fsync(file.fileno())

    def marks(self) -> dict[str, Mark]:
        """Where the tables end now."""
        return {table.path.name: table.mark() for table in self._tables}

    def add_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Appends a row to `metrics.csv`; nan and missing values are left blank. Returns the row as written."""
        unknown = row.keys() - set(self.metrics.columns)
        if unknown:
            raise KeyError(f"{sorted(unknown)} are no columns of metrics.csv; name them in score_columns")
        whole = {column: blank_nan(row.get(column)) for column in self.metrics.columns}
        self.metrics.append([whole])
        self.rows.append(whole)
        return whole

    def write_clients(self, rows: Iterable[Sequence[Any]]) -> None:
        """Writes `clients.csv` whole, row by row."""

        def write(file: IO[bytes]) -> None:
            text = TextIOWrapper(file, newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(client_columns(self.scores))
            writer.writerows([blank_nan(value) for value in row] for row in rows)
            text.detach()

        write_atomically(self.path / "clients.csv", write)

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes a compressed `.npz`."""
        target = self.path / name
        target.parent.mkdir(exist_ok=True)
        write_atomically(target, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]  # numpy's stub takes every keyword for allow_pickle


def refuse_used(path: Path) -> None:
    """Raises InputError where a run lives already."""
    if (path / "config.yaml").exists():
        raise InputError(f"{path} already holds a run; choose another --run_dir, or go on with --resume {path}")


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Writes `config.yaml`, with the format of the run directory."""
    text = yaml.safe_dump({"format": FORMAT, **config}, sort_keys=False, allow_unicode=True)
    write_atomically(path / "config.yaml", lambda file: file.write(text.encode()))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file; numbers that are not finite become null."""
    finite = {
        key: None if isinstance(value, float) and not isfinite(value) else value for key, value in content.items()
    }
    text = json.dumps(finite, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


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
