"""Where the words of a run go, for people and for programs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from lit_cfl.progress.live import Display, Json, Lines, Live, Nothing
from lit_cfl.progress.summary_table import closing_table
from lit_cfl.runs.run import FinishedRun, RunCallbacks


class Screen:
    """The screen of one command.

    Args:
        quiet: standard output gets the run directory alone, at the end.
        json: standard output gets one JSON object a line, and nothing else; with `quiet` no less.
    """

    def __init__(self, quiet: bool = False, json: bool = False) -> None:
        self.quiet, self.json = quiet, json
        self.out = Console()
        self.aside = Console(stderr=True) if quiet or json else self.out  # for words that no program reads

    @property
    def live(self) -> bool:
        """Whether a line can be redrawn: in a terminal, but in no log, be it one that takes colours or is CI's."""
        return self.out.file.isatty() and self.out.is_interactive and not os.environ.get("CI")

    def say(self, line: str) -> None:
        """A line for people."""
        self.aside.print(line, soft_wrap=True, highlight=False, markup=False)

    @contextmanager
    def callbacks(
        self, between_clients: Callable[[], None] = lambda: None, several_seeds: bool = False
    ) -> Iterator[RunCallbacks]:
        """A display that suits where the output goes, within the block.

        Args:
            between_clients: see `RunCallbacks`.
            several_seeds: whether people have to be told which one it is.
        """
        with self._display() as display:

            def started(title: str, completed: int, rounds: int, seed: int) -> None:
                display.started(title, completed, rounds, seed if several_seeds or self.json else None)

            yield RunCallbacks(started, between_clients, display.row, display.ended, display.doing)

    def _display(self) -> Display:
        if self.json:
            return Json(self.out)
        if self.quiet:
            return Nothing(self.out)
        return Live(self.out) if self.live else Lines(self.out)

    def close(self, finished: FinishedRun) -> None:
        """What came of the run."""
        if self.json:
            for part in finished.seeds or [finished]:
                Json(self.out).summary(part)
        elif self.quiet:
            self.say_path(str(finished.path))
        else:
            closing_table(self.out, finished)

    def say_path(self, path: str) -> None:
        """The one line of a quiet command."""
        self.out.print(path, soft_wrap=True, highlight=False, markup=False)
