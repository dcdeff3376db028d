"""Draws pictures and feeds W&B in a separate thread, so that training does not wait for them."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Literal, TypeVar

from lit_cfl.errors import Notice
from lit_cfl.metric_names import Row
from lit_cfl.pictures.folder import PictureFolder
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.tracking.artifacts import Models
from lit_cfl.tracking.weights_and_biases import WandbRun

Status = Literal["success", "failed"]
T = TypeVar("T")
SHARE = 0.02  # maximum share of a run's time for pictures and tables before the last round
_FIRST_SECONDS = 0.6  # what the first ones take, roughly: runs of half a minute have them at their end alone


@dataclass
class Guard:
    """Isolates the run from a tracker's failures: after the first, the tracker is disabled with one notice."""

    title: str
    failed: bool = False

    def __call__(self, do: Callable[[], T]) -> T | None:
        return None if self.failed else self.at_last(do)

    def at_last(self, do: Callable[[], T]) -> T | None:
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


class PictureTime:
    """Limits the time that pictures and tables take before the last round to a share of the run's time."""

    def __init__(self) -> None:
        self._begun, self._seconds = monotonic(), _FIRST_SECONDS

    def left(self) -> bool:
        return self._seconds < SHARE * (monotonic() - self._begun)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Measures the time of the block."""
        begun = monotonic()
        yield
        self._seconds += monotonic() - begun


class BackgroundTrackers:
    """Draws pictures and feeds W&B, in order, during the run.

    Args:
        folder: Folder of the pictures.
        begin_wandb: begins the W&B run; None = without one.
        rows: Rows of `metrics.csv` from before this process started; W&B receives the ones it lacks.
    """

    def __init__(self, folder: PictureFolder, begin_wandb: Callable[[], WandbRun] | None, rows: Sequence[Row]) -> None:
        self._folder, self._budget = folder, PictureTime()
        self._run: WandbRun | None = None
        self._wandb = Guard("W&B")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracking")
        if begin_wandb is not None:
            self._thread.submit(self._begin, begin_wandb, list(rows))

    def log(self, row: Row, view: RoundView | None) -> None:
        """Logs a row, and draws the pictures of a view if there is one, and enough time."""
        self._thread.submit(self._log, row, view)

    def conclude(self, summary: Row, view: RoundView | None, models: Callable[[], Models]) -> None:
        """Logs the summary and the models, and draws the pictures that an earlier process could not draw."""
        self._thread.submit(self._conclude, summary, view, models)

    def finish(self, status: Status) -> bool:
        """Waits until everything is logged and drawn, and ends the W&B run, even after a failure.

        Returns:
            whether the pictures of the end were drawn.
        """
        self._thread.submit(self._finish, status)
        self._thread.shutdown()
        return self._folder.ended

    def _begin(self, begin_wandb: Callable[[], WandbRun], rows: Sequence[Row]) -> None:
        self._run = self._wandb(begin_wandb)
        for row in rows:
            self._feed(row, None, {})

    def _log(self, row: Row, view: RoundView | None) -> None:
        if view is not None and (view.last or self._budget.left()):
            with self._budget.used():
                self._feed(row, view, self._folder.draw(view))
        else:
            self._feed(row, None, {})

    def _feed(self, row: Row, view: RoundView | None, drawn: Mapping[str, Path]) -> None:
        run = self._run
        if run is not None:
            self._wandb(lambda: run.log(row, view, drawn))

    def _conclude(self, summary: Row, view: RoundView | None, models: Callable[[], Models]) -> None:
        if view is not None:
            self._folder.draw(view)  # also what failed before: the disk may have room again
        run = self._run
        if run is not None:
            self._wandb(lambda: run.conclude(summary, models))

    def _finish(self, status: Status) -> None:
        run = self._run
        if run is not None:
            self._wandb.at_last(lambda: run.finish(status))
            self._wandb(run.mark_complete)
