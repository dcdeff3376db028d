"""SIGINT and SIGTERM end a study between two steps, never inside Ray's own code, which would lose the exception."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray.tune import Callback

from lit_cfl.interrupt import interruptible

_checks: list[Callable[[], None]] = []  # of the studies that this process runs, the innermost last


@contextmanager
def leavable() -> Iterator[None]:
    """Within the block signals wait for `leave_if_asked`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with interruptible() as check:
        _checks.append(check)
        try:
            yield
        finally:
            _checks.pop()


def leave_if_asked() -> None:
    """Raises Interrupted once a signal has arrived."""
    for check in _checks:
        check()


class LeaveWhenAsked(Callback):
    """Asks at every step of Ray Tune. Holds nothing: Ray keeps it in its records."""

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        leave_if_asked()
