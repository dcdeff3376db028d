"""The Lightning loggers of one run. Their failures do not stop it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger

from lit_cfl.errors import InputError
from lit_cfl.metric_names import Row
from lit_cfl.tracking.background import Guard, Status

Build = Callable[[], Logger]
_QUEUE = 10  # figures that TensorBoard's writer may still hold after it has been flushed, by default
_FIGURES = 20  # minimum number of metrics in a row


@dataclass(frozen=True)
class _Fed:
    """A logger with its first round to log."""

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
    """Gives the rows of a run to its loggers.

    A run that is resumed goes on in its TensorBoard folder: rows that a killed process may not have written whole are
    logged again, and `purge_step` makes TensorBoard hide its earlier entries. Any other logger begins a new version,
    with the round `logged`, or with the next one if that is not run again.

    Args:
        builds: one for each logger.
        folder: Folder of the run's TensorBoard files, inside the logger's own; None = numbered by the logger.
        options: logged as hyper-parameters.
        rows: Rows of `metrics.csv` from before this process started, without blanks.
        logged: the last round that an earlier process wrote a row of, 0 = none.

    Raises:
        InputError: a logger cannot be built.
    """

    def __init__(
        self, builds: Sequence[Build], folder: str | None, options: Mapping[str, Any], rows: Sequence[Row], logged: int
    ) -> None:
        self._all = [_opened(build, folder, rows, logged) for build in builds]
        for fed in self._all:
            fed.guard(partial(fed.logger.log_hyperparams, dict(options)))
            for row in rows:
                fed.log(row)

    def log(self, row: Row) -> None:
        """Logs a row without blanks."""
        for fed in self._all:
            fed.log(row)

    def finish(self, status: Status) -> None:
        """Ends all loggers."""
        for fed in self._all:
            fed.guard(partial(fed.logger.finalize, status))


def _opened(build: Build, folder: str | None, rows: Sequence[Row], logged: int) -> _Fed:
    try:
        logger, restored = build(), int(rows[-1]["round"]) if rows else 0
        first = max(logged, restored + 1)
        if isinstance(logger, TensorBoardLogger) and isinstance(build, partial):
            first = _first_unsure(rows, build.keywords.get("max_queue") or _QUEUE)
            logger = build(**_in_folder(folder, first if logged else None, build.keywords))
    except ImportError as error:
        raise InputError(f"a logger of tracking.loggers cannot be built: {error}") from error
    return _Fed(Guard(type(logger).__name__), logger, first)


def _first_unsure(rows: Sequence[Row], queue: int) -> int:
    """Finds the first round that TensorBoard may lack: later rows flush earlier ones to the disk."""
    unsure = rows[-(1 + queue // _FIGURES) :]
    return int(unsure[0]["round"]) if unsure else 1


def _in_folder(folder: str | None, first: int | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with which TensorBoard continues in a folder.

    Args:
        first: the round from which on it hides what the folder has; None = the folder is new.
        given: Options set by the user.
    """
    version = given.get("version")
    options: dict[str, Any] = {"version": folder if version is None else version}
    if first is not None:  # two files that are begun in the same second would have the same name
        options |= {"purge_step": first, "filename_suffix": f"{given.get('filename_suffix') or ''}.{first}"}
    return options
