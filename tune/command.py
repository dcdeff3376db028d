"""Implements `lit-cfl tune`, and prints its final table."""

from collections.abc import Iterator, Sequence
from functools import partial
from shlex import quote

from rich.console import Console

from lit_cfl.compare.tables import show_table
from lit_cfl.config.own_code import no_code_from
from lit_cfl.errors import Interrupted, count_noun, join_ids
from lit_cfl.metric_names import Row
from lit_cfl.progress.console import new_console
from lit_cfl.progress.summary_table import page_line
from lit_cfl.tune.check import PreparedStudy, prepare
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.options import StudyRequest, parse_study
from lit_cfl.tune.pictures import METHOD, NO_IMPORTANCE
from lit_cfl.tune.record import DEFAULT, ERROR, FAILED_STATUS, FINISHED_STATUS, STOPPED_STATUS, find_resumed_directory
from lit_cfl.tune.result import StudyResult
from lit_cfl.tune.search import require_unused, run_study
from lit_cfl.tune.spaces import format_values
from lit_cfl.tune.study import Study


def closing_table(console: Console, study: Study, result: StudyResult) -> None:
    """Prints the best setting, the results on new seeds, the parameters' importance, and the failures."""
    trained = result.trained
    count = {status: sum(row["status"] == status for row in trained) for status in (FINISHED_STATUS, FAILED_STATUS)}
    stopped, repeats = len(trained) - sum(count.values()), len(result.rows) - len(trained)
    known = f"; {repeats} more repeated an earlier setting" if repeats else ""
    _say(
        console,
        f"{len(trained)} trials: {count[FINISHED_STATUS]} finished, {stopped} stopped early, "
        f"{count[FAILED_STATUS]} failed{known}",
    )
    if result.best is None:
        _say(console, "No trial finished, so there is no best trial: raise limits.minutes, or fix what failed.")
    else:
        parameters = {k: result.best[k] for k in study.search_space.distributions() if result.best.get(k) is not None}
        default = " (the base's own setting)" if result.best["origin"] == DEFAULT else ""
        _say(console, f"Best: {format_values(parameters)}{default}")
        metric = result.objective.metric
        _say(console, f"{metric} of its trial: {result.best[metric]:.4f}")
        for line in _better_when_stopped(trained, result.best, result.objective):
            _say(console, line)
    if result.repeated is not None:
        show_table(console, result.repeated)
        for note in result.repeated.notes:
            _say(console, note)
    if result.importance:
        shares = ", ".join(f"{key} {share:.2f}" for key, share in result.importance.items())
        _say(console, f"Importance ({METHOD}): {shares}")
    elif result.best is not None:
        _say(console, NO_IMPORTANCE)
    for row in trained:
        if row["status"] == FAILED_STATUS:
            _say(console, f"failed: {row['trial_id']}: {row[ERROR]}")
    _say(console, f"Files: {result.path}")
    _say(console, page_line(result.path))


def _better_when_stopped(trained: Sequence[Row], best: Row, objective: Objective) -> Iterator[str]:
    """Yields a line about stopped trials whose score was better than the best finished trial's."""
    metric = objective.metric
    scored = [row for row in trained if row["status"] == STOPPED_STATUS and row.get(metric) is not None]
    better = [row for row in scored if row[metric] != best[metric] and objective.is_reached(row[metric], best[metric])]
    if better:
        trials = [f"{row['trial_id']} ({row[metric]:.4f}, {count_noun(row['rounds'], 'round')})" for row in better]
        yield (
            f"Stopped trials that were better than the best one: {join_ids(trials)}; only finished trials can be the "
            "best"
        )


def _show_plan(console: Console, prepared: PreparedStudy) -> None:
    """Prints what a study would run, with a line for each corner of the space and each point."""
    study = prepared.study
    for line in (f"{prepared.size}, over {', '.join(study.search_space.distributions())}", *prepared.notices):
        _say(console, f"{line}.")
    if study.num_repeats:
        _say(console, f"At the end: the best and the default setting on {count_noun(study.num_repeats, 'new seed')}.")
    _say(console, "Corners of the space and points, as built; nothing is trained:")
    for values, experiment in prepared.corners.items():
        _say(console, f"  {type(experiment.algorithm).__name__}: {values}")


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True)


def search(arguments: Sequence[str]) -> int:
    """Runs a study. Returns 1 if every trial failed, 128 + the signal's number if a signal ended the study."""
    with no_code_from(find_resumed_directory(arguments)):
        return _search(parse_study(arguments))


def _search(request: StudyRequest) -> int:
    console, path = new_console(), request.directory
    if request.dry_run:
        require_unused(path)
        _show_plan(console, prepare(request.study, path))
        return 0
    try:
        result = run_study(request, partial(_say, console))
    except Interrupted as stop:
        _say(console, f"Interrupted. Resume with: lit-cfl tune --resume {quote(str(path))}")
        return 128 + stop.signum
    closing_table(console, request.study, result)
    return 1 if all(row["status"] == FAILED_STATUS for row in result.rows) else 0
