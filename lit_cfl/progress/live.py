"""Displays of ongoing runs: Rich's progress in a terminal, a log elsewhere, JSON for programs."""

import json
from collections.abc import Callable
from time import monotonic
from typing import IO, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from lit_cfl.activity import Activity
from lit_cfl.metric_names import Row, main_score
from lit_cfl.runs.run import FinishedRun
from lit_cfl.scores import ACCURACY, title_of
from lit_cfl.storage.atomic_writes import blank_not_finite


def describe(row: Row) -> str:
    """Describes a row of `metrics.csv` by its most important values, in at most 55 characters."""
    name = main_score(row)
    split = "val" if row[f"val/weighted_{name}"] is not None else "test"
    value, digits = row[f"{split}/weighted_{name}"], ".2f" if name == ACCURACY.name else ".4g"
    parts = [
        f"{split} {title_of(name)} {'-' if value is None else f'{value:{digits}}'}",
        f"clusters {row['clusters/count']}",
    ]
    if row["clusters/ari"] is not None:
        parts.append(f"ARI {row['clusters/ari']:.2f}")
    if row["clusters/unobserved"]:
        parts.append(f"{row['clusters/unobserved']} unplaced")
    return "  ".join(parts)


class Display:
    """Base class of the displays of runs; shows nothing itself. A context manager.

    A run may report activities before it starts; it has the title "" until then.

    Args:
        console: Console to write to.
        total: Number of runs of a comparison; None = single runs, one after the other, whose rounds are shown.
        done: Number of these runs that had finished before.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, console: Console, total: int | None = None, done: int = 0, clock: Callable[[], float] = monotonic
    ) -> None:
        self.console, self.total, self.done, self.clock = console, total, done, clock
        self.failed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the display."""

    def started(self, title: str, completed: int, rounds: int) -> None:
        """Called when a run starts, or resumes after this many completed rounds."""

    def activity(self, title: str, activity: Activity) -> None:
        """Called very often, with the current activity of a run."""

    def row(self, title: str, row: Row) -> None:
        """Called with the row of an evaluated round."""

    def ended(self, title: str, outcome: str | None = None, failed: bool = False) -> None:
        """Called when a run has ended.

        Args:
            title: Title of the run.
            outcome: Line about the run; None = nothing is printed.
            failed: True if the run ended with an error.
        """

    def _count(self, title: str, outcome: str | None, failed: bool) -> str:
        """Counts a finished or failed run of a comparison. Returns a line about the run."""
        self.done += not failed
        self.failed += failed
        return f"{self.done + self.failed}/{self.total}  {title}  {outcome or ''}".rstrip()


class _Status(ProgressColumn):
    """The latest figures and the activity of a run, cut off if the line is too long."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["status"], no_wrap=True, overflow="ellipsis")


class TerminalDisplay(Display):
    """Redraws one line per ongoing run.

    The line of a single run stays after its end. A comparison has a line with a bar for all runs, which stays; of its
    single runs only the errors stay, above it.
    """

    def __enter__(self) -> Self:
        self.tasks: dict[str, TaskID] = {}
        self.figures: dict[str, str] = {}  # description of the latest row of each run
        bar = [] if self.total is None else [BarColumn(bar_width=20)]
        title = TextColumn("{task.description}", markup=False)
        rounds = MofNCompleteColumn(table_column=Column(no_wrap=True))
        time = TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True))
        self.shown = Progress(title, *bar, rounds, _Status(), time, console=self.console)
        if self.total is not None:
            self.all = self.shown.add_task("runs", total=self.total, completed=self.done, status="")
        self.shown.start()
        return self

    def __exit__(self, *error: object) -> None:
        for title in list(self.tasks):
            if not title or self.total is not None:
                self._remove(title)
        self.shown.stop()

    def started(self, title: str, completed: int, rounds: int) -> None:
        self._remove("")
        self._add(title, completed, rounds)

    def activity(self, title: str, activity: Activity) -> None:
        if title not in self.tasks:
            self._add(title, 0, None)
        self.shown.update(self.tasks[title], status=f"{self.figures[title]}  {activity}".strip())

    def row(self, title: str, row: Row) -> None:
        self.figures[title] = describe(row)
        self.shown.update(self.tasks[title], completed=row["round"], status=self.figures[title])

    def ended(self, title: str, outcome: str | None = None, failed: bool = False) -> None:
        line = outcome
        if self.total is None:
            self.shown.stop_task(self.tasks.pop(title))
        else:
            counted = self._count(title, outcome, failed)
            line = counted if failed else None
            self._remove(title)
        if line is not None:
            self.console.print(line, soft_wrap=True)

    def _add(self, title: str, completed: int, rounds: int | None) -> None:
        self.figures[title] = ""
        self.tasks[title] = self.shown.add_task(title, total=rounds, completed=completed, status="starting")
        self._show_counts()

    def _remove(self, title: str) -> None:
        if title in self.tasks:
            self.shown.remove_task(self.tasks.pop(title))
        self._show_counts()

    def _show_counts(self) -> None:
        if self.total is not None:
            status = f"{len(self.tasks)} running, {self.failed} failed"
            self.shown.update(self.all, completed=self.done + self.failed, status=status)


class LogDisplay(Display):
    """Prints the first activity, and then a line per evaluated round of a single run, or per ended run of a comparison.

    The remaining seconds of a run are estimated from the rounds that were run since its start.
    """

    silent = True  # True until something is printed

    def started(self, title: str, completed: int, rounds: int) -> None:
        self.run = self.clock(), completed, rounds

    def activity(self, title: str, activity: Activity) -> None:
        if self.silent:
            self._print(f"{title}  {activity}" if title else str(activity))

    def row(self, title: str, row: Row) -> None:
        if self.total is None:
            (since, completed, rounds), number = self.run, row["round"]
            left = (self.clock() - since) / (number - completed) * (rounds - number)
            self._print(f"{title}  round {number}/{rounds}  {describe(row)}  {left:.0f} s left")

    def ended(self, title: str, outcome: str | None = None, failed: bool = False) -> None:
        line = outcome if self.total is None else self._count(title, outcome, failed)
        if line is not None:
            self._print(line)

    def _print(self, line: str) -> None:
        self.silent = False
        self.console.print(line, soft_wrap=True)


class JsonLines:
    """Writes one JSON object per line: for each evaluated round, and for the summary of each run."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def started(self, title: str, completed: int, rounds: int, seed: int) -> None:
        """Stores the title and the seed of the run whose rows follow."""
        self.of: Row = {"event": "round", "algorithm": title, "seed": seed}

    def row(self, row: Row) -> None:
        """Writes the row of an evaluated round as a line."""
        self._write(self.of | row)

    def summary(self, finished: FinishedRun) -> None:
        """Writes the content of `summary.json` of a run, and of its baseline."""
        self._write({"event": "summary", "path": str(finished.path)} | finished.summary)
        if finished.baseline is not None:
            self.summary(finished.baseline)

    def _write(self, content: Row) -> None:
        self.file.write(json.dumps(blank_not_finite(content), allow_nan=False) + "\n")
        self.file.flush()
