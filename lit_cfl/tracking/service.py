"""Settings of wandb and of its process: no output, no personal data, no waiting for a server."""

import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

_REACH_SECONDS = 3.0  # time for the server to answer
_INIT_SECONDS = 60.0  # on a busy machine an offline start may take more than 20
FINISH_SECONDS = 60.0  # time for the last uploads


@cache
def read_wandb_mode() -> str:
    """Reads the mode that the user set with `wandb offline` or `wandb disabled`."""
    import wandb

    return str(wandb.setup(wandb.Settings(silent=True)).settings.mode)


def has_key() -> bool:
    """Returns whether a W&B key is set, by `wandb login` or WANDB_API_KEY."""
    import wandb

    try:
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.Error:  # the API key is malformed
        return True


_loading: list[Thread] = []  # threads that may still load wandb


def load_early(asked: Callable[[], str | None]) -> None:
    """Loads wandb and starts its process in a thread, while the run loads its data.

    Args:
        asked: Returns the requested mode of W&B; if it raises, nothing is loaded.
    """

    def load() -> None:
        with suppress(Exception):  # the later import of wandb raises the same error, which is then reported
            if asked() != "disabled":
                # otherwise wandb sends tracebacks, which name folders
                os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
                read_wandb_mode()

    _loading.append(Thread(target=load, name="wandb", daemon=True))
    _loading[-1].start()


def wait_until_loaded() -> None:
    """Waits until `load_early` has finished."""
    while _loading:
        _loading.pop().join()


def stop_service() -> None:
    """Ends wandb's process; the next run starts another one."""
    import wandb

    with suppress(Exception, SystemExit):
        wandb.teardown()


@contextmanager
def stage_files_in(folder: Path) -> Iterator[None]:
    """Makes wandb store the files of tables in a folder until their upload, instead of in the user's home."""
    own = "WANDB_DATA_DIR" not in os.environ
    if own:
        os.environ["WANDB_DATA_DIR"] = str(folder.absolute())
    try:
        yield
    finally:
        if own:
            del os.environ["WANDB_DATA_DIR"]


def settings(wandb: Any) -> Any:
    """Returns wandb settings that print nothing and disclose nothing about machine, user, folders or programs."""
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


def is_reachable(server: str) -> bool:
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
