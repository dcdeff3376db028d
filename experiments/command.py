"""`python -m experiments`: runs what a paper's table needs, and compares its numbers with ours."""

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from experiments import flux_table, which_method
from experiments.cells import DEFAULT, PUBLISHED, Setting, load_table, table_names
from experiments.files import lock_folder
from experiments.ledger import Ledger
from experiments.pages import write_pages
from experiments.plan import (
    PlannedRun,
    estimate_seconds,
    find_missing,
    format_time,
    group_keys,
    list_runs,
    match_names,
    plan_runs,
    select_cells,
)
from experiments.recorded_configs import record_configs
from experiments.recorder import LedgerRecorder
from experiments.results import RecordedResults
from experiments.summary import check_pages, write_everything
from experiments.which_method_page import page_of, write_page
from lit_cfl.errors import InputError, Interrupted

_EPILOG = """\
Every finished run adds a row to DIR/runs.csv and rewrites DIR/TABLE.csv and DIR/TABLE.md. The same command resumes
if it was stopped, also on another machine that has DIR; finished runs are never repeated.

  python -m experiments flexcfl-3 --dry-run
  python -m experiments flexcfl-3 --only '*-mnist-mclr-*' --variants default published --jobs 2
  python -m experiments which-method --only FEMNIST/FedProx --variants 'trial 3' --out /tmp/one

The table `summary` runs nothing: from the recorded runs it writes all tables, the papers' figures, their claims and a
summary, in one to three minutes. With --check it only says which recorded pages differ from what it would write, also
the page of `which-method`. The table `which-method` compares all systems on all data sets, each with the best setting
found by a search; it writes its page before the first run and after the last one.

`flux-table` (with --help) repeats FLUX's experiments; `record-configs` keeps the configurations of new recorded runs.
"""
SUMMARY, FLUX, RECORD = "summary", "flux-table", "record-configs"
TABLES, ANSWER, WORK = "experiments/docs/reproduction", "experiments/docs/which_method", "runs/reproduction"
_OF_RUNS = ("only", "variants", "seeds", "device", "jobs", "work", "dry_run")  # options that select and configure runs


@dataclass(frozen=True)
class TableOfRuns:
    """A table that the command can compute: its folder, its missing runs, and how its pages are written.

    Args:
        name: Name of the table.
        out: Folder of its ledger and pages.
        open_runs: Function from the ledger to groups of wanted runs that are missing and can start; a group must be
            complete before the next one starts. Further runs may follow.
        write: Function that writes the pages from the ledger, and returns the progress.
        summary: Function that returns the command's last lines.
        curves: True to keep the curves of runs.
        every_run: True to write the pages after every run, False after the last one.
    """

    name: str
    out: Path
    open_runs: Callable[[Ledger], Iterable[list[PlannedRun]]]
    write: Callable[[Ledger], str]
    summary: Callable[[], str]
    curves: bool
    every_run: bool = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 if a run failed, 2 for invalid input, 128 + the signal after an interruption."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return flux_table.main(words[1:]) if words[:1] == [FLUX] else _reproduce(_make_parser().parse_args(words))
    except InputError as error:
        print(f"experiments: error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print("Interrupted; finished runs are recorded. The same command resumes.")
        return 128 + stop.signum


def _reproduce(given: argparse.Namespace) -> int:
    if given.table not in (names := _list_tables()):
        raise InputError(f"there is no table {given.table!r}; there are {', '.join(names)}")
    if given.jobs is not None and given.jobs < 1:
        raise InputError(f"--jobs is {given.jobs}; give 1 or more")
    _refuse_without_effect(given)
    if given.table == RECORD:
        for folder in map(Path, [given.out] if given.out else [TABLES, ANSWER]):
            print(f"{record_configs(folder)} new configurations of recorded runs in {folder}")
        return 0
    if given.table == SUMMARY:
        return _summarise(Path(given.out or TABLES), given.check)
    return _run(given, _search_and_compare(given) if given.table == which_method.TABLE else _reproduce_table(given))


def _list_tables() -> list[str]:
    return [*table_names(), which_method.TABLE, SUMMARY, FLUX, RECORD]


def _summarise(out: Path, check: bool) -> int:
    """Writes all pages of the papers' tables, or lists those that differ from what would be written."""
    results = RecordedResults.read(out)
    verdicts = [cell.verdict for table in results.tables for cell in results.judged(table)]
    if not check:
        write_everything(out, results)
        print(_count_verdicts("cells", verdicts, out / "summary.md"))
        return 0
    changed = check_pages(out, Path(ANSWER), results)
    print(_count_verdicts("cells", verdicts, out / "summary.md"))
    for name in changed:
        print(f"{name} differs from what the recorded runs give")
    return 1 if changed else 0


def _refuse_without_effect(given: argparse.Namespace) -> None:
    """Raises InputError for options that the table ignores, or would ignore together with `--pages`."""
    not_taken: dict[str, tuple[str, ...]] = {given.table: () if given.table == SUMMARY else ("check",)}
    if given.table in (SUMMARY, RECORD):
        not_taken[given.table] += (*_OF_RUNS, "pages")
    if given.pages:
        not_taken[f"{given.table} --pages"] = _OF_RUNS
    for command, names in not_taken.items():
        for name in names:
            if getattr(given, name):
                raise InputError(f"{command} takes no --{name.replace('_', '-')}; leave it out")


def _run(given: argparse.Namespace, table: TableOfRuns) -> int:
    """Runs all missing runs until none can start, and writes the pages."""
    ledger = Ledger.read(table.out)
    if given.dry_run:
        _show_plan([run for group in table.open_runs(ledger) for run in group], ledger)
        return 0
    failed: dict[str, tuple[str, str]] = {}

    def todo(ledger: Ledger) -> list[PlannedRun]:
        groups = ([run for run in group if run.key not in failed] for group in table.open_runs(ledger))
        return [] if given.pages else next(filter(None, groups), [])

    with lock_folder(table.out):
        write = table.write if table.every_run else lambda ledger: f"{len(ledger.rows)} runs"
        recorder = LedgerRecorder(table.name, ledger, Path(given.work or WORK), write, table.curves)
        table.write(ledger)
        while runs := todo(recorder.ledger):
            errors = recorder.run(runs, given.device, given.jobs)
            failed |= {run.key: (str(run), error) for run, error in errors.items()}
        if recorder.ledger is not ledger and not table.every_run:
            table.write(recorder.ledger)
    print(table.summary())
    for name, error in failed.values():
        print(f"{name} failed: {error}")
    return 1 if failed else 0


def _reproduce_table(given: argparse.Namespace) -> TableOfRuns:
    """Makes the `TableOfRuns` of a paper's table: the runs that its cells need, and how its pages are written."""
    table, out = load_table(given.table), Path(given.out or TABLES)
    known = tuple(dict.fromkeys(table.seeds + table.populations))
    _require_known(given.seeds, known)
    everything = plan_runs(table, (*table.cells, *table.extras))
    variants = match_names(list(dict.fromkeys(run.setting.variant for run in everything)), given.variants, "variant")
    settings = {setting for cell in select_cells(table, given.only) for setting in table.settings(cell)}
    seeds = given.seeds or known
    wanted = {run.key for run in everything if run.setting in settings and run.setting.variant in variants
              and run.seed in seeds}  # fmt: skip
    keys, verdicts = group_keys(everything), list[str]()

    def write(ledger: Ledger) -> str:
        verdicts[:] = [judged.verdict for judged in write_pages(out, table, ledger, keys)]
        done = sum(verdict not in ("not run", "no value") for verdict in verdicts)
        return f"{done} of {len(verdicts)} cells"

    return TableOfRuns(
        table.name,
        out,
        lambda ledger: [find_missing([run for run in everything if run.key in wanted], ledger)],
        write,
        lambda: _count_verdicts("cells", verdicts, out / f"{table.name}.md"),
        curves=True,
    )


def _search_and_compare(given: argparse.Namespace) -> TableOfRuns:
    """Makes the `TableOfRuns` of the search and comparison of all systems; see `which_method`."""
    protocol, out = which_method.Protocol.read(), Path(given.out or ANSWER)
    if not out.name:
        raise InputError(f"--out {out}: the page is written next to the folder; name one, such as {ANSWER}")
    names = [f"{data}/{system}" for data, system in protocol.cells()]
    chosen = match_names([*protocol.data, *names], given.only, "data set, or data set/system,")
    known = (protocol.search_seed, *protocol.seeds)
    _require_known(given.seeds, known)
    variants, seeds = given.variants or ["*"], given.seeds or known
    has_trials = any(fnmatch(f"trial {number}", pattern) for pattern in variants for number in range(100))
    before = {} if has_trials else Ledger.read(Path(ANSWER)).rows  # runs of the trials that determine the best options

    def is_wanted(setting: Setting) -> bool:
        names = {setting.experiment, f"{setting.experiment}/{setting.method}"}
        return not names.isdisjoint(chosen) and any(fnmatch(setting.variant, pattern) for pattern in variants)

    def open_runs(ledger: Ledger) -> Iterator[list[PlannedRun]]:
        choices = Ledger(out, {**before, **ledger.rows})
        for data, system in protocol.cells():
            yield [
                run
                for setting in filter(is_wanted, protocol.settings(choices, data, system))
                for run in list_runs(setting, protocol.open_seeds(ledger, setting, seeds))
            ]

    return TableOfRuns(
        which_method.TABLE,
        out,
        open_runs,
        lambda ledger: write_page(out, protocol, ledger),
        lambda: f"Answer: {page_of(out)}",
        curves=False,
        every_run=False,
    )


def _require_known(seeds: Sequence[int] | None, known: Collection[int]) -> None:
    """Raises InputError for seeds that do not belong to the table."""
    if unknown := sorted(set(seeds or ()) - set(known)):
        raise InputError(f"--seeds {unknown[0]} is not a seed of this table; its seeds: {known}")


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="Runs the experiments that a paper's table needs, and writes the paper's numbers next to ours.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("table", metavar="TABLE", help=", ".join(_list_tables()))
    only = f"only cells that match a pattern ({which_method.TABLE}: data sets, or DATA/SYSTEM)"
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help=only)
    variants = (
        f"only variants of these names: {DEFAULT}, {PUBLISHED} (the published code's), or options tried later; "
        f"{which_method.TABLE}: trial 0, trial 1, ..., best, newcomers, clusters 2"
    )
    parser.add_argument("--variants", nargs="+", default=[], metavar="PATTERN", help=variants)
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="only these of the table's seeds")
    parser.add_argument("--device", help="cpu, cuda or cuda:<i> (default: set by the experiments)")
    parser.add_argument("--jobs", type=int, metavar="N", help="number of cores to use, one run per core (default: all)")
    parser.add_argument("--out", metavar="DIR", help=f"folder of the tables ({TABLES}; {which_method.TABLE}: {ANSWER})")
    parser.add_argument("--work", metavar="DIR", help=f"folder of the runs ({WORK})")
    parser.add_argument("--pages", action="store_true", help="write the table from the recorded runs, and run nothing")
    parser.add_argument("--check", action="store_true", help=f"{SUMMARY}: list recorded pages that differ, write none")
    parser.add_argument("--dry-run", action="store_true", help="list the missing runs, with their expected times")
    return parser


def _show_plan(todo: Sequence[PlannedRun], ledger: Ledger) -> None:
    """Prints the missing runs that can start, and their expected times."""
    seconds = {str(run): estimate_seconds(run, ledger) for run in todo}
    for name, known in seconds.items():
        print(f"{name}  {'' if known is None else f'{known:.0f} s'}".rstrip())
    print(f"{len(seconds)} runs are missing{f': {format_time(seconds.values())}' if seconds else ''}")


def _count_verdicts(what: str, verdicts: Sequence[str], page: Path) -> str:
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
    return f"{len(verdicts)} {what}: {counts}\nTable: {page}"
