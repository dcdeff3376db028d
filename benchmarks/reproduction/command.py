"""`python -m benchmarks.reproduction`: runs what the cells of a paper's table need, and writes it next to ours."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.reproduction import layer_gaps, layer_page, which_method
from benchmarks.reproduction.cells import DEFAULT, PUBLISHED, load_table, table_names
from benchmarks.reproduction.ledger import Ledger
from benchmarks.reproduction.pages import Judged, write_pages
from benchmarks.reproduction.plan import (
    PlannedRun,
    chosen_cells,
    expected_seconds,
    fitting,
    keys_of,
    missing,
    planned_runs,
    runs_of,
    seconds_per_round,
    told_time,
)
from benchmarks.reproduction.recorder import LedgerRecorder
from benchmarks.reproduction.results import RecordedResults
from benchmarks.reproduction.summary import write_summary
from benchmarks.reproduction.which_method_page import page_of, write_page
from lit_cfl.config.variants import base_config, build
from lit_cfl.errors import InputError, Interrupted, LineParser, nearest
from lit_cfl.progress import Screen
from lit_cfl.runs.signals import interruptible
from lit_cfl.storage.lock import locked

_EPILOG = """\
Every run that ends adds a row to DIR/runs.csv and rewrites DIR/TABLE.csv and DIR/TABLE.md. The same command goes on
after it was stopped, also on another machine that has DIR; finished runs are never run again.

  python -m benchmarks.reproduction flexcfl-3 --dry-run
  python -m benchmarks.reproduction flexcfl-3 --only '*-mnist-mclr-*' --variants default published --jobs 2

The table `summary` runs nothing: from the recorded runs it writes the papers' figures, their claims and a summary of
all tables, in one to three minutes. The table `which-method` compares all systems on ten data sets, each with the best
of eight settings.
"""
SUMMARY = "summary"
TABLES, ANSWER, WORK = "docs/reproduction", "docs/which_method", "runs/reproduction"
_OF_RUNS = ("only", "variants", "seeds", "device", "jobs", "work", "dry_run")  # options that say which runs, and how
_NOT_TAKEN = {  # options that would be without effect
    SUMMARY: (*_OF_RUNS, "pages"),
    which_method.TABLE: ("variants", "seeds"),
    layer_page.TABLE: ("variants", "jobs", "work"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 1 if a run failed, 2 for input that cannot be used, 128 + the signal that ended it."""
    try:
        return _reproduce(sys.argv[1:] if arguments is None else arguments)
    except InputError as error:
        print(f"reproduction: error: {error}", file=sys.stderr)
        return 2


def _reproduce(arguments: Sequence[str]) -> int:
    given, screen = _parser().parse_args(list(arguments)), Screen()
    if given.table not in _names():
        raise InputError(
            f"there is no table {given.table!r}{nearest(given.table, _names())}; there are {', '.join(_names())}"
        )
    if given.jobs is not None and given.jobs < 1:
        raise InputError(f"--jobs is {given.jobs}; give 1 or more")
    _refuse_without_effect(given)
    if given.table == SUMMARY:
        return _summarise(Path(given.out or TABLES), screen)
    if given.table == which_method.TABLE:
        return _which_method(given, screen)
    if given.table == layer_page.TABLE:
        return _layer_figures(given, screen)
    return _table(given, screen)


def _refuse_without_effect(given: argparse.Namespace) -> None:
    """Refuses options that the table, or `--pages`, would not use."""
    not_taken = {given.table: _NOT_TAKEN.get(given.table, ())}
    if given.pages:
        not_taken[f"{given.table} --pages"] = _OF_RUNS
    for command, names in not_taken.items():
        for name in names:
            if getattr(given, name):
                raise InputError(f"{command} takes no --{name.replace('_', '-')}; leave it out")


def _table(given: argparse.Namespace, screen: Screen) -> int:
    """Runs what a table's cells need, and judges them."""
    table = load_table(given.table)
    known = tuple(dict.fromkeys(table.seeds + table.populations))
    _require_known(given.seeds, known)
    out = Path(given.out or TABLES)
    everything = planned_runs(table, (*table.cells, *table.extras))
    variants = fitting(list(dict.fromkeys(run.setting.variant for run in everything)), given.variants, "variant")
    settings = (setting for cell in chosen_cells(table, given.only) for setting in table.settings(cell))
    chosen = {setting for setting in settings if setting.variant in variants}
    seeds = given.seeds or known
    wanted = {run.key for run in everything if run.setting in chosen and run.seed in seeds}
    ledger = Ledger.read(out)
    todo = missing([run for run in everything if run.key in wanted], ledger)
    if given.dry_run:
        _show_plan(screen, todo, len(wanted), ledger)
        return 0
    keys = keys_of(everything)

    def write(ledger: Ledger) -> str:
        return _cells_done(write_pages(out, table, ledger, keys))

    recorder = LedgerRecorder(table.name, ledger, Path(given.work or WORK), screen, write)

    def work(check: Callable[[], None]) -> int:
        write(ledger)
        errors = {} if given.pages else recorder.run(todo, given.device, given.jobs, check)
        verdicts = [judged.verdict for judged in write_pages(out, table, recorder.ledger, keys)]
        _show_counts(screen, "cells", verdicts, out / f"{table.name}.md")
        return _show_errors(screen, errors)

    return _run_until_signal(out, screen, work)


def _require_known(seeds: Sequence[int] | None, known: Sequence[int]) -> None:
    """Refuses seeds that are none of a table's."""
    if unknown := sorted(set(seeds or ()) - set(known)):
        raise InputError(f"--seeds {unknown[0]} is none of this table's: {known}")


def _run_until_signal(out: Path, screen: Screen, work: Callable[[Callable[[], None]], int]) -> int:
    """Runs `work`, which is handed a check for signals, in a folder that no other command may write to meanwhile."""
    try:
        with locked(out, "--out"), interruptible() as check:
            return work(check)
    except Interrupted as stop:
        screen.say(f"Interrupted; what is finished is in {out}. The same command goes on.")
        return 128 + stop.signum


def _show_errors(screen: Screen, errors: Mapping[str, str]) -> int:
    """Names the runs that failed; returns the exit code."""
    for name, error in errors.items():
        screen.say(f"{name} failed: {error}")
    return 1 if errors else 0


def _summarise(out: Path, screen: Screen) -> int:
    """Writes what follows from the recorded runs of all tables. Runs may go on meanwhile."""
    write_summary(out, RecordedResults.read(out))
    screen.say(f"Summary: {out / 'summary.md'}")
    return 0


def _which_method(given: argparse.Namespace, screen: Screen) -> int:
    """Searches and compares all systems, data set by data set; see `which_method`."""
    protocol, out = which_method.Protocol.read(), Path(given.out or ANSWER)
    if not out.name:
        raise InputError(f"--out {out}: the page is written beside the folder; name one, such as {ANSWER}")
    data = fitting(list(protocol.data), given.only, "data set")
    ledger = Ledger.read(out)
    if given.dry_run:
        _show_work(screen, protocol, ledger, data)
        return 0
    recorder = LedgerRecorder(
        which_method.TABLE,
        ledger,
        Path(given.work or WORK),
        screen,
        lambda ledger: write_page(out, protocol, ledger),
        curves=False,
    )

    def work(check: Callable[[], None]) -> int:
        errors: dict[str, str] = {}
        write_page(out, protocol, ledger)
        wanted = [] if given.pages else data
        if wanted:
            _show_work(screen, protocol, ledger, wanted)
        for name in wanted:
            failed: dict[str, str] = {}
            while (todo := _open_runs(protocol, recorder.ledger, [name])) and not failed:
                failed = recorder.run(todo, given.device, given.jobs, check)  # trials, then the best of them
            errors |= failed
        screen.say(f"Answer: {page_of(out)}")
        return _show_errors(screen, errors)

    return _run_until_signal(out, screen, work)


def _show_work(screen: Screen, protocol: which_method.Protocol, ledger: Ledger, data: Sequence[str]) -> None:
    """Prints how many runs of each data set are missing, and how long they take."""
    times: list[float | None] = []
    for name in data:
        config, total = protocol.data[name]["config"], protocol.num_runs(name)
        per_round = seconds_per_round(config, ledger)
        seconds = None if per_round is None else per_round * build(base_config(config), []).rounds
        left = total - protocol.num_recorded(name, ledger)
        times += [seconds] * left
        each = "" if seconds is None else f", {seconds:.0f} s each"
        screen.say(f"{name}: {left} of {total} runs are missing{each}")
    screen.say(told_time(times))


def _open_runs(protocol: which_method.Protocol, ledger: Ledger, data: Sequence[str]) -> list[PlannedRun]:
    """Returns the runs that are missing and can start by now."""
    return [
        run
        for setting in protocol.settings(ledger, data)
        for run in runs_of(setting, [s for s in setting.seeds if which_method.recorded(ledger, setting, s) is None])
    ]


def _layer_figures(given: argparse.Namespace, screen: Screen) -> int:
    """Measures what LayerCFL's figures need, and judges what they say."""
    out, content = Path(given.out or TABLES), layer_gaps.plan()
    known = layer_gaps.measurements(content)
    seeds = sorted({m.seed for m in known})
    _require_known(given.seeds, seeds)
    fit = fitting([m.file for m in known], given.only, "measurement")
    chosen = [m for m in known if m.file in fit and (given.device or m.net not in content["with_device"])]
    if not chosen:
        hours = told_time(3600 * layer_gaps.core_hours(content, m) for m in known if m.file in fit)
        raise InputError(f"these are measured on a GPU: give --device cuda, or --device cpu for {hours}")
    left = layer_page.missing_measurements(out, content)
    wanted = [m for m in left if m in chosen and m.seed in (given.seeds or seeds)]
    if given.dry_run:
        for measurement in wanted:
            screen.say(str(measurement))
        times = [3600 * layer_gaps.core_hours(content, m) for m in wanted]
        _show_missing(screen, len(chosen), "measurements", times)
        return 0

    def work(check: Callable[[], None]) -> int:
        layer_page.run_missing(out, [] if given.pages else wanted, screen.say, check, given.device or "cpu")
        verdicts = [row["verdict"] for row in layer_page.write_page(out)]
        _show_counts(screen, "statements", verdicts, out / f"{layer_page.TABLE}.md")
        return 0

    return _run_until_signal(out, screen, work)


def _names() -> list[str]:
    return [*table_names(), layer_page.TABLE, which_method.TABLE, SUMMARY]


def _parser() -> LineParser:
    parser = LineParser(
        prog="python -m benchmarks.reproduction",
        description="Runs what the cells of a paper's table need, and writes the paper's numbers beside ours.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("table", metavar="TABLE", help=", ".join(_names()))
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="only the cells that fit one",
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help=f"only the options of these names: {DEFAULT}, {PUBLISHED} (the published code's), or some tried later",
    )
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="only these of the table's seeds")
    parser.add_argument("--device", help="cpu, cuda or cuda:<i> (default: as the experiments say)")
    parser.add_argument("--jobs", type=int, metavar="N", help="cores to use, a run each (default: all)")
    parser.add_argument("--out", metavar="DIR", help=f"where the tables go ({TABLES}; {which_method.TABLE}: {ANSWER})")
    parser.add_argument("--work", metavar="DIR", help=f"where the runs go ({WORK})")
    parser.add_argument("--pages", action="store_true", help="write the table from the recorded runs, and run nothing")
    parser.add_argument("--dry-run", action="store_true", help="show what would run, and how long")
    return parser


def _show_plan(screen: Screen, todo: Sequence[PlannedRun], total: int, ledger: Ledger) -> None:
    times = [expected_seconds(run, ledger) for run in todo]
    for run, seconds in zip(todo, times, strict=True):
        screen.say(f"{run}  {'' if seconds is None else f'{seconds:.0f} s'}")
    _show_missing(screen, total, "runs", times)


def _show_missing(screen: Screen, total: int, what: str, seconds: Sequence[float | None]) -> None:
    """Prints how many are missing, and how long they take together."""
    screen.say(f"{len(seconds)} of {total} {what} are missing{f': {told_time(seconds)}' if seconds else ''}")


def _cells_done(judged: Sequence[Judged]) -> str:
    done = sum(cell.verdict not in ("not run", "no value") for cell in judged)
    return f"{done} of {len(judged)} cells"


def _show_counts(screen: Screen, what: str, verdicts: Sequence[str], page: Path) -> None:
    told = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
    screen.say(f"{len(verdicts)} {what}: {told}")
    screen.say(f"Table: {page}")
