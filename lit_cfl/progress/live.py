"""How a run is followed while it goes on."""

import json
from collections.abc import Callable
from math import isfinite
from threading import Event, Thread
from time import monotonic
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from lit_cfl.activity import Activity
from lit_cfl.metric_names import Row, main_score
from lit_cfl.runs.run import FinishedRun
from lit_cfl.scores import ACCURACY

_WIDE, _BAR = 110, 20  # characters, from which there is room for a bar, and its own
_SECONDS = 2.0  # least time between two rounds in a pipe
PATIENCE = 10.0  # seconds without a line there, after which one says what is being done


def describe(row: Row, width: int | None = None) -> str:
    """What matters of a row of `metrics.csv`, in at most 55 characters.

    Args:
        width: leave out what does not fit into so many characters; None = nothing.
    """
    name = main_score(row)
    split = "val" if row[f"val/weighted_{name}"] is not None else "test"
    value, digits = row[f"{split}/weighted_{name}"], ".2f" if name == ACCURACY.name else ".4g"
    parts = [f"{split} {name} {'-' if value is None else f'{value:{digits}}'}", f"clusters {row['clusters/count']}"]
    if row["clusters/ari"] is not None:
        parts.append(f"ARI {row['clusters/ari']:.2f}")
    if row["clusters/unobserved"]:
        parts.append(f"{row['clusters/unobserved']} unplaced")
    while width is not None and len(parts) > 1 and len("  ".join(parts)) > width:
        parts.pop()
    return "  ".join(parts)


def status(row: Row | None, activity: Activity | None, room: int) -> str:
    """The latest row and what is being done, as far as there is room.

    Args:
        room: characters; what is being done is left out before the score is.
    """
    now = "starting" if activity is None else str(activity)
    if row is None:
        return now
    beside = describe(row, room - len(now) - 2)
    fits = activity is not None and len(beside) + len(now) + 2 <= room
    return f"{beside}  {now}" if fits else describe(row, room)


def at_work(activity: Activity, rounds: int, seconds: float) -> str:
    """What a run is doing, in which of its rounds, and for how many seconds it has gone on."""
    at = "" if activity.round is None else f"round {activity.round + 1}/{rounds}  "
    return f"{at}{activity}" + (f"  {seconds:.0f} s so far" if seconds >= 1 else "")


class Beat:
    """Calls a function once a second, in a thread, within the block."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call, self._over = call, Event()

    def __enter__(self) -> Self:
        Thread(target=self._beat, name="progress", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _beat(self) -> None:
        while not self._over.wait(1):
            self.call()


class Display:
    """Follows runs, one after the other; see `RunCallbacks`.

    Used as a context, so that a screen is left as it was found.
    """

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends what is still shown."""

    def doing(self, activity: Activity) -> None:
        """A run does this now; called very often."""

    def started(self, title: str, completed: int, rounds: int, seed: int | None = None) -> None:
        """The rounds of a run begin, or go on after so many completed ones."""

    def row(self, row: Row) -> None:
        """A round was evaluated."""

    def ended(self, reason: str | None) -> None:
        """The run is over; with a reason, it was stopped early."""

    def say_stopped(self, reason: str | None) -> None:
        if reason is not None:
            self.console.print(f"Stopped early: {reason}.", soft_wrap=True, markup=False)


class Nothing(Display):
    """Shows nothing."""


class _Text(ProgressColumn):
    """What a function gives at the moment of drawing."""

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__()
        self.text = text

    def render(self, task: Task) -> Text:
        return Text(self.text())


class Live(Display):
    """A line that is redrawn in place, with a bar where there is room; before the rounds it says what is done."""

    activity: Activity | None = None
    shown: Progress | None = None
    latest: Row | None = None

    def __exit__(self, *error: object) -> None:
        if self.shown is not None:
            self.shown.stop()
            self.shown = None

    def doing(self, activity: Activity) -> None:
        self.activity = activity
        if self.shown is None:
            columns = SpinnerColumn(), _Text(lambda: str(self.activity)), TimeElapsedColumn()
            self._show(Progress(*columns, console=self.console, transient=True)).add_task("")

    def started(self, title: str, completed: int, rounds: int, seed: int | None = None) -> None:
        wide, name = self.console.width >= _WIDE, _named(title, seed)
        bar = [BarColumn(bar_width=_BAR)] if wide else []
        around = f"{name} round {rounds}/{rounds}  0:00:00 left"
        room = self.console.width - len(around) - (_BAR + 1 if wide else 0)
        self.activity = self.latest = None
        progress = self._show(
            Progress(
                TextColumn("[bold]{task.description}"),
                *bar,
                TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
                _Text(lambda: status(self.latest, self.activity, room)),
                TimeRemainingColumn(compact=True),
                TextColumn("left"),
                console=self.console,
            )
        )
        self.task = progress.add_task(name, total=rounds, completed=completed)

    def row(self, row: Row) -> None:
        self.activity, self.latest = None, row
        if self.shown is not None:
            self.shown.update(self.task, completed=row["round"])

    def ended(self, reason: str | None) -> None:
        self.activity = None
        self.__exit__()
        self.say_stopped(reason)

    def _show(self, progress: Progress) -> Progress:
        self.__exit__()
        self.shown = progress
        progress.start()
        return progress


class Lines(Display):
    """A line at most every two seconds, one for the last round, and one whenever nothing was printed for ten seconds.

    Args:
        console: where they go.
        clock: seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(console)
        self.clock, self.begun = clock, clock()
        self.printed_row = self.printed = float("-inf")
        self.title, self.rounds = "", 0
        self.activity: Activity | None = None
        self.held: Row | None = None  # the last row, where it was not printed
        self._beats = Beat(self.beat)

    def __enter__(self) -> Self:
        self._beats.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._beats.__exit__()

    def doing(self, activity: Activity) -> None:
        self.activity = activity
        if self.printed == float("-inf"):
            self.beat()

    def beat(self) -> None:
        """Prints what is being done, if nothing was printed for ten seconds."""
        now, activity = self.clock(), self.activity
        if activity is not None and now - self.printed >= PATIENCE:
            self._print(f"{self.title}{at_work(activity, self.rounds, now - self.begun)}")

    def started(self, title: str, completed: int, rounds: int, seed: int | None = None) -> None:
        self.title, self.before, self.rounds, self.begun = f"{_named(title, seed)}  ", completed, rounds, self.clock()
        self.held = None

    def row(self, row: Row) -> None:
        self.held = row
        if self.clock() - self.printed_row >= _SECONDS:
            self._print_row(row)

    def ended(self, reason: str | None) -> None:
        if self.held is not None:
            self._print_row(self.held)
        self.title, self.activity = "", None
        self.say_stopped(reason)

    def _print_row(self, row: Row) -> None:
        now, done = self.clock(), row["round"]
        left = (now - self.begun) / (done - self.before) * (self.rounds - done)
        self._print(f"{self.title}round {done}/{self.rounds}  {describe(row)}  {left:.0f} s left")
        self.printed_row, self.held = now, None

    def _print(self, line: str) -> None:
        self.printed = self.clock()
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)


class Json(Display):
    """One JSON object a line for each evaluated round, with the columns of `metrics.csv`; blank is null."""

    def started(self, title: str, completed: int, rounds: int, seed: int | None = None) -> None:
        self.of = {"event": "round", "algorithm": title, "seed": seed}

    def row(self, row: Row) -> None:
        self.write(self.of | row)

    def summary(self, finished: FinishedRun) -> None:
        """One object for the run and one for its baseline, with what `summary.json` says."""
        self.write({"event": "summary", "path": str(finished.path)} | finished.summary)
        if finished.baseline is not None:
            self.summary(finished.baseline)

    def write(self, content: Row) -> None:
        finite = {
            key: None if isinstance(value, float) and not isfinite(value) else value for key, value in content.items()
        }
        self.console.file.write(json.dumps(finite, allow_nan=False) + "\n")
        self.console.file.flush()


def _named(title: str, seed: int | None) -> str:
    return title if seed is None else f"{title} seed {seed}"
