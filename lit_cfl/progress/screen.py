"""The output of a command, for people and for programs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lit_cfl.progress.console import new_console
from lit_cfl.progress.live import Display, JsonLines, LogDisplay, TerminalDisplay
from lit_cfl.progress.summary_table import closing_table
from lit_cfl.runs.run import FinishedRun, RunCallbacks


class Screen:
    """Prints the output of a command, suited to a terminal, a file or a program.

    Args:
        quiet: Print only the run directory to standard output, at the end.
        json: Print only JSON objects to standard output, one per line, also with `quiet`.
    """

    def __init__(self, quiet: bool = False, json: bool = False) -> None:
        self.quiet, self.json = quiet, json
        self.out = new_console()
        self.aside = new_console(stderr=True) if quiet or json else self.out  # for output to people, not programs

    @property
    def live(self) -> bool:
        """Whether lines can be redrawn: in an interactive terminal, but neither in CI nor in a file."""
        return self.out.file.isatty() and self.out.is_interactive and not os.environ.get("CI")

    def say(self, line: str) -> None:
        """Prints a line for people."""
        self.aside.print(line, soft_wrap=True)

    @contextmanager
    def callbacks(
        self, between_clients: Callable[[], None] = lambda: None, several_seeds: bool = False
    ) -> Iterator[RunCallbacks]:
        """Provides the callbacks of a display suited to the output, within the block.

        Args:
            between_clients: Function called before a client is trained; see `RunCallbacks`.
            several_seeds: Name the seed in the runs' titles.
        """
        if self.json:
            lines = JsonLines(self.out.file)
            yield RunCallbacks(lines.started, between_clients, lines.row)
            return
        title = ""  # of the current run; it is not known before the run's start

        def started(name: str, completed: int, rounds: int, seed: int) -> None:
            nonlocal title
            title = f"{name} seed {seed}" if several_seeds else name
            display.started(title, completed, rounds)

        def ended(reason: str | None) -> None:
            nonlocal title
            display.ended(title, None if reason is None else f"Stopped early: {reason}.")
            title = ""

        with self.display() as display:
            yield RunCallbacks(
                started,
                between_clients,
                lambda row: display.row(title, row),
                ended,
                lambda activity: display.activity(title, activity),
            )

    def display(self, total: int | None = None, done: int = 0) -> Display:
        """Makes a display suited to the output; for the numbers of runs see `Display`."""
        if self.quiet:
            return Display(self.out, total, done)
        return (TerminalDisplay if self.live else LogDisplay)(self.out, total, done)

    def close(self, finished: FinishedRun) -> None:
        """Ends the output with the result of a run."""
        if self.json:
            for part in finished.seeds or [finished]:
                JsonLines(self.out.file).summary(part)
        elif self.quiet:
            self.say_path(str(finished.path))
        else:
            closing_table(self.out, finished)

    def say_path(self, path: str) -> None:
        """Prints a path, the only output of a quiet command."""
        self.out.print(path, soft_wrap=True)
