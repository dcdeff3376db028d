"""Ctrl-C and SIGTERM end a run after saving it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lit_cfl.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block the first SIGINT or SIGTERM raises `Interrupted`; a second one ends the process at once."""
    arrived = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal arrived
        if arrived:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        arrived = True
        raise Interrupted(signum)

    before = {signum: signal.signal(signum, handle) for signum in _SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
