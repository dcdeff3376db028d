"""Writes the files of a run. `docs/results.md` explains each of them and every column."""

import csv
import json
import os
import re
import secrets
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

import numpy as np

from lit_cfl.data import FederatedData
from lit_cfl.data.partition_file import save_partition
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError, Notice
from lit_cfl.metric_names import SHIFTS, client_columns, cluster_columns, metric_columns, weight_columns
from lit_cfl.runs.client_rounds import drop_parts, part_name, write_part
from lit_cfl.runs.environment import environment, resumed_environment
from lit_cfl.scores import CLASSIFIER, Scores, describe_scores
from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically, write_json
from lit_cfl.storage.config_file import read_run_id, require_unused, write_config
from lit_cfl.storage.csv_log import CsvLog, Mark, as_csv, blank_nan, read_table, read_up_to_mark
from lit_cfl.storage.digests import SUMS, digest_of, write_sums

_PARTITION = "partition.npz"
_AT_THE_END = (SUMS, "summary.json", "clients.csv", "memberships.npz")
_ENVIRONMENT = "environment.json"
_FILES = (
    "config.yaml",
    _PARTITION,
    "metrics.csv",
    "clusters.csv",
    "shift.csv",
    "checkpoint.pt",
    *_AT_THE_END,
)
_PUT_BACK = "the code of the algorithm or the task has changed since then; restore it, or start a new run"


def default_run_directory(name: str) -> Path:
    """Returns a path that does not exist yet: `runs/<name>-<time>`, followed by a number if that is taken."""
    base = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    path = base
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


class RunDirectory:
    """Writes the files of one run. `create` or `reopen` must be called first.

    Args:
        path: Directory that this process has locked.
        score_columns: Further columns of `metrics.csv`, which the algorithm reports.
        tables: Columns after `round` of the algorithm's own tables, by name.
        shifting: True if the run logs shifts.
        scores: Scores of the task.
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
        self.metrics = CsvLog(path / "metrics.csv", (*metric_columns(scores), *score_columns))
        self.clusters = CsvLog(path / "clusters.csv", cluster_columns(scores))
        self.shifts = CsvLog(path / "shift.csv", SHIFTS)
        own = (tables or {}).items()
        self.own = {name: CsvLog(path / f"{name}.csv", ("round", *columns)) for name, columns in own}
        logs = [self.shifts] if shifting else []
        self._tables = [self.metrics, self.clusters, *logs, *self.own.values()]
        self.rows: list[dict[str, Any]] = []  # rows of metrics.csv
        self.rounds_logged = 0  # last round in metrics.csv before `reopen`: trackers may have received rows up to it
        self.run_id = ""  # stays the same when the run is resumed
        self.environment: dict[str, Any] = {}  # content of environment.json
        self.digests: dict[str, str] = {}  # digests of partition.npz and the snapshots, by name

    def create(self, config: Mapping[str, Any], data: FederatedData | None = None) -> None:
        """Starts a new run. `config.yaml`, which marks the directory as a run, is written last.

        Raises:
            InputError: the directory holds a run already, or files of something else.
        """
        require_unused(self.path)
        self._require_no_other_files()
        self.discard()  # removes files of a run that ended before its config was written
        self.run_id = secrets.token_hex(4)
        self._start(data)
        write_config(self.path, config, self.run_id)

    def _start(self, data: FederatedData | None) -> None:
        """Writes the files that exist before the first round."""
        # written first, since it marks the folder as a run's
        self._write_environment(environment() | {"run_id": self.run_id, "scores": describe_scores(self.scores)})
        for table in self._tables:
            table.start()
        self.rows, self.digests = [], {}
        drop_parts(self.path)
        self._write_partition(data)

    def reopen(self, config: Mapping[str, Any], data: FederatedData, saved: Mapping[str, Any] | None) -> None:
        """Restores the files of a run to their state at its checkpoint.

        Args:
            config: New configuration.
            data: Data before any shift.
            saved: Content of the checkpoint; None = the run starts again.

        Raises:
            InputError: a file that cannot be made again has changed.
        """
        self.run_id = read_run_id(self.path)
        self.rounds_logged = self._last_round_written()
        if saved is not None:
            self._require_unchanged(saved)
        for name in _AT_THE_END:  # a run that continues has no final files yet
            with name_write_errors(self.path / name):
                (self.path / name).unlink(missing_ok=True)
        if saved is None:
            self._start(data)
        else:
            self._restore(saved, data, Plan(**config["plan"]))
        write_config(self.path, config, self.run_id)

    def _last_round_written(self) -> int:
        written = self.metrics.path.read_bytes() if self.metrics.path.exists() else b""
        return max(map(int, re.findall(rb"^(\d+),", written, flags=re.MULTILINE)), default=0)

    def _require_unchanged(self, saved: Mapping[str, Any]) -> None:
        """Raises InputError if a file that cannot be made again does not match the checkpoint."""
        if saved["tables"].keys() != self.marks().keys():
            names = [", ".join(sorted(tables)) for tables in (saved["tables"], self.marks())]
            raise InputError(
                f"{self.path} has the tables {names[0]}, but the experiment writes {names[1]}: {_PUT_BACK}"
            )
        for table in self._tables:
            header = as_csv([table.columns])
            written = read_up_to_mark(table.path, saved["tables"][table.path.name])
            if not written.startswith(header):
                found = written.partition(b"\n")[0].decode()
                raise InputError(
                    f"{table.path} has the columns {found}, but the experiment writes {header.decode().strip()}: "
                    f"{_PUT_BACK}"
                )
        for name, digest in saved["digests"].items():
            if name != _PARTITION and digest_of(self.path / name) != digest:
                raise InputError(
                    f"{self.path / name} was changed, damaged or lost; put a copy back, "
                    "or remove checkpoint.pt to start again at round 1"
                )

    def _restore(self, saved: Mapping[str, Any], data: FederatedData, plan: Plan) -> None:
        self.digests = dict(saved["digests"])
        drop_parts(self.path, self.digests)
        for table in self._tables:
            table.cut_back(saved["tables"][table.path.name])
        self.rows = read_table(self.metrics.path)
        now, changes = resumed_environment(saved["environment"], plan, saved["round"])
        if changes:
            warnings.warn(
                f"{self.path} is resumed with {changes}: sums may round differently from here on, so the result may "
                "differ from that of an uninterrupted run",
                Notice,
                stacklevel=4,
            )
        self._write_environment(now)
        if digest_of(self.path / _PARTITION) != self.digests.get(_PARTITION):
            self._write_partition(data)

    def _write_environment(self, content: dict[str, Any]) -> None:
        self.environment = content
        write_json(self.path / _ENVIRONMENT, content)

    def _write_partition(self, data: FederatedData | None) -> None:
        if data is not None:
            save_partition(self.path / _PARTITION, data)
            self._note(_PARTITION)

    def _note(self, name: str) -> None:
        digest = digest_of(self.path / name)
        if digest is not None:
            self.digests[name] = digest

    def _require_no_other_files(self) -> None:
        """Raises InputError if the directory has files of a run, unless that run was stopped while starting."""
        found = [name for name in self._names() if (self.path / name).exists()]
        if not found or (self._was_started() and not {"checkpoint.pt", "summary.json", SUMS} & set(found)):
            return
        raise InputError(
            f"{self.path} has no config.yaml, but holds {', '.join(found)}, which another run or program may have "
            "written; choose another --run_dir, or move these files away"
        )

    def _was_started(self) -> bool:
        """Returns whether a run has written `environment.json`, its first file."""
        try:
            return "run_id" in json.loads((self.path / _ENVIRONMENT).read_text("utf-8"))
        except (OSError, ValueError, TypeError):
            return False

    def _names(self) -> list[str]:
        return [*_FILES, *(table.path.name for table in self._tables if table.path.name not in _FILES), _ENVIRONMENT]

    def discard(self) -> None:
        """Removes all files made so far, `environment.json` last."""
        snapshots = (file for file in self.path.glob("snapshots/*.npz") if file.stem.isdigit())
        config, *others = (self.path / name for name in self._names())
        drop_parts(self.path)
        for path in (config, *snapshots, *others):
            with name_write_errors(path):
                path.unlink(missing_ok=True)

    def conclude(self, rows: Iterable[str]) -> None:
        """Writes the digests of all files, which marks the run as finished.

        Args:
            rows: Names of the files in `rows/`.
        """
        files = [name for name in self._names() if name != SUMS]
        pictures = [f"pictures/{file.name}" for file in (self.path / "pictures").glob("[!.]*.*")]
        named = {*files, *pictures, *self.digests, *(f"rows/{name}" for name in rows)}
        write_sums(self.path, [name for name in named if (self.path / name).is_file()], self.run_id)

    def sync(self) -> None:
        """Flushes the tables to the disk before a checkpoint records their lengths."""
        for table in self._tables:
            with name_write_errors(table.path), table.path.open("rb") as file:
                os.fsync(file.fileno())

    def marks(self) -> dict[str, Mark]:
        """Returns the current lengths and digests of the tables."""
        return {table.path.name: table.mark() for table in self._tables}

    def add_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Appends a row to `metrics.csv`; nan and missing values become blank. Returns the row as written."""
        unknown = row.keys() - set(self.metrics.columns)
        if unknown:
            raise KeyError(f"{sorted(unknown)} are not columns of metrics.csv; name them in score_columns")
        whole = {column: blank_nan(row.get(column)) for column in self.metrics.columns}
        self.metrics.append([whole])
        self.rows.append(whole)
        return whole

    def write_clients(self, rows: Iterable[Sequence[Any]], models: int = 0, named: bool = False) -> None:
        """Writes all of `clients.csv`, row by row; None becomes blank.

        Args:
            models: Number of models, whose weights in the client's mixture follow in each row; 0 = no mixtures.
            named: True if each row ends with the client's name in the source.
        """

        def write(file: IO[bytes]) -> None:
            text = TextIOWrapper(file, encoding="utf-8", newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow((*client_columns(self.scores), *weight_columns(models), *(["name"] if named else [])))
            writer.writerows(rows)
            text.detach()

        write_atomically(self.path / "clients.csv", write)

    def write_snapshot(self, round: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes `snapshots/<round>.npz`, which later checkpoints list with its digest."""
        name = f"snapshots/{round}.npz"
        self.write_arrays(name, arrays)
        self._note(name)

    def write_client_round(self, round: int, columns: Mapping[str, np.ndarray]) -> None:
        """Writes the clients' scores in a round into a file that later checkpoints list with its digest."""
        write_part(self.path / part_name(round), columns)
        self._note(part_name(round))

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes a compressed `.npz`."""
        target = self.path / name
        with name_write_errors(target.parent):
            target.parent.mkdir(exist_ok=True)
        write_atomically(target, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]  # numpy's stub takes every keyword for allow_pickle
