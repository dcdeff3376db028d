"""How a comparison is followed while it goes on: its runs in a terminal; in a pipe lines, one for each that ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lit_cfl.activity import Activity
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.jobs import Job, View, summary_of
from lit_cfl.metric_names import Row
from lit_cfl.progress import Screen, describe
from lit_cfl.progress.live import PATIENCE, Beat, at_work, status

_STARTING = Activity("starting")  # its process, before it can tell what it does
_BAR = 20  # characters


@dataclass
class Running:
    """A run that goes on. As a text, it is what a terminal shows of it.

    Args:
        room: characters of that text.
        since: when it began, in seconds.
        activity: what it does now.
        row: its latest of `metrics.csv`.
    """

    room: int
    since: float
    activity: Activity = _STARTING
    row: Row | None = None

    def __str__(self) -> str:
        return status(self.row, self.activity, self.room)


class Lines(View):
    """A line for each run that is over, and one for each that goes on whenever nothing was printed for ten seconds.

    Args:
        console: where they go.
        comparison: whose runs they are.
        done: runs that were over before.
        clock: seconds.
    """

    def __init__(
        self, console: Console, comparison: Comparison, done: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self.console, self.comparison, self.done, self.clock = console, comparison, done, clock
        self.total = len(comparison.names) * len(comparison.seeds)
        self.failed = 0
        self.running: dict[Job, Running] = {}
        self.printed = float("-inf")
        self._beats = Beat(self.beat)

    def __enter__(self) -> Self:
        self._beats.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._beats.__exit__()

    def began(self, job: Job) -> None:
        self.running[job] = Running(0, self.clock())

    def doing(self, job: Job, activity: Activity) -> None:
        self.running[job].activity = activity
        if self.printed == float("-inf"):
            self.beat()

    def beat(self) -> None:
        """Prints what each run is doing, if nothing was printed for ten seconds."""
        if self.clock() - self.printed < PATIENCE:
            return
        for job, now in list(self.running.items()):
            rounds = self.comparison.experiments[job.name].rounds
            self._print(f"{job}  {at_work(now.activity, rounds, self.clock() - now.since)}")

    def over(self, job: Job, error: str | None) -> None:
        del self.running[job]
        self.done += error is None
        self.failed += error is not None
        text = f"failed: {error}" if error else self._described(job)
        self._print(f"{self.done + self.failed}/{self.total}  {job}  {text}")

    def _print(self, line: str) -> None:
        self.printed = self.clock()
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _described(self, job: Job) -> str:
        summary = summary_of(job, self.comparison)
        return "" if summary is None else f"{describe(summary)}  {summary['time/elapsed_seconds']:.1f} s"


class Live(Lines):
    """A bar for all runs and a line for each that goes on, with what it does; those that failed stay above."""

    def __init__(self, console: Console, comparison: Comparison, done: int) -> None:
        super().__init__(console, comparison, done)
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=_BAR),
            MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self.all = self.progress.add_task("runs", total=self.total, completed=done, line="")
        self.tasks: dict[Job, TaskID] = {}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        for task in self.tasks.values():
            self.progress.remove_task(task)
        self.progress.stop()

    def began(self, job: Job) -> None:
        rounds = self.comparison.experiments[job.name].rounds
        room = self.console.width - len(f"{job}  {rounds}/{rounds}  0:00:00 ") - _BAR
        self.running[job] = Running(room, self.clock())
        self.tasks[job] = self.progress.add_task(str(job), total=rounds, line=self.running[job])
        self._count()

    def doing(self, job: Job, activity: Activity) -> None:
        self.running[job].activity = activity

    def row(self, job: Job, row: Row) -> None:
        self.running[job].row = row
        self.progress.update(self.tasks[job], completed=row["round"])

    def over(self, job: Job, error: str | None) -> None:
        self.progress.remove_task(self.tasks.pop(job))
        if error is None:
            del self.running[job]
            self.done += 1
        else:
            super().over(job, error)
        self._count()

    def _count(self) -> None:
        line = f"{len(self.tasks)} running, {self.failed} failed"
        self.progress.update(self.all, completed=self.done + self.failed, line=line)


@contextmanager
def following(screen: Screen, comparison: Comparison, done: int) -> Iterator[View]:
    """What suits where the output goes.

    Args:
        screen: of the command.
        comparison: whose runs are followed.
        done: runs that were over before.
    """
    if screen.quiet:
        yield View()
    elif screen.live:
        with Live(screen.out, comparison, done) as live:
            yield live
    else:
        with Lines(screen.out, comparison, done) as lines:
            yield lines
