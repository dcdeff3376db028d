"""Ends a run on Ctrl-C or SIGTERM, after saving it."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from lit_cfl.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Defers SIGINT and SIGTERM within the block until the run can be interrupted.

    Yields a function that raises `Interrupted` once a signal has arrived, to be called wherever the run can be
    interrupted. A handler that raises could do so anywhere, also in destructors and callbacks, where exceptions are
    lost. A second signal ends the process at once.
    """
    arrived: list[int] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        if arrived:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        arrived.append(signum)

    def check() -> None:
        if arrived:
            raise Interrupted(arrived[0])

    before = {signum: signal.signal(signum, handle) for signum in _SIGNALS}
    try:
        yield check
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
