"""A signal or a full disk ends a study between two steps, never inside Ray's code, which would lose the exception."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ray.tune import Callback

from lit_cfl.errors import SaveError
from lit_cfl.runs.signals import interruptible

_checks: list[Callable[[], None]] = []  # of the studies that this process runs, the innermost last
_LEAST_MIB = 20


class _FullDisk(BaseException):
    """No Exception: Ray would take it for a trial's."""


@contextmanager
def leavable(path: Path) -> Iterator[None]:
    """Within the block signals, and a disk that runs full, wait for `leave_if_asked`.

    Args:
        path: of the study.

    Raises:
        Interrupted: a signal came.
        SaveError: the disk is full.
    """

    def require_room() -> None:
        if shutil.disk_usage(path).free < _LEAST_MIB * 2**20:
            raise _FullDisk

    before = len(_checks)
    try:
        with interruptible() if _may_handle_signals() else nullcontext(lambda: None) as check:
            _checks.extend([check, require_room])
            yield
    except _FullDisk:
        text = f"the disk of {path} is full; make room, then go on with: lit-cfl tune --resume {path}"
        raise SaveError(text) from None
    finally:
        del _checks[before:]


def _may_handle_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


def leave_if_asked() -> None:
    """Ends the study once a signal has arrived or its disk is full."""
    for check in _checks:
        check()


class LeaveWhenAsked(Callback):
    """Asks at every step of Ray Tune. Holds nothing: Ray keeps it in its records."""

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        leave_if_asked()
