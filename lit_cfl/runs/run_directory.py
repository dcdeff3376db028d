"""Writes the files of a run. `docs/results.md` explains each of them and every column.

`checkpoint.pt` holds everything from which a run continues, tables included. A resume writes the other files again,
whatever a killed process or an editor has left; of snapshots and `client_rounds.parquet`, which it does not write
again, the checkpoint holds the digests.
"""

import re
import secrets
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from lit_cfl.data import FederatedData
from lit_cfl.data.partition_file import save_partition
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError, Notice
from lit_cfl.metric_names import SHIFTS, client_columns, cluster_columns, metric_columns, weight_columns
from lit_cfl.runs.client_rounds import FOLDER, part_name, write_part
from lit_cfl.runs.environment import ENVIRONMENT, environment, read_run_id, resumed_environment
from lit_cfl.scores import CLASSIFIER, Scores, describe_scores
from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically, write_json
from lit_cfl.storage.config_file import require_unused, write_config
from lit_cfl.storage.csv_log import CsvLog, as_csv, blank_nan, read_table, text_of
from lit_cfl.storage.digests import SUMS, digest_of, write_sums

_PARTITION = "partition.npz"
_AT_THE_END = (SUMS, "summary.json", "clients.csv", "memberships.npz")
_FILES = ("config.yaml", _PARTITION, "metrics.csv", "clusters.csv", "shift.csv", "checkpoint.pt", *_AT_THE_END)


def default_run_directory(name: str) -> Path:
    """Returns a path that does not exist yet: `runs/<name>-<time>`, followed by a number if that is taken."""
    base = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    others = (base.with_name(f"{base.name}-{number}") for number in count(2))
    return next(path for path in others if not path.exists()) if base.exists() else base


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
        logs = [self.metrics, self.clusters, *([self.shifts] if shifting else []), *self.own.values()]
        self._tables = {log.path.name: log for log in logs}
        self.rows: list[dict[str, Any]] = []  # rows of metrics.csv
        self.rounds_logged = 0  # last round in metrics.csv before `reopen`: trackers may have received rows up to it
        self.run_id = ""  # stays the same when the run is resumed
        self.environment: dict[str, Any] = {}  # content of environment.json
        self.digests: dict[str, str | None] = {}  # of the partition and of files that a resume does not write again

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
        write_config(self.path, config)

    def _start(self, data: FederatedData | None) -> None:
        """Writes the files that exist before the first round."""
        # written first, since it marks the folder as a run's
        self._write_environment(environment() | {"run_id": self.run_id, "scores": describe_scores(self.scores)})
        for table in self._tables.values():
            table.start()
        self.rows, self.digests = [], {}
        self._remove_unnamed()
        self._write_partition(data)

    def reopen(self, data: FederatedData, saved: Mapping[str, Any] | None, plan: Plan) -> None:
        """Writes the files of a run as they were at its checkpoint, except for `config.yaml`.

        Args:
            data: Data before any shift.
            saved: Content of the checkpoint; None = the run starts again.
            plan: Plan of the remaining rounds.

        Raises:
            InputError: a file that cannot be written again has changed, or the experiment writes other tables.
        """
        self.rounds_logged = self._last_round_written()
        if saved is not None:
            self._require_unchanged(saved)
        for name in _AT_THE_END:  # a run that continues has no final files yet
            with name_write_errors(self.path / name):
                (self.path / name).unlink(missing_ok=True)
        if saved is None:
            self.run_id = read_run_id(self.path) or secrets.token_hex(4)
            self._start(data)
        else:
            self._restore(saved, data, plan)

    def _last_round_written(self) -> int:
        written = self.metrics.path.read_bytes() if self.metrics.path.exists() else b""
        return max(map(int, re.findall(rb"^(\d+),", written, flags=re.MULTILINE)), default=0)

    def _require_unchanged(self, saved: Mapping[str, Any]) -> None:
        """Raises InputError if the tables have other columns, or a file that is not written again has changed."""
        headers = {name: table.header.decode().strip() for name, table in self._tables.items()}
        found = {name: _header(saved, name) for name in saved["tables"]}
        if found != headers:
            then, now = (_describe_others(*both) for both in ((found, headers), (headers, found)))
            raise InputError(
                f"{self.path} has {then}, but the experiment writes {now}: the code of the algorithm or the task has "
                "changed since then; restore it, or start a new run"
            )
        for name, digest in saved["digests"].items():
            if name != _PARTITION and digest_of(self.path / name) != digest:
                raise InputError(
                    f"{self.path / name} was changed, damaged or lost; put a copy back, "
                    "or remove checkpoint.pt to start again at round 1"
                )

    def _restore(self, saved: Mapping[str, Any], data: FederatedData, plan: Plan) -> None:
        self.digests = dict(saved["digests"])
        self._remove_unnamed()
        for name, table in self._tables.items():
            table.restore(saved["parts"][name], saved["tables"][name])
        self.rows = read_table(self.metrics.path)
        now, changes = resumed_environment(saved["environment"], plan, saved["round"])
        if changes:
            warnings.warn(
                f"{self.path} is resumed with {changes}: sums may round differently from here on, so the result may "
                "differ from that of an uninterrupted run",
                Notice,
                stacklevel=4,
            )
        self.run_id = now["run_id"]
        self._write_environment(now)
        self._write_partition(data)

    def _write_environment(self, content: dict[str, Any]) -> None:
        self.environment = content
        write_json(self.path / ENVIRONMENT, content)

    def _write_partition(self, data: FederatedData | None) -> None:
        if data is not None:
            save_partition(self.path / _PARTITION, data)
            self._note(_PARTITION)

    def _note(self, name: str) -> None:
        self.digests[name] = digest_of(self.path / name)

    def _require_no_other_files(self) -> None:
        """Raises InputError if the directory has files of a run, unless that run was stopped while starting."""
        found = [name for name in self._names() if (self.path / name).exists()]
        started = read_run_id(self.path) and not {"checkpoint.pt", "summary.json", SUMS} & set(found)
        if found and not started:
            raise InputError(
                f"{self.path} has no config.yaml, but holds {', '.join(found)}, which another run or program may have "
                "written; choose another --run_dir, or move these files away"
            )

    def _names(self) -> list[str]:
        return [*dict.fromkeys([*_FILES, *self._tables, ENVIRONMENT])]

    def _remove_unnamed(self) -> None:
        """Removes snapshots and parts of `client_rounds.parquet` whose digests are not noted."""
        for file in (*self.path.glob("snapshots/*.npz"), *self.path.glob(f"{FOLDER}/*.parquet")):
            if file.stem.isdigit() and f"{file.parent.name}/{file.name}" not in self.digests:
                with name_write_errors(file):
                    file.unlink(missing_ok=True)

    def discard(self) -> None:
        """Removes all files made so far, `environment.json` last."""
        self.digests = {}
        self._remove_unnamed()
        for name in self._names():
            with name_write_errors(self.path / name):
                (self.path / name).unlink(missing_ok=True)

    def conclude(self, rows: Iterable[str]) -> None:
        """Writes the digests of all files, which marks the run as finished.

        Args:
            rows: Names of the files in `rows/`.
        """
        pictures = [f"pictures/{file.name}" for file in (self.path / "pictures").glob("[!.]*.*")]
        names = {*self._names(), *pictures, *(f"rows/{name}" for name in rows)} - {SUMS}
        found = {name: digest_of(self.path / name) for name in names if (self.path / name).is_file()}
        write_sums(self.path, found | self.digests)

    def texts(self) -> dict[str, dict[str, Any]]:
        """Returns the tables so far for a checkpoint: the parts of each that never change, and the rest."""
        tables = self._tables.items()
        rests = {name: bytes(table.rest) for name, table in tables}
        return {"parts": {name: dict(table.parts) for name, table in tables}, "tables": rests}

    def add_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Appends a row to `metrics.csv`; nan and missing values become blank. Returns the row as written."""
        unknown = row.keys() - set(self.metrics.columns)
        if unknown:
            raise KeyError(f"{sorted(unknown)} are not columns of metrics.csv; name them in score_columns")
        whole = {column: blank_nan(row.get(column)) for column in self.metrics.columns}
        self.metrics.append([whole])
        self.rows.append(whole)
        return whole

    def write_clients(self, blocks: Iterable[Sequence[Sequence[Any]]], models: int = 0, named: bool = False) -> None:
        """Writes all of `clients.csv`, one block of rows after another; None becomes blank.

        Args:
            models: Number of models, whose weights in the client's mixture follow in each row; 0 = no mixtures.
            named: True if each row ends with the client's name in the source.
        """
        header = (*client_columns(self.scores), *weight_columns(models), *(["name"] if named else []))
        write_atomically(
            self.path / "clients.csv", lambda file: file.writelines(map(as_csv, chain([[header]], blocks)))
        )

    def write_snapshot(self, round: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes `snapshots/<round>.npz`, whose digest later checkpoints hold."""
        name = f"snapshots/{round}.npz"
        self.write_arrays(name, arrays)
        self._note(name)

    def write_client_round(self, round: int, columns: Mapping[str, np.ndarray]) -> None:
        """Writes the clients' scores in a round into a file whose digest later checkpoints hold."""
        write_part(self.path / part_name(round), columns)
        self._note(part_name(round))

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes a compressed `.npz`."""
        target = self.path / name
        with name_write_errors(target.parent):
            target.parent.mkdir(exist_ok=True)
        write_atomically(target, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]  # numpy's stub takes every keyword for allow_pickle


def _header(saved: Mapping[str, Any], table: str) -> str:
    """Returns the first line of a table in a checkpoint."""
    first = next(text_of(saved["parts"][table], saved["tables"][table]))
    return first.partition(b"\n")[0].decode()


def _describe_others(headers: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Names the tables whose header is not among others, with their columns."""
    found = [f"{name} with the columns {line}" for name, line in headers.items() if others.get(name) != line]
    return f"the table {'; '.join(found)}" if found else "no such table"
