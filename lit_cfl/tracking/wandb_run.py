"""One W&B run, online if possible, else offline. `docs/tracking.md` lists the data it sends."""

import logging
import os
import shlex
import shutil
import ssl
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

from lit_cfl.errors import Notice
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.tracking.artifacts import Models, log_artifact
from lit_cfl.tracking.media import media
from lit_cfl.tracking.offline import last_kept_round, mark_complete, set_offline_aside
from lit_cfl.tracking.options import Mode, Tracking

_REACH_SECONDS = 3.0  # time for the server to answer
_INIT_SECONDS = 60.0  # on a busy machine an offline start may take more than 20
FINISH_SECONDS = 60.0  # time for the last uploads
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
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # otherwise wandb sends tracebacks, which name folders
        import wandb

        self._path, folder = path, path / "wandb"
        self._kept = last_kept_round(folder, run_id)  # last round that is not logged again
        folder.mkdir(exist_ok=True)  # otherwise wandb falls back to a temporary folder
        offline = mode == "offline" or (mode is None and _read_mode() != "online")
        wandb.setup(wandb.Settings(silent=True, mode="online"))  # makes wandb look for the key
        options: dict[str, Any] = {
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
            "settings": _settings(),
        }
        online = None if offline else _start_online(options, asked=mode == "online")
        self._server = None if online is None else str(wandb.setup().settings.base_url)
        if online is not None:
            set_offline_aside(folder, run_id)
            self._kept = int(online.summary.get("round") or 0)  # a killed process may have logged more than was sent
        self.run: Any = wandb.init(mode="offline", **options) if online is None else online
        self._last_round = self._kept
        logging.getLogger("wandb").setLevel(logging.CRITICAL)  # its logger prints tracebacks when the disk is full
        self.run.define_metric("*", step_metric="round")

    def log(self, row: Mapping[str, Any], view: RoundView | None, pictures: Mapping[str, Path]) -> None:
        """Logs a round's numbers and media as one entry of the history, unless an earlier process logged it."""
        if row["round"] <= self._kept:
            return
        shown = {} if view is None else media(view, pictures, with_tables=self._takes_artifacts())
        with _stage_files_in(self._path / "wandb"):
            self.run.log(dict(row) | shown)
        self._last_round = row["round"]

    def conclude(self, summary: Mapping[str, Any], models: Callable[[], Models]) -> None:
        """Logs the final results."""
        self.run.summary.update(dict(summary))
        if self._takes_artifacts():
            log_artifact(self.run, self._path, models())

    def _takes_artifacts(self) -> bool:
        """Returns whether tables and artifacts can be logged without waiting for a server that does not answer."""
        return self._server is None or _is_reachable(self._server)

    def finish(self, status: Literal["success", "failed"]) -> None:
        """Ends the run.

        Raises:
            TimeoutError: not everything could be uploaded.
        """
        try:
            self.run.finish(exit_code=0 if status == "success" else 1)
        except TimeoutError as error:
            command = f"wandb sync --include-online {shlex.quote(str(Path(self.run.dir).parent))}"
            raise TimeoutError(f"not all could be uploaded; `{command}` uploads the rest") from error
        except Exception:  # whatever W&B raises: its service has crashed, and the next run needs one
            _stop_service()
            raise

    def mark_complete(self) -> None:
        """Marks the run's folder as complete, after the run has ended without failures.

        Raises:
            OSError: the disk is full. wandb itself does not notice that.
        """
        folder = Path(self.run.dir).parent
        if shutil.disk_usage(folder).free < _MIN_FREE:
            raise OSError("the disk is full, so W&B's files may lack rounds; metrics.csv has all of them")
        mark_complete(folder, self._last_round)


def _start_online(options: Mapping[str, Any], asked: bool) -> Any:
    """Starts a run online. Returns None if it must be offline, with a notice if the user expects it online."""
    import wandb

    try:
        server = wandb.setup().settings.base_url
        if not wandb.login(prompt=False, verify=False):
            reason = "no key is set (`wandb login`, or WANDB_API_KEY)" if asked else ""
        elif not _is_reachable(server):
            reason = f"{server} does not answer"
        else:
            return wandb.init(mode="online", **options)
    except Exception as error:  # such as a malformed or wrong key, a project of another user, or an outage
        reason = str(error).splitlines()[0].replace(f" for run {options['id']}", "")
        _stop_service()  # otherwise the id would stay in use
    if reason:
        _warn_offline(reason)
    return None


@cache
def _warn_offline(reason: str) -> None:
    """Gives the reason for staying offline as a notice."""
    warnings.warn(Notice(f"W&B stays offline: {reason}"), stacklevel=2)


def _settings() -> Any:
    """Returns wandb settings that print nothing and disclose nothing about machine, user, folders or programs."""
    import wandb

    return wandb.Settings(
        reinit="create_new",
        program="lit-cfl",
        host="",
        symlink=False,
        silent=True,
        console="off",
        init_timeout=_INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        finish_timeout_raises=True,
        disable_git=True,
        disable_code=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


def _is_reachable(server: str) -> bool:
    """Returns whether a server answers at all, even with an error.

    If none does, wandb itself would retry for minutes.
    """
    try:
        with urllib.request.urlopen(server, timeout=_REACH_SECONDS):  # noqa: S310  # wandb's own setting
            return True
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # wandb may trust a certificate that Python does not
    except OSError:
        return False


@contextmanager
def _stage_files_in(folder: Path) -> Iterator[None]:
    """Makes wandb store the files of tables in a folder until their upload, instead of in the user's home."""
    own = "WANDB_DATA_DIR" not in os.environ
    if own:
        os.environ["WANDB_DATA_DIR"] = str(folder.absolute())
    try:
        yield
    finally:
        if own:
            del os.environ["WANDB_DATA_DIR"]


def _stop_service() -> None:
    """Ends wandb's process; the next run starts another one."""
    import wandb

    with suppress(Exception, SystemExit):
        wandb.teardown()


@cache
def _read_mode() -> str:
    """Reads the mode that the user set with `wandb offline` or `wandb disabled`."""
    import wandb

    return str(wandb.setup(wandb.Settings(silent=True)).settings.mode)
