"""Prints the events of a study, and its progress after a period without events."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic

_SILENT_SECONDS = 20.0  # silence before a progress line
_POLL_SECONDS = 0.5


class ProgressLines:
    """Prints a study's lines, and a progress line whenever nothing was printed for a while.

    Args:
        say: Prints a line.
        seconds: Seconds without output.
    """

    def __init__(self, say: Callable[[str], None], seconds: float = _SILENT_SECONDS) -> None:
        self._say, self._seconds = say, seconds
        self._started = self._spoken = monotonic()
        self.describe_progress: Callable[[], str] = lambda: "checking the study"

    def __call__(self, line: str) -> None:
        """Prints a line."""
        self._spoken = monotonic()
        self._say(line)

    @contextmanager
    def breaking_silence(self) -> Iterator[None]:
        """Prints a progress line within the block whenever nothing else was printed for a while."""
        over = Event()
        thread = Thread(target=self._watch, args=(over,), name="progress-lines", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, over: Event) -> None:
        while not over.wait(min(_POLL_SECONDS, self._seconds)):
            if monotonic() - self._spoken >= self._seconds:
                minutes, seconds = divmod(int(monotonic() - self._started), 60)
                self(f"{minutes}:{seconds:02} {self.describe_progress()}")
