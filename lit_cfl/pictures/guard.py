"""Prevents a failed picture from ending its run, comparison, study or page."""

import warnings
from collections.abc import Callable
from typing import TypeVar

from lit_cfl.errors import Notice, SaveError

T = TypeVar("T")


def warn_of(line: str) -> None:
    """Warns with a notice."""
    warnings.warn(Notice(line), stacklevel=2)


class DrawingGuard:
    """Draws pictures one by one. A failed one is left out with one notice, and the others are drawn.

    Args:
        say: receives the notices, one for each picture that failed, and one for all that could not be written.
        passed: errors that end the command all the same, where it was asked for the files.
    """

    def __init__(self, say: Callable[[str], None] = warn_of, passed: tuple[type[Exception], ...] = ()) -> None:
        self._say, self._passed = say, passed
        self._known: set[str] = set()  # failures already reported

    def __call__(self, name: str, draw: Callable[[], T]) -> T | None:
        """Draws a picture; returns None if that failed.

        Args:
            name: Display name of the picture.
            draw: draws it, and perhaps writes it.
        """
        try:
            return draw()
        except Exception as error:  # a plotting library may raise anything
            if isinstance(error, self._passed):
                raise
            subject = "pictures" if isinstance(error, SaveError) else name
            if subject not in self._known:
                self._known.add(subject)
                why = (str(error).splitlines() or [""])[0]
                self._say(f"{name} cannot be drawn and is left out ({type(error).__name__}: {why})")
            return None
