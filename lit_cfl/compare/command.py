"""`lit-cfl compare`: runs a comparison, and shows and writes its results."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from rich.console import Console

from lit_cfl.compare.arguments import CompareArguments, read_arguments
from lit_cfl.compare.comparison import Comparison, plan_comparison, read_comparison, require_target, require_unused
from lit_cfl.compare.results import Results
from lit_cfl.compare.run import train, write_results
from lit_cfl.compare.search_table import read_searches, search_cells
from lit_cfl.compare.tables import print_table, show_table
from lit_cfl.errors import Interrupted, SaveError
from lit_cfl.progress.screen import Screen
from lit_cfl.progress.summary_table import page_line
from lit_cfl.runs.many import plan_of, processes
from lit_cfl.runs.run_directory import default_run_directory
from lit_cfl.runs.signals import interruptible
from lit_cfl.scores import read_scores
from lit_cfl.storage.given_paths import resolve_directory
from lit_cfl.storage.lock import lock_directory
from lit_cfl.tracking.offline import sync_line


def compare(arguments: Sequence[str]) -> int:
    """Runs a comparison. Returns the exit code: 0, 1 if a run failed, 128 + n if signal n ended it."""
    given = read_arguments(arguments)
    screen = Screen(given.quiet)
    comparison, path = requested_comparison(given, screen)
    if given.dry_run:
        _show_plan(screen.aside, comparison, path, given.num_cpus)
        return 0
    try:
        results, trouble = run_comparison(comparison, path, given, screen)
    except Interrupted as stop:
        screen.say(f"Interrupted; finished runs are kept. Resume with: lit-cfl compare --resume {quote(str(path))}")
        return 128 + stop.signum
    is_whole = _show(screen, results, path)
    if trouble is not None:
        again = f"lit-cfl compare --resume {quote(str(path))}"
        raise SaveError(
            f"{trouble}. The results so far are printed above; free some disk space, then write them with: {again}"
        )
    return 0 if is_whole else 1


def requested_comparison(given: CompareArguments, screen: Screen) -> tuple[Comparison, Path]:
    """Returns the comparison described by the arguments, and its directory. Raises InputError."""
    if given.resume is not None:
        path = resolve_directory(given.resume, "--resume")
        comparison = read_comparison(path)
        # which target is possible depends on the score of the finished runs
        for score, *_ in map(read_scores, filter(None, (job.summary for job in comparison.jobs(path)))):
            require_target(given.target, score)
        return comparison if given.target is None else replace(comparison, target=given.target), path
    if given.compare_dir is not None:
        require_unused(resolve_directory(given.compare_dir, "--compare_dir"))
    comparison, notices = plan_comparison(given)
    for notice in notices:
        screen.say(f"Note: {notice}.")
    if (groups := given.search_groups) is not None:
        from lit_cfl.tune.search_first import plan_searches  # imports Ray and Optuna

        comparison = plan_searches(comparison, groups, given.search or [])
    default = default_run_directory(f"{comparison.name}-compare")
    return comparison, resolve_directory(given.compare_dir or str(default), "--compare_dir")


def run_comparison(
    comparison: Comparison, path: Path, given: CompareArguments, screen: Screen
) -> tuple[Results, SaveError | None]:
    """Runs the remaining searches and runs of a comparison, and writes its tables.

    Returns:
        The results, and the first write error of the tables, or None.

    Raises:
        InputError: the directory is in use.
        Interrupted: SIGINT or SIGTERM arrived; finished runs stay.
    """
    with lock_directory(path, "--compare_dir"), interruptible() as check:
        if given.resume is None:
            require_unused(path)
            comparison.write(path)
        # on a resume, the experiments were read from files and share no data
        built = comparison.experiments if given.resume is None else {}
        if comparison.search is not None and comparison.searched is None:
            from lit_cfl.tune.search_first import search_first  # imports Ray and Optuna

            comparison = search_first(comparison, path, given.num_cpus, screen)
            built = comparison.experiments
        results = train(comparison, path, given.num_cpus, screen, check, built)
        return results, write_results(comparison, path, results, given.table)


def _show(screen: Screen, results: Results, path: Path) -> bool:
    """Prints the results. Returns whether no run has failed, and no search lacks a finished trial."""
    searched = read_searches(path)
    left_out = [row for row in searched if row["best"] is None]
    is_whole = not results.failed and not left_out
    if screen.quiet:
        screen.say_path(str(path))
        for row in left_out:
            screen.say(f"{row['algorithm']} is left out, as no trial of its search has finished: {row['error']}")
        for row in results.failed:
            screen.say(f"{row['algorithm']} seed {row['seed']} failed: {row['error']}")
        return is_whole
    if searched:
        print_table(screen.out, *search_cells(searched))
    show_table(screen.out, results)
    for note in results.notes:
        screen.out.print(note, style="dim", soft_wrap=True)
    line = sync_line(path / row["algorithm"] / f"seed-{row['seed']}" for row in results.runs)
    if line is not None:
        screen.say(f"Note: {line}.")
    if results.failed:
        screen.say(
            f"Failed runs: {len(results.failed)}. Try them again with: lit-cfl compare --resume {quote(str(path))}"
        )
    screen.say(f"Files: {path}")
    screen.say(page_line(path))
    return is_whole


def _show_plan(console: Console, comparison: Comparison, path: Path, num_cpus: int | None) -> None:
    """Prints the searches and runs that would start, with a line for each algorithm."""
    if comparison.search is not None and comparison.searched is None:
        from lit_cfl.tune.search_first import prepare_searches  # imports Ray and Optuna

        console.print("searches of each algorithm's options:", soft_wrap=True)
        for name, prepared in prepare_searches(comparison).items():
            console.print(f"  {name}: {prepared.size}, over {', '.join(prepared.study.space)}", soft_wrap=True)
    jobs = comparison.jobs(path)
    left = sum(not job.is_whole for job in jobs)
    runs = str(left) if left == len(jobs) else f"{left} of {len(jobs)} (the others have finished)"
    at_once, seeds = processes(plan_of(comparison.first), num_cpus, left), ", ".join(map(str, comparison.seeds))
    head = f"runs: {runs}, {at_once} at a time, under seeds {seeds}. As built; nothing is trained:"
    console.print(head, soft_wrap=True)
    for name, one in comparison.experiments.items():
        algorithm, engine = type(one.algorithm).__name__, "" if one.plan is None else f", engine {one.plan.engine}"
        size = f"{one.rounds} rounds of {one.cohort_size} clients"
        console.print(f"  {name}: {algorithm}, {size}{engine}", soft_wrap=True)
