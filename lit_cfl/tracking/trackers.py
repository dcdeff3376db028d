"""All trackers of one run. Their failures do not stop the run."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lit_cfl.metric_names import Row
from lit_cfl.pictures.folder import PICTURES, PictureFolder
from lit_cfl.pictures.options import Format
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.tracking.artifacts import Models
from lit_cfl.tracking.background import BackgroundTrackers, Status
from lit_cfl.tracking.loggers import Loggers
from lit_cfl.tracking.options import Tracking
from lit_cfl.tracking.weights_and_biases import WandbRun


class Trackers:
    """Feeds the pictures, W&B and the loggers of one run.

    Args:
        tracking: Tracking options.
        name: Name of the run.
        path: the run directory: pictures and W&B keep their files there.
        config: logged as hyper-parameters, folders left out.
        run_id: Id of the W&B run and of the folder of TensorBoard's files; a resumed run keeps it.
        rows: Rows of `metrics.csv` from before this process started; W&B and TensorBoard receive the ones they lack.
        logged: the last round that an earlier process wrote a row of, 0 = none.
        formats: Formats of the pictures; empty = no pictures.

    Raises:
        InputError: a logger cannot be built, or wandb is asked for and not installed.
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
        mode, known = tracking.asked(), [_known(row) for row in rows]
        plain = {key: _without_folders(value) for key, value in config.items() if key != "code"}
        own = None if run_id is None else f"{name}-{run_id}"
        self._loggers = Loggers(tracking.loggers, own, plain, known, logged)
        folder = PictureFolder(path / PICTURES, formats)
        begin = partial(WandbRun, tracking, mode, name, path, plain, run_id)
        self._background = BackgroundTrackers(folder, None if mode == "disabled" else begin, known)

    def log(self, row: Row, view: RoundView | None = None) -> None:
        """Logs a row of `metrics.csv` without its blanks.

        Args:
            row: Row of a round.
            view: where pictures and tables are due; they wait for the end where those before have cost too much.
        """
        numbers = _known(row)
        self._background.log(numbers, view)
        self._loggers.log(numbers)

    def conclude(self, summary: Row, view: RoundView | None, models: Callable[[], Models]) -> None:
        """Logs the final results: W&B gets the summary, the models, the memberships and the partition.

        Args:
            summary: content of `summary.json`.
            view: at the end.
            models: gives those that clients use.
        """
        self._background.conclude(_known(summary), view, models)

    def finish(self, status: Status) -> bool:
        """Ends all trackers. Returns whether the final pictures were drawn."""
        self._loggers.finish(status)
        return self._background.finish(status)


def _known(row: Row) -> dict[str, Any]:
    """Drops blank values."""
    return {name: value for name, value in row.items() if value is not None}


def _without_folders(value: Any) -> Any:
    """Shortens absolute paths to their last name, as folders may contain the user's name."""
    if isinstance(value, Mapping):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_folders(item) for item in value]
    if isinstance(value, str) and (value.startswith("~") or Path(value).is_absolute()):
        return Path(value).name
    return value
