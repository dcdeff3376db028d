"""One W&B run, online if possible, else offline. `docs/tracking.md` lists the data it sends."""

import logging
import os
import shlex
import shutil
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from lit_cfl.errors import Notice
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.tracking.artifacts import Models, copy_files, log_artifact
from lit_cfl.tracking.media import media
from lit_cfl.tracking.offline import last_kept_round, mark_complete, set_offline_aside
from lit_cfl.tracking.options import Mode, Tracking
from lit_cfl.tracking.service import (
    is_reachable,
    read_wandb_mode,
    settings,
    stage_files_in,
    stop_service,
    wait_until_loaded,
)

_MIN_FREE = 2**20  # if fewer bytes are free on the disk, W&B's files may be incomplete


class WandbRun:
    """Logs one run to W&B. A resumed run keeps its id.

    A run ends before the next one starts.

    Args:
        tracking: W&B's options.
        mode: Requested mode; None = online if a key is set, else offline.
        name: Name of the run.
        path: Run directory; files go into `wandb/` there.
        config: Configuration of the run.
        run_id: Id of the run.
    """

    def __init__(
        self,
        tracking: Tracking,
        mode: Mode | None,
        name: str,
        path: Path,
        config: Mapping[str, Any],
        run_id: str | None,
    ) -> None:
        wait_until_loaded()
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # otherwise wandb sends tracebacks, which name folders
        import wandb

        self._path, self._kept = path, last_kept_round(path / "wandb", run_id)
        (path / "wandb").mkdir(exist_ok=True)  # otherwise wandb falls back to a temporary folder
        offline = mode == "offline" or (mode is None and read_wandb_mode() != "online")
        wandb.setup(wandb.Settings(silent=True, mode="online"))  # makes wandb look for the key
        self._options: dict[str, Any] = {
            "id": run_id,
            "resume": "allow",
            "name": name,
            "dir": path,
            "config": dict(config),
            "tags": tracking.tags,
            "project": tracking.project,
            "entity": tracking.entity,
            "group": tracking.group,
            "notes": tracking.notes,
            "settings": settings(wandb),
        }
        online = None if offline else self._online(asked=mode == "online")
        self.run = wandb.init(mode="offline", **self._options) if online is None else online
        self._server: str | None = None
        if online is not None:
            self._server = wandb.setup().settings.base_url
            # last round on the server; a killed process may have logged more
            known = int(online.summary.get("round") or 0)
            if known < self._kept:
                set_offline_aside(path / "wandb", run_id)
            self._kept = known
        self._last_round = self._kept
        logging.getLogger("wandb").setLevel(logging.CRITICAL)  # its logger prints tracebacks when the disk is full
        self.run.define_metric("*", step_metric="round")

    def _online(self, asked: bool) -> Any:
        """Starts the run online. Returns None if it must be offline, with a notice if the user expects it online."""
        import wandb

        try:
            if not wandb.login(prompt=False, verify=False):
                if asked:
                    _warn_offline("no key is set (`wandb login`, or WANDB_API_KEY)")
                return None
        except wandb.Error as error:  # the API key is malformed
            _warn_offline(str(error))
            return None
        server = wandb.setup().settings.base_url
        if not is_reachable(server):
            _warn_offline(f"{server} does not answer")
            return None
        try:
            return wandb.init(mode="online", **self._options)
        except Exception as error:  # such as a wrong key, a project of another user, or an outage
            _warn_offline(str(error).splitlines()[0].replace(f" for run {self._options['id']}", ""))
            stop_service()  # otherwise the id would stay in use
            return None

    def log(self, row: Mapping[str, Any], view: RoundView | None, pictures: Mapping[str, Path]) -> None:
        """Logs a round's numbers and media as one entry of the history, unless an earlier process logged it."""
        if row["round"] <= self._kept:
            return
        shown = {} if view is None else media(view, pictures, with_tables=self._takes_artifacts())
        with stage_files_in(self._path / "wandb"):
            self.run.log(dict(row) | shown)
        self._last_round = row["round"]

    def conclude(self, summary: Mapping[str, Any], models: Callable[[], Models]) -> None:
        """Logs the final results."""
        self.run.summary.update(dict(summary))
        if not self._takes_artifacts():
            return
        files = copy_files(self._path, Path(self.run.dir).parent / "artifact", models())
        log_artifact(self.run, f"clusters-{self.run.id}", files)

    def _takes_artifacts(self) -> bool:
        """Returns whether tables and artifacts can be logged without waiting for a server that does not answer."""
        return self._server is None or is_reachable(self._server)

    def finish(self, status: Literal["success", "failed"]) -> None:
        """Ends the run.

        Raises:
            TimeoutError: not everything could be uploaded.
        """
        folder = Path(self.run.dir).parent
        try:
            self.run.finish(exit_code=0 if status == "success" else 1)
        except TimeoutError as error:
            command = f"wandb sync --include-online {shlex.quote(str(folder))}"
            raise TimeoutError(f"not all could be uploaded; `{command}` uploads the rest") from error
        except Exception:
            stop_service()  # the service has crashed, and the next run needs one
            raise

    def mark_complete(self) -> None:
        """Marks the run's folder as complete, after the run has ended without failures.

        Raises:
            OSError: the disk is full. wandb itself does not notice that.
        """
        folder = Path(self.run.dir).parent
        if shutil.disk_usage(folder).free < _MIN_FREE:
            raise OSError("the disk is full, so W&B's files may lack rounds; metrics.csv has all of them")
        mark_complete(folder, self._options["id"], self._last_round)


@cache
def _warn_offline(reason: str) -> None:
    """Gives the reason for staying offline as a notice."""
    warnings.warn(Notice(f"W&B stays offline: {reason}"), stacklevel=2)
