"""How a run is followed while it goes on."""

import json
from collections.abc import Callable
from math import isfinite
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lit_cfl.run import Finished

Row = dict[str, Any]
_WIDE, _BAR = 110, 20  # characters, from which there is room for a bar, and its own
_SECONDS = 2.0  # least time between two lines in a pipe


def describe(row: Row, width: int | None = None) -> str:
    """What matters of a row of `metrics.csv`, in at most 55 characters.

    Args:
        width: leave out what does not fit into so many characters; None = nothing.
    """
    split = "val" if row["val/weighted_accuracy"] is not None else "test"
    accuracy = row[f"{split}/weighted_accuracy"]
    parts = [f"{split} accuracy {'-' if accuracy is None else f'{accuracy:.2f}'}", f"clusters {row['clusters/count']}"]
    if row["clusters/ari"] is not None:
        parts.append(f"ARI {row['clusters/ari']:.2f}")
    if row["clusters/unobserved"]:
        parts.append(f"{row['clusters/unobserved']} unplaced")
    while width is not None and len(parts) > 1 and len("  ".join(parts)) > width:
        parts.pop()
    return "  ".join(parts)


class Display:
    """Follows runs, one after the other; see `Watch`."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def started(self, title: str, first: int, rounds: int, seed: int | None = None) -> None:
        """A run begins, or goes on, with round `first`."""

    def row(self, row: Row) -> None:
        """A round was evaluated."""

    def ended(self, reason: str | None) -> None:
        """The run is over; with a reason, it was stopped early."""

    def say_stopped(self, reason: str | None) -> None:
        if reason is not None:
            self.console.print(f"Stopped early: {reason}.", soft_wrap=True, markup=False)


class Nothing(Display):
    """Shows nothing."""


class Live(Display):
    """A line that is redrawn in place, with a bar where there is room."""

    def started(self, title: str, first: int, rounds: int, seed: int | None = None) -> None:
        wide, name = self.console.width >= _WIDE, _named(title, seed)
        bar = [BarColumn(bar_width=_BAR)] if wide else []
        around = f"{name} round {rounds}/{rounds}  0:00:00 left"
        self.room = self.console.width - len(around) - (_BAR + 1 if wide else 0)
        self.progress = Progress(
            TextColumn("[bold]{task.description}"), *bar, TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[line]}"), TimeRemainingColumn(compact=True), TextColumn("left"),
            console=self.console,
        )  # fmt: skip
        self.task = self.progress.add_task(name, total=rounds, completed=first, line="starting")
        self.progress.start()

    def row(self, row: Row) -> None:
        self.progress.update(self.task, completed=row["round"] + 1, line=describe(row, self.room))

    def ended(self, reason: str | None) -> None:
        self.progress.stop()
        self.say_stopped(reason)


class Lines(Display):
    """A line at most every two seconds, and one for the last round.

    Args:
        console: where they go.
        clock: seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(console)
        self.clock, self.printed = clock, float("-inf")

    def started(self, title: str, first: int, rounds: int, seed: int | None = None) -> None:
        self.title, self.first, self.rounds, self.begun = _named(title, seed), first, rounds, self.clock()
        self.held: Row | None = None  # the last row, where it was not printed

    def row(self, row: Row) -> None:
        self.held = row
        if self.clock() - self.printed >= _SECONDS:
            self._print(row)

    def ended(self, reason: str | None) -> None:
        if self.held is not None:
            self._print(self.held)
        self.say_stopped(reason)

    def _print(self, row: Row) -> None:
        now, done = self.clock(), row["round"] + 1
        left = (now - self.begun) / (done - self.first) * (self.rounds - done)
        line = f"{self.title}  round {done}/{self.rounds}  {describe(row)}  {left:.0f} s left"
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)
        self.printed, self.held = now, None


class Json(Display):
    """One JSON object a line for each evaluated round, with the columns of `metrics.csv`; blank is null."""

    def started(self, title: str, first: int, rounds: int, seed: int | None = None) -> None:
        self.of = {"event": "round", "algorithm": title, "seed": seed}

    def row(self, row: Row) -> None:
        self.write(self.of | row)

    def summary(self, finished: Finished) -> None:
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
