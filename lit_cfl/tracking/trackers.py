"""All trackers of one run: pictures, W&B and Lightning loggers. Their failures do not stop the run."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from lit_cfl.errors import SaveError
from lit_cfl.metric_names import Row
from lit_cfl.pictures.folder import PICTURES, PictureFolder
from lit_cfl.pictures.options import Format
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.tracking.artifacts import Models
from lit_cfl.tracking.loggers import Guard, GuardedLogger, Status
from lit_cfl.tracking.options import Tracking
from lit_cfl.tracking.wandb_run import WandbRun

DRAW_SECONDS = 60.0  # minimum time between two sets of pictures and tables, except after the last round


class Trackers:
    """Draws the pictures of one run, and feeds W&B and the loggers.

    Pictures and W&B have a thread, so that training does not wait for them.

    Args:
        tracking: Tracking options.
        name: Name of the run.
        path: Run directory, where pictures and W&B keep their files.
        config: Configuration, logged as hyper-parameters without the paths of folders.
        run_id: Id of the W&B run and of the folder of TensorBoard's files; a resumed run keeps it.
        rows: Rows of `metrics.csv` from before this process started; W&B and TensorBoard receive the ones they lack.
        logged: Last round of which an earlier process wrote a row, 0 = none.
        formats: Formats of the pictures; empty = no pictures.

    Raises:
        InputError: a logger cannot be built, or WANDB_MODE is not a mode.
    """

    def __init__(
        self,
        tracking: Tracking,
        name: str,
        path: Path,
        config: Row,
        run_id: str | None,
        rows: Sequence[Row] = (),
        logged: int = 0,
        formats: Sequence[Format] = (),
    ) -> None:
        mode, known = tracking.requested_mode(), [_drop_blanks(row) for row in rows]
        plain = {key: _without_folders(value) for key, value in config.items() if key != "code"}
        folder = None if run_id is None else f"{name}-{run_id}"
        self._loggers = [GuardedLogger(build, folder, plain, known, logged) for build in tracking.loggers]
        self._pictures, self._drawn_at = PictureFolder(path / PICTURES, formats), monotonic()
        self._run: WandbRun | None = None
        self._guard = Guard("W&B")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracking")
        if mode != "disabled":
            start = partial(WandbRun, tracking, mode, name, path, plain, run_id)
            self._thread.submit(self._start_wandb, start, known)

    def log(self, row: Row, view: RoundView | None = None) -> None:
        """Logs a row of `metrics.csv` without its blanks.

        Args:
            row: Row of a round.
            view: View of the run if pictures and tables are due; they are left out if the earlier ones are recent.
        """
        numbers = _drop_blanks(row)
        self._thread.submit(self._log, numbers, view)
        for logger in self._loggers:
            logger.log(numbers)

    def conclude(self, summary: Row, view: RoundView | None, models: Callable[[], Models]) -> None:
        """Logs the final results: W&B gets the summary, the models, the memberships and the partition.

        Args:
            summary: Content of `summary.json`.
            view: View of the finished run, for pictures that an earlier process could not draw.
            models: Returns the models that clients use.
        """
        private = {"notes": None}  # may name folders
        self._thread.submit(self._conclude, _drop_blanks(summary | private), view, models)

    def finish(self, status: Status) -> bool:
        """Waits until everything is logged and drawn, and ends all trackers, even after a failure.

        Returns:
            Whether the final pictures were drawn.
        """
        for logger in self._loggers:
            logger.finish(status)
        self._thread.submit(self._finish, status)
        self._thread.shutdown()
        return self._pictures.ended

    @property
    def unwritten(self) -> SaveError | None:
        """Why the latest pictures could not be written; None if they were."""
        return self._pictures.guard.unwritten

    def _start_wandb(self, start: Callable[[], WandbRun], rows: Sequence[Row]) -> None:
        self._run = self._guard(start)
        for row in rows:
            self._log(row, None)

    def _log(self, row: Row, view: RoundView | None) -> None:
        drawn: Mapping[str, Path] = {}
        if view is not None and not view.last and monotonic() < self._drawn_at + DRAW_SECONDS:
            view = None
        if view is not None:
            drawn, self._drawn_at = self._pictures.draw(view), monotonic()
        if (run := self._run) is not None:
            self._guard(lambda: run.log(row, view, drawn))

    def _conclude(self, summary: Row, view: RoundView | None, models: Callable[[], Models]) -> None:
        if view is not None:
            self._pictures.draw(view)  # retries pictures that failed before, since the disk may have room again
        if (run := self._run) is not None:
            self._guard(lambda: run.conclude(summary, models))

    def _finish(self, status: Status) -> None:
        if (run := self._run) is not None:
            self._guard(lambda: run.finish(status), always=True)
            self._guard(run.mark_complete)


def _drop_blanks(row: Row) -> dict[str, Any]:
    """Drops the blank values of a row."""
    return {name: value for name, value in row.items() if value is not None}


def _without_folders(value: Any) -> Any:
    """Shortens absolute paths to their last component, as folders may contain the user's name."""
    if isinstance(value, Mapping):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_folders(item) for item in value]
    if isinstance(value, str) and (value.startswith("~") or Path(value).is_absolute()):
        return Path(value).name
    return value
