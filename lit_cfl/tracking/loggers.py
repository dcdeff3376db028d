"""A Lightning logger of a run, and the guard that keeps a tracker's failures from stopping the run."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from lightning.pytorch.loggers import Logger, TensorBoardLogger

from lit_cfl.errors import InputError, Notice
from lit_cfl.metric_names import Row

Status = Literal["success", "failed"]
T = TypeVar("T")


@dataclass
class Guard:
    """Isolates the run from a tracker's failures: after the first, the tracker is disabled with one notice."""

    title: str
    failed: bool = False

    def __call__(self, do: Callable[[], T], always: bool = False) -> T | None:
        """Calls a function, after an earlier failure only if `always`. Returns None if it fails."""
        if self.failed and not always:
            return None
        try:
            return do()
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            if not self.failed:
                text = f"{self.title} failed and is left out of the rest of this run ({why})"
                warnings.warn(Notice(text), stacklevel=2)
            self.failed = True
            return None


class GuardedLogger:
    """Passes the rows of a run to one Lightning logger.

    A resumed run continues in its TensorBoard folder: all rows are logged again, as a killed process may not have
    written the last ones completely, and `purge_step` makes TensorBoard hide the earlier entries. Any other logger
    starts a new version, at the round `logged`, or at the next one if that round is not run again.

    Args:
        build: Builds the logger.
        folder: Folder of the run's TensorBoard files, inside the logger's own; None = numbered by the logger.
        options: Options of the run, logged as hyper-parameters.
        rows: Rows of `metrics.csv` from before this process started, without blanks.
        logged: Last round of which an earlier process wrote a row, 0 = none.

    Raises:
        InputError: the logger cannot be built.
    """

    def __init__(
        self,
        build: Callable[[], Logger],
        folder: str | None,
        options: Mapping[str, Any],
        rows: Sequence[Row],
        logged: int,
    ) -> None:
        restored = int(rows[-1]["round"]) if rows else 0
        try:
            self._logger, self._first = build(), max(logged, restored + 1)
            if isinstance(self._logger, TensorBoardLogger) and isinstance(build, partial):
                self._logger, self._first = build(**_in_folder(folder, logged, build.keywords)), 1
        except ImportError as error:
            raise InputError(f"a logger of tracking.loggers cannot be built: {error}") from error
        self._guard = Guard(type(self._logger).__name__)
        self._guard(lambda: self._logger.log_hyperparams(dict(options)))
        for row in rows:
            self.log(row)

    def log(self, row: Row) -> None:
        """Logs a row of `metrics.csv`, which must have no blanks, unless an earlier process has done so."""
        if row["round"] >= self._first:
            self._guard(lambda: self._logger.log_metrics(dict(row), step=int(row["round"])))
            self._guard(self._logger.save)

    def finish(self, status: Status) -> None:
        """Ends the logger."""
        self._guard(lambda: self._logger.finalize(status))


def _in_folder(folder: str | None, logged: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns TensorBoard options that continue logging in a folder, and hide the rounds already there.

    Args:
        folder: Folder of the run.
        logged: Last round that the folder may have; 0 = the folder is new.
        given: Options set by the user.
    """
    version = given.get("version")
    options: dict[str, Any] = {"version": folder if version is None else version}
    if logged:  # two files created in the same second would have the same name
        options |= {"purge_step": 1, "filename_suffix": f"{given.get('filename_suffix') or ''}.{logged}"}
    return options
