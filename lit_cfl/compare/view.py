"""How a comparison is followed while it goes on: its runs in a terminal, a line for each that ends in a pipe."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.jobs import Job, Row, View, summary_of
from lit_cfl.progress import Screen, describe


class Lines(View):
    """A line for each run that is over.

    Args:
        console: where they go.
        comparison: whose runs they are.
        done: runs that were over before.
    """

    def __init__(self, console: Console, comparison: Comparison, done: int) -> None:
        self.console, self.comparison, self.done = console, comparison, done
        self.total = len(comparison.names) * len(comparison.seeds)
        self.failed = 0

    def over(self, job: Job, error: str | None) -> None:
        self.done += error is None
        self.failed += error is not None
        text = f"failed: {error}" if error else self._described(job)
        line = f"{self.done + self.failed}/{self.total}  {job}  {text}"
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _described(self, job: Job) -> str:
        summary = summary_of(job, self.comparison)
        return "" if summary is None else f"{describe(summary)}  {summary['time/elapsed_seconds']:.1f} s"


class Live(Lines):
    """A bar for all runs and a line for each that goes on; those that failed stay above."""

    def __init__(self, console: Console, comparison: Comparison, done: int) -> None:
        super().__init__(console, comparison, done)
        self.progress = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"), TimeElapsedColumn(), console=console,
        )  # fmt: skip
        self.all = self.progress.add_task("runs", total=self.total, completed=done, line="")
        self.tasks: dict[Job, TaskID] = {}

    def __enter__(self) -> "Live":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        for task in self.tasks.values():
            self.progress.remove_task(task)
        self.progress.stop()

    def began(self, job: Job) -> None:
        rounds = self.comparison.experiments[job.name].rounds
        self.tasks[job] = self.progress.add_task(str(job), total=rounds, line="starting")
        self._count()

    def row(self, job: Job, row: Row) -> None:
        self.progress.update(self.tasks[job], completed=row["round"], line=describe(row))

    def over(self, job: Job, error: str | None) -> None:
        self.progress.remove_task(self.tasks.pop(job))
        if error is None:
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
        yield Lines(screen.out, comparison, done)
