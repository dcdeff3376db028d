"""Reads the files of a run directory for figures; records unreadable files, and continues without them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lit_cfl.data.npz import read_npz
from lit_cfl.data.partition_file import read_about
from lit_cfl.metric_names import TEXT_COLUMNS, Row
from lit_cfl.pictures.colours import match_colours
from lit_cfl.pictures.figure import finite_number
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.scores import Score, read_scores
from lit_cfl.storage.config_file import OtherFormatError, stored_config
from lit_cfl.storage.csv_log import read_table
from lit_cfl.storage.digests import SUMS
from lit_cfl.storage.lock import is_locked

_NUMBERS = ("metrics.csv", "clusters.csv")  # tables in which every column holds numbers
_SNAPSHOT = ("clients", "similarity", "projection", "cluster", "true_cluster", "compared")
_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class RunFiles:
    """The readable files of one run.

    Args:
        path: Run directory.
        config: Content of `config.yaml`; empty if it cannot be read.
        summary: Content of `summary.json`; None = the run has not finished, or the file is damaged.
        environment: Content of `environment.json`.
        over: True if the run has finished.
        problems: Sentences about missing or damaged files; more may be added while files are read.
        latest: View of a run of this process, of which not all is in files; None = the files have all.
    """

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    environment: Mapping[str, Any]
    over: bool
    problems: list[str] = field(default_factory=list)
    latest: RoundView | None = None
    _tables: dict[str, Sequence[Row]] = field(default_factory=dict)  # tables that were read, by name

    @property
    def rows(self) -> Sequence[Row]:
        """The readable rows of `metrics.csv`."""
        return self.table("metrics")

    @property
    def algorithm(self) -> str:
        """The name of the algorithm's class."""
        named = self.config.get("algorithm")
        path = named.get("class_path") if isinstance(named, Mapping) else None
        return str(path or (self.summary or {}).get("algorithm") or self.path.name).rpartition(".")[2]

    @property
    def seed(self) -> int | None:
        """The seed, if known."""
        seeds = self.config.get("seeds")
        return int(seeds[0]) if isinstance(seeds, list) and seeds else (self.summary or {}).get("seed")

    @property
    def score(self) -> Score:
        """The task's main score."""
        return read_scores(self.summary or self.environment)[0]

    @cached_property
    def running(self) -> bool:
        """Whether a process is working on the run."""
        return not self.over and is_locked(self.path)

    @property
    def status(self) -> str:
        """The progress of the run, in words."""
        rounds = self.config.get("rounds")
        of = f" of {rounds}" if rounds else ""
        last = self.rows[-1]["round"] if self.rows else 0
        if self.over:
            why = (self.summary or {}).get("stopped")
            return f"stopped after round {last}{of}: {why}" if why else "finished"
        return f"{'running' if self.running else 'interrupted'}, round {last}{of}"

    @cached_property
    def snapshots(self) -> list[int]:
        """Lists the rounds with a similarity snapshot of the clients."""
        return sorted(int(file.stem) for file in self.path.glob("snapshots/*.npz") if file.stem.isdigit())

    def snapshot(self, round: int) -> dict[str, np.ndarray] | None:
        """Reads a snapshot; None if it is damaged."""
        file = self.path / "snapshots" / f"{round}.npz"
        found = attempt(self.problems, file, lambda: read_npz(file, required=_SNAPSHOT))
        size = 0 if found is None else len(found["clients"])
        if found is None or found["similarity"].shape == (size, size):
            return found
        self.problems.append(f"{file} is damaged: its arrays do not belong together.")
        return None

    @cached_property
    def last_snapshot(self) -> tuple[int, dict[str, np.ndarray]] | None:
        """The round and the content of the last readable snapshot; None = there is none."""
        found = ((number, self.snapshot(number)) for number in reversed(self.snapshots))
        return next(((number, snapshot) for number, snapshot in found if snapshot is not None), None)

    @cached_property
    def final_scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores of the clients after the last round, nan = unknown, and their clusters, -1 = none."""
        if self.latest is not None:
            shown = slice(None) if self.latest.last and len(self.latest.values) else slice(0)
            return self.latest.values[shown], self.latest.cluster[shown]
        clients = [row for row in self.table("clients") if not row.get("newcomer")]
        columns = [[finite_number(row.get(name)) for row in clients] for name in (self.score.name, "cluster")]
        values, cluster = (np.array(column, dtype=float) for column in columns)
        return values, np.nan_to_num(cluster, nan=-1).astype(int)

    @cached_property
    def memberships(self) -> dict[str, np.ndarray] | None:
        """Memberships up to the end of the run; None = unknown."""
        if self.latest is not None:
            return self.latest.memberships()
        file = self.path / "memberships.npz"
        return attempt(self.problems, file, lambda: read_npz(file, required=("rounds", "cluster", "true_cluster")))

    @cached_property
    def partition(self) -> Mapping[str, Any]:
        """Digests of the run's data; empty if its partition file cannot be read. See `read_about`."""
        file = self.path / "partition.npz"
        return attempt(self.problems, file, lambda: read_about(file)) or {}

    @property
    def true_names(self) -> Sequence[str]:
        """Names of the true clusters 0, 1, ...; empty = none."""
        return tuple(self.partition.get("cluster_names", ()))

    @cached_property
    def match(self) -> dict[int, int]:
        """Colour number of each cluster, matched to the true clusters, for all of the run's figures."""
        known = self.memberships or (self.last_snapshot or (0, None))[1]
        return {} if known is None else match_colours(known["cluster"], known["true_cluster"])

    def table(self, name: str) -> Sequence[Row]:
        """Returns the readable rows of a table by its name without `.csv`; empty if there are none."""
        if name not in self._tables:
            file = self.path / f"{name}.csv"
            self._tables[name] = _whole_rows(self.problems, file) if file.is_file() else ()
        return self._tables[name]


def attempt(problems: list[str], file: Path, read: Callable[[], _T]) -> _T | None:
    """Reads a file; None if it does not exist. If reading fails, records the problem and returns None.

    Raises:
        OtherFormatError: the run has another format.
    """
    if not file.exists():
        return None
    try:
        return read()
    except OtherFormatError:
        raise
    except Exception as error:  # damaged files raise nearly anything
        why = str(error).replace(f"{file} ", "").partition(";")[0].splitlines() or [type(error).__name__]
        problems.append(f"{file} cannot be read and is left out ({why[0]}).")
        return None


def is_run(path: Path) -> bool:
    """Returns whether a directory contains a run, or the remains of one."""
    return any((path / name).is_file() for name in ("config.yaml", "metrics.csv", "summary.json"))


def read_run(path: Path, latest: RoundView | None = None) -> RunFiles:
    """Reads the files of one run; for `latest` see `RunFiles`. Raises OtherFormatError if it has another format."""
    problems: list[str] = []
    config = attempt(problems, path / "config.yaml", lambda: stored_config(path)) or {}
    if not (path / "config.yaml").exists():
        problems.append(f"{path / 'config.yaml'} is missing.")
    summary = _json(problems, path / "summary.json")
    over = (path / SUMS).exists() or summary is not None
    environment = _json(problems, path / "environment.json") or {}
    run = RunFiles(path, config, summary, environment, over, problems, latest)
    if not run.rows:
        problems.append(f"{path} has no round in metrics.csv.")
    for file in sorted(path.glob("*.csv")) if latest is None else ():
        run.table(file.stem)  # a page names each damaged table
    return run


def _json(problems: list[str], file: Path) -> dict[str, Any] | None:
    return attempt(problems, file, lambda: dict(json.loads(file.read_text("utf-8"))))


def _whole_rows(problems: list[str], file: Path) -> list[Row]:
    """Reads the rows of a table that may still grow, ignoring an incomplete last row."""
    rows = attempt(problems, file, lambda: read_table(file, file.read_bytes().rfind(b"\n") + 1, TEXT_COLUMNS)) or []
    if rows and file.name != "clients.csv" and "round" not in rows[0]:
        return []  # the table was added by the user
    whole = [row for row in rows if _is_whole(row, file.name)]
    if len(whole) < len(rows):
        problems.append(f"{file} is damaged: {len(rows) - len(whole)} of its {len(rows)} rows cannot be read.")
    return whole


def _is_whole(row: Row, file: str) -> bool:
    # the row has more cells than columns
    if None in row or (file != "clients.csv" and not isinstance(row.get("round"), int)):
        return False
    if file == "metrics.csv" and not any(str(name).startswith("val/weighted_") for name in row):
        return False
    return file not in _NUMBERS or not any(isinstance(value, str) for value in row.values())
