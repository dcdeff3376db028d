"""Prevents a failed picture from ending its run, comparison, study or page."""

import warnings
from collections.abc import Callable
from typing import TypeVar

from lit_cfl.errors import Notice, SaveError

T = TypeVar("T")


class DrawingGuard:
    """Draws pictures one by one. A failed one is left out with one notice, and the others are drawn.

    Args:
        say: Receives a notice for each failed picture, and one notice for all pictures that could not be written; None
            = warn.
        passed: Errors that are raised nevertheless, for commands whose purpose is to write the files.
    """

    def __init__(self, say: Callable[[str], None] | None = None, passed: tuple[type[Exception], ...] = ()) -> None:
        self._say = say or (lambda line: warnings.warn(Notice(line), stacklevel=2))
        self._passed = passed
        self._known: set[str] = set()  # failures already reported
        self.unwritten: SaveError | None = None  # the latest error of a picture that could not be written

    def __call__(self, name: str, draw: Callable[[], T]) -> T | None:
        """Draws a picture; returns None if that failed.

        Args:
            name: Display name of the picture.
            draw: Function that draws the picture, and may write it.
        """
        try:
            return draw()
        except Exception as error:  # a plotting library may raise anything
            if isinstance(error, self._passed):
                raise
            if isinstance(error, SaveError):
                self.unwritten = error
            subject = "pictures" if isinstance(error, SaveError) else name
            if subject not in self._known:
                self._known.add(subject)
                why = (str(error).splitlines() or [""])[0]
                self._say(f"{name} cannot be drawn and is left out ({type(error).__name__}: {why})")
            return None
