"""Displays of ongoing runs: redrawn lines in a terminal, a log elsewhere, JSON for programs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import IO, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from lit_cfl.activity import Activity
from lit_cfl.metric_names import Row, main_score
from lit_cfl.runs.run import FinishedRun
from lit_cfl.scores import ACCURACY, title_of
from lit_cfl.storage.atomic_writes import blank_not_finite

_STARTING = Activity("starting")  # activity of a run that has not reported any
_BAR = 20  # length of a progress bar in characters
_SECONDS = 2.0  # minimum time between two rounds in a log
PATIENCE = 10.0  # seconds without output in a log, after which the current activity is printed


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


@dataclass
class RunProgress:
    """How far a run is: its rounds, its current activity and its latest row.

    Args:
        since: Time of the run's start, in seconds.
        rounds: Rounds of the whole run; 0 = not known yet.
        completed: Rounds completed before the start.
        activity: Current activity; None = none since the latest row.
        row: Latest row of `metrics.csv`.
    """

    since: float
    rounds: int = 0
    completed: int = 0
    activity: Activity | None = _STARTING
    row: Row | None = None

    def status(self) -> str:
        """Describes the latest row and the activity."""
        known = [] if self.row is None else [describe(self.row)]
        doing = [] if known and self.activity is None else [str(self.activity or _STARTING)]
        return "  ".join(known + doing)

    def at_work(self, now: float) -> str:
        """Describes the activity, its round, and the elapsed seconds of the run."""
        at = None if self.activity is None else self.activity.round
        of = "" if at is None else f"round {at + 1}/{self.rounds}  "
        seconds = now - self.since
        return f"{of}{self.activity}" + (f"  {seconds:.0f} s so far" if seconds >= 1 else "")

    def seconds_left(self, now: float) -> float:
        """Estimates the remaining seconds of the run, which must have a row already."""
        done = self.row["round"] if self.row is not None else self.completed
        return (now - self.since) / (done - self.completed) * (self.rounds - done)


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
        self.running: dict[str, RunProgress] = {}

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


class _Call(ProgressColumn):
    """A column that shows a function's result for a task. If the line is too long, `shortened` columns are cut."""

    def __init__(self, text: Callable[[Task], str], style: str = "", shortened: bool = False) -> None:
        super().__init__(Column(no_wrap=not shortened))
        self.text, self.style = text, style

    def render(self, task: Task) -> Text:
        return Text(self.text(task), style=self.style, no_wrap=True, overflow="ellipsis")


class _Time(TimeRemainingColumn):
    """A column with the remaining time of a run; on other lines, the elapsed time."""

    max_refresh = 0

    def render(self, task: Task) -> Text:
        if task.total is None or "runs" in task.fields:
            seconds = int(task.elapsed or 0)
            return Text(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}", style="progress.elapsed")
        return super().render(task) + Text(" left")


class TerminalDisplay(Display):
    """Redraws one line per ongoing run.

    The line of a single run stays after its end. A comparison has a line with a bar for all runs, which stays; of its
    single runs only the errors stay, above it.
    """

    shown: Progress | None = None

    def __enter__(self) -> Self:
        self.tasks: dict[str, TaskID] = {}
        if self.total is not None:
            self._open()
        return self

    def __exit__(self, *error: object) -> None:
        for title in [title for title in self.tasks if not title or self.total is not None]:
            self._remove(title)
        self._close()

    def started(self, title: str, completed: int, rounds: int) -> None:
        self._remove("")
        self._add(title, RunProgress(self.clock(), rounds, completed))

    def activity(self, title: str, activity: Activity) -> None:
        if title in self.running:
            self.running[title].activity = activity
        else:
            self._add(title, RunProgress(self.clock(), activity=activity))

    def row(self, title: str, row: Row) -> None:
        run = self.running[title]
        run.activity, run.row = None, row
        self._open().update(self.tasks[title], completed=row["round"])

    def ended(self, title: str, outcome: str | None = None, failed: bool = False) -> None:
        if self.total is None:
            self._close()
            del self.running[title]
            line = outcome
        else:
            self._remove(title)
            counted = self._count(title, outcome, failed)
            line = counted if failed else None
            self._open().update(self.all, completed=self.done + self.failed)
        if line is not None:
            self.console.print(line, soft_wrap=True)

    def _open(self) -> Progress:
        if self.shown is None:
            bar = [] if self.total is None else [BarColumn(bar_width=_BAR)]
            title = _Call(lambda task: task.description or self._status(task), "bold")
            status = _Call(lambda task: self._status(task) if task.description else "", shortened=True)
            columns = title, *bar, _Call(_rounds), status, _Time(compact=True)
            self.shown = Progress(*columns, console=self.console)
            if self.total is not None:
                self.all = self.shown.add_task("runs", total=self.total, completed=self.done, runs=True)
            self.shown.start()
        return self.shown

    def _close(self) -> None:
        if self.shown is not None:
            self.shown.stop()
        self.shown, self.tasks = None, {}

    def _add(self, title: str, run: RunProgress) -> None:
        self.running[title] = run
        self.tasks[title] = self._open().add_task(title, total=run.rounds or None, completed=run.completed)

    def _remove(self, title: str) -> None:
        self.running.pop(title, None)
        if title in self.tasks:
            self._open().remove_task(self.tasks.pop(title))

    def _status(self, task: Task) -> str:
        if "runs" in task.fields:
            return f"{len(self.tasks)} running, {self.failed} failed"
        run = self.running.get(task.description)
        return "" if run is None else run.status()


def _rounds(task: Task) -> str:
    if task.total is None:
        return ""
    return f"{'' if 'runs' in task.fields else 'round '}{task.completed:.0f}/{task.total:.0f}"


class LogDisplay(Display):
    """Prints a line per round of a single run, at most every two seconds, or per ended run of a comparison.

    At the first activity, and whenever nothing was printed for ten seconds, each run's activity is printed.
    """

    printed_row = printed = float("-inf")  # times of the last printed round and of the last printed line
    silent = True  # True until something is printed
    held: Row | None = None  # the latest row of a single run, if it was not printed

    def __enter__(self) -> Self:
        self._over, self.printed = Event(), self.clock()
        Thread(target=self._beat, name="progress", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _beat(self) -> None:
        while not self._over.wait(1):
            self.beat()

    def beat(self, at_once: bool = False) -> None:
        """Prints the current activity of each run, but only if `at_once` or after ten seconds of silence."""
        now = self.clock()
        if not at_once and now - self.printed < PATIENCE:
            return
        for title, run in list(self.running.items()):
            if run.activity is not None:
                self._print(f"{title}  {run.at_work(now)}" if title else run.at_work(now))

    def started(self, title: str, completed: int, rounds: int) -> None:
        self.running.pop("", None)
        self.running[title] = RunProgress(self.clock(), rounds, completed)

    def activity(self, title: str, activity: Activity) -> None:
        self.running.setdefault(title, RunProgress(self.clock())).activity = activity
        if self.silent:
            self.beat(at_once=True)

    def row(self, title: str, row: Row) -> None:
        self.running[title].row = row
        if self.total is None:
            self.held = row
            if self.clock() - self.printed_row >= _SECONDS:
                self._print_row(title)

    def ended(self, title: str, outcome: str | None = None, failed: bool = False) -> None:
        if self.held is not None:
            self._print_row(title)
        del self.running[title]
        line = outcome if self.total is None else self._count(title, outcome, failed)
        if line is not None:
            self._print(line)

    def _print_row(self, title: str) -> None:
        run, row, now = self.running[title], self.held, self.clock()
        if row is not None:
            left = run.seconds_left(now)
            self._print(f"{title}  round {row['round']}/{run.rounds}  {describe(row)}  {left:.0f} s left")
        self.printed_row, self.held = now, None

    def _print(self, line: str) -> None:
        self.printed, self.silent = self.clock(), False
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
