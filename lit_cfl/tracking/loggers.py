"""The Lightning loggers of one run. Their failures do not stop it."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from lightning.pytorch.loggers import Logger, TensorBoardLogger

from lit_cfl.errors import InputError, Notice
from lit_cfl.metric_names import Row

Status = Literal["success", "failed"]
Build = Callable[[], Logger]
T = TypeVar("T")


@dataclass
class Guard:
    """Isolates the run from a tracker's failures: after the first, the tracker is disabled with one notice."""

    title: str
    failed: bool = False

    def __call__(self, do: Callable[[], T]) -> T | None:
        return None if self.failed else self.call_always(do)

    def call_always(self, do: Callable[[], T]) -> T | None:
        """Calls a function even after an earlier failure; further failures are silent."""
        try:
            return do()
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            if not self.failed:
                text = f"{self.title} failed and is left out of the rest of this run ({why})"
                warnings.warn(Notice(text), stacklevel=2)
            self.failed = True
            return None


@dataclass(frozen=True)
class _GuardedLogger:
    """A logger, the guard against its failures, and the first round that it has to log."""

    guard: Guard
    logger: Logger
    first: int

    def log(self, row: Row) -> None:
        if row["round"] >= self.first:
            self.guard(partial(self._log, row))

    def _log(self, row: Row) -> None:
        self.logger.log_metrics(dict(row), step=int(row["round"]))
        self.logger.save()


class Loggers:
    """Passes the rows of a run to its Lightning loggers.

    A resumed run continues in its TensorBoard folder: all rows are logged again, as a killed process may not have
    written the last ones completely, and `purge_step` makes TensorBoard hide the earlier entries. Any other logger
    starts a new version, at the round `logged`, or at the next one if that round is not run again.

    Args:
        builds: Functions that each build a logger.
        folder: Folder of the run's TensorBoard files, inside the logger's own; None = numbered by the logger.
        options: Options of the run, logged as hyper-parameters.
        rows: Rows of `metrics.csv` from before this process started, without blanks.
        logged: Last round of which an earlier process wrote a row, 0 = none.

    Raises:
        InputError: a logger cannot be built.
    """

    def __init__(
        self, builds: Sequence[Build], folder: str | None, options: Mapping[str, Any], rows: Sequence[Row], logged: int
    ) -> None:
        self._all = [_open_logger(build, folder, rows, logged) for build in builds]
        for one in self._all:
            one.guard(partial(one.logger.log_hyperparams, dict(options)))
            for row in rows:
                one.log(row)

    def log(self, row: Row) -> None:
        """Logs a row of `metrics.csv`, which must have no blanks, to all loggers."""
        for one in self._all:
            one.log(row)

    def finish(self, status: Status) -> None:
        """Ends all loggers."""
        for one in self._all:
            one.guard(partial(one.logger.finalize, status))


def _open_logger(build: Build, folder: str | None, rows: Sequence[Row], logged: int) -> _GuardedLogger:
    restored = int(rows[-1]["round"]) if rows else 0
    try:
        logger, first = build(), max(logged, restored + 1)
        if isinstance(logger, TensorBoardLogger) and isinstance(build, partial):
            logger, first = build(**_in_folder(folder, logged, build.keywords)), 1
    except ImportError as error:
        raise InputError(f"a logger of tracking.loggers cannot be built: {error}") from error
    return _GuardedLogger(Guard(type(logger).__name__), logger, first)


def _in_folder(folder: str | None, logged: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns TensorBoard options that continue logging in a folder, and hide the rounds already there.

    Args:
        logged: Last round that the folder may have; 0 = the folder is new.
        given: Options set by the user.
    """
    version = given.get("version")
    options: dict[str, Any] = {"version": folder if version is None else version}
    if logged:  # two files created in the same second would have the same name
        options |= {"purge_step": 1, "filename_suffix": f"{given.get('filename_suffix') or ''}.{logged}"}
    return options
