"""`lit-cfl reproduce`: runs what the cells of a paper's table need, and writes the table beside ours."""

import argparse
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from lit_cfl.activity import Activity
from lit_cfl.compare.command import run_jobs
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.jobs import CompareJob
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.errors import InputError, Interrupted, LineParser
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import Row
from lit_cfl.progress import Screen
from lit_cfl.progress.live import Display
from lit_cfl.reproduce.cells import PaperTable, load_table, table_names
from lit_cfl.reproduce.ledger import Ledger, results_version
from lit_cfl.reproduce.pages import Judged, write_pages
from lit_cfl.reproduce.plan import PlannedRun, chosen_cells, expected_seconds, keys_of, missing, planned_runs, told_time
from lit_cfl.reproduce.results import Results
from lit_cfl.reproduce.scores import run_curve, run_scores
from lit_cfl.reproduce.summary import write_summary
from lit_cfl.runs.signals import interruptible
from lit_cfl.storage.config_file import stored_config, write_config
from lit_cfl.storage.lock import locked

_EPILOG = """\
Every run that ends adds a row to DIR/runs.csv and rewrites DIR/TABLE.csv and DIR/TABLE.md. The same command goes on
after it was stopped, also on another machine that has DIR; finished runs are never run again.

  lit-cfl reproduce flexcfl-3 --dry-run
  lit-cfl reproduce flexcfl-3 --only '*-mnist-mclr-*' --jobs 2

`lit-cfl reproduce summary` runs nothing: from the recorded runs it writes the papers' figures, their claims and a
summary of all tables, in about a minute.
"""
SUMMARY = "summary"


def reproduce(arguments: Sequence[str]) -> int:
    """Runs the command. Returns 1 where a run failed, 128 + the signal where one ended it."""
    given, screen = _parser().parse_args(list(arguments)), Screen()
    if given.table == SUMMARY:
        return _summarise(Path(given.out), screen)
    table = load_table(given.table)
    known = tuple(dict.fromkeys(table.seeds + table.populations))
    if unknown := sorted(set(given.seeds or ()) - set(known)):
        raise InputError(f"--seeds {unknown[0]} is none of this table's, which were fixed before any run: {known}")
    if given.jobs is not None and given.jobs < 1:
        raise InputError(f"--jobs is {given.jobs}; give 1 or more")
    out = Path(given.out)
    everything = planned_runs(table, (*table.cells, *table.extras))
    wanted = {run.key for run in planned_runs(table, chosen_cells(table, given.only), given.seeds or ())}
    ledger = Ledger.read(out)
    todo = missing([run for run in everything if run.key in wanted], ledger)
    if given.dry_run:
        _show_plan(screen, todo, len(wanted), ledger)
        return 0
    recorder = _Recorder(table, out, ledger, everything, Path(given.work), screen)
    try:
        with locked(out, "--out"), interruptible() as check:
            recorder.write_pages()
            errors = {} if given.pages else recorder.run(todo, given.device, given.jobs, check)
    except Interrupted as stop:
        screen.say(f"Interrupted; finished runs are in {out}. The same command goes on.")
        return 128 + stop.signum
    _show_verdicts(screen, recorder.write_pages(), out / f"{table.name}.md")
    for name, error in errors.items():
        screen.say(f"{name} failed: {error}")
    return 1 if errors else 0


def _summarise(out: Path, screen: Screen) -> int:
    """Writes what follows from the recorded runs of all tables. Runs may go on meanwhile."""
    write_summary(out, Results.read(out))
    screen.say(f"Summary: {out / 'summary.md'}")
    return 0


def _parser() -> LineParser:
    parser = LineParser(
        prog="lit-cfl reproduce",
        description="Runs what the cells of a paper's table need, and writes the paper's numbers beside ours.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("table", metavar="TABLE", help=f"{', '.join(table_names())}; or {SUMMARY}")
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="only cells whose ids fit one")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="only these of the table's seeds")
    parser.add_argument("--device", help="cpu, cuda or cuda:<i> (default: as the experiments say)")
    parser.add_argument("--jobs", type=int, metavar="N", help="cores to use, a run each (default: all)")
    parser.add_argument("--out", default="docs/reproduction", metavar="DIR", help="where the tables go (%(default)s)")
    parser.add_argument("--work", default="runs/reproduction", metavar="DIR", help="where the runs go (%(default)s)")
    parser.add_argument("--pages", action="store_true", help="write the table from the recorded runs, and run nothing")
    parser.add_argument("--dry-run", action="store_true", help="show what would run, and how long")
    return parser


def _show_plan(screen: Screen, todo: Sequence[PlannedRun], total: int, ledger: Ledger) -> None:
    times = {run.key: expected_seconds(run, ledger) for run in todo}
    for run in todo:
        seconds = times[run.key]
        screen.say(f"{run}  {'' if seconds is None else f'{seconds:.0f} s'}")
    screen.say(f"{len(todo)} of {total} runs are missing: {told_time(times)}")


def _show_verdicts(screen: Screen, cells: Sequence[Judged], page: Path) -> None:
    verdicts = [judged.verdict for judged in cells]
    told = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
    screen.say(f"{len(cells)} cells: {told}")
    screen.say(f"Table: {page}")


class _Recorder(Display):
    """Records every run that ends, and passes on to a display what there is to show.

    Args:
        table: of the paper.
        out: folder of the ledger and the pages.
        ledger: as it is now.
        runs: all that the table needs.
        work: folder of the run directories.
        screen: of the command.
    """

    def __init__(
        self,
        table: PaperTable,
        out: Path,
        ledger: Ledger,
        runs: Sequence[PlannedRun],
        work: Path,
        screen: Screen,
    ) -> None:
        super().__init__(screen.out)
        self.table, self.out, self.ledger, self.work, self.screen = table, out, ledger, work, screen
        self.keys = keys_of(runs)
        self.jobs: dict[str, tuple[CompareJob, PlannedRun]] = {}  # those that have not ended, by the title in a display
        self.display = Display(screen.out)

    def write_pages(self) -> list[Judged]:
        """Writes the table's files from the ledger."""
        return write_pages(self.out, self.table, self.ledger, self.keys)

    def run(
        self, todo: Sequence[PlannedRun], device: str | None, cores: int | None, check: Callable[[], None]
    ) -> dict[str, str]:
        """Runs what is missing; returns why runs failed, by their names."""
        if not todo:
            return {}
        jobs = [self._job(run, device) for run in todo]
        self.jobs = {str(job): (job, run) for job, run in zip(jobs, todo, strict=True)}
        titled = {title: run for title, (_, run) in self.jobs.items()}
        experiments = {job.name: self._planned(run) for job, run in self.jobs.values()}
        with self.screen.display(len(todo), 0) as self.display:
            failed = run_jobs(jobs, Comparison(self.table.name, experiments, [0]), cores, self, check)
        return {str(titled[str(job)]): error for job, error in failed.items()}

    def _planned(self, run: PlannedRun) -> Experiment:
        return replace(run.experiment, plan=_plan(run))

    def _job(self, run: PlannedRun, device: str | None) -> CompareJob:
        """The run as a job, with its configuration written where the job reads it."""
        folder = self.work / run.key
        job = CompareJob(folder.resolve(), run.setting.slug, run.seed)
        entry = folder / job.name
        entry.mkdir(parents=True, exist_ok=True)
        config = dict(run.experiment.described()) | {"pictures": {"formats": []}, "plan": vars(_plan(run))}
        write_config(entry, config | ({} if device is None else {"device": device}))
        return job

    def started(self, title: str, completed: int, rounds: int) -> None:
        self.display.started(title, completed, rounds)

    def activity(self, title: str, activity: Activity) -> None:
        self.display.activity(title, activity)

    def row(self, title: str, row: Row) -> None:
        self.display.row(title, row)

    def ended(self, title: str, outcome: str | None = None, failed: bool = False) -> None:
        job, run = self.jobs.pop(title)
        if not failed:
            self.ledger = self.ledger.with_run(_ledger_row(run, job.folder), run_curve(job.folder))
            judged = self.write_pages()
            outcome = f"{outcome or ''}  {self._still_open(judged)}".lstrip()
        self.display.ended(title, outcome, failed)

    def _still_open(self, judged: Sequence[Judged]) -> str:
        """Says how many cells have a verdict by now, and how much work is left."""
        done = sum(cell.verdict not in ("not run", "no value") for cell in judged)
        left = told_time({run.key: expected_seconds(run, self.ledger) for _, run in self.jobs.values()})
        return f"{done} of {len(judged)} cells, {left} left"


def _plan(run: PlannedRun) -> PlanOptions:
    """The experiment's plan, in one thread unless it says otherwise: runs go on side by side."""
    plan = run.experiment.plan or PlanOptions()
    return replace(plan, threads=plan.threads or 1)


def _ledger_row(run: PlannedRun, folder: Path) -> Row:
    scores = run_scores(folder)
    plan = (stored_config(folder) or {})["plan"]
    algorithm = type(run.experiment.algorithm).__name__
    return scores | {
        "run": run.key,
        "seed": run.seed,
        "algorithm": algorithm,
        "results_version": results_version(algorithm),
        "version": version("lit-cfl"),
        "commit": _commit(),
        "device": plan["device"],
        "plan": plan,
        "command": run.setting.command(run.seed),
    }


def _commit() -> str:
    """The commit of the checkout that the code is in; empty without one."""
    git = shutil.which("git")
    if git is None:
        return ""
    words = [git, "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
