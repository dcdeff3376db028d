"""`lit-cfl tune --dry-run`: estimates the size and duration of a study without running it."""

from math import ceil, inf
from pathlib import Path

from rich.console import Console

from lit_cfl.errors import count_noun
from lit_cfl.progress import dry_run
from lit_cfl.tune.check import PreparedStudy, notices, prepare
from lit_cfl.tune.cluster import count_places
from lit_cfl.tune.record import DEFAULT
from lit_cfl.tune.study import Study

_SETTINGS = 2  # settings trained on new seeds at the end: the best and the default


def show(console: Console, study: Study, path: Path, address: str | None) -> None:
    """Prints the trials of a study, the base's size, and a time estimate from training the base.

    Args:
        console: Console to print on.
        study: Study with its whole base.
        path: Directory of the study, which is not created.
        address: Address of a Ray cluster; None = this machine.

    Raises:
        InputError: the study cannot be run, or this machine lacks the resources that a trial needs.
    """
    prepared = prepare(study, path)
    at_once = _at_once(prepared, address)
    dry_run.show_lines(console, _size(prepared, at_once))
    for notice in notices(prepared.study, prepared.default):
        console.print(f"Note: {notice}.", soft_wrap=True)
    console.print("\nThe base (each trial changes its searched options):")
    seconds = dry_run.show(console, prepared.job.of_trial(prepared.default, DEFAULT))
    dry_run.show_lines(console, {"whole study": _time(prepared, seconds, at_once)})


def _at_once(prepared: PreparedStudy, address: str | None) -> int | None:
    """Returns how many runs fit at the same time; None if that depends on a cluster."""
    room, concurrent = count_places(address, prepared.study.resources), prepared.study.limits.concurrent
    return None if room is None else min(room, concurrent or room)


def _size(prepared: PreparedStudy, at_once: int | None) -> dict[str, str]:
    resources, repeats = prepared.study.resources, prepared.study.num_repeats
    points = len(prepared.study.own_settings)
    then = f", then {count_noun(points, 'point')} of the study" if points else ""
    each = count_noun(resources.cpus, "core") + (f" and {count_noun(resources.gpus, 'GPU')}" if resources.gpus else "")
    places = f"{at_once} at most" if at_once else "as many as the cluster has room for"
    lines = {
        "study": prepared.size,
        "searched": ", ".join(prepared.study.search_space.distributions()),
        "tried first": f"the base's setting{then}",
        "at a time": f"{places}, each with {each}",
    }
    if repeats:
        lines["at the end"] = f"the best and the default setting on {count_noun(repeats, 'new seed')}"
    return lines


def _time(prepared: PreparedStudy, trial: float, at_once: int | None) -> str:
    """Describes the estimated duration of a study, given the seconds of one trial."""
    repeats, minutes = _SETTINGS * prepared.study.num_repeats, prepared.study.limits.minutes or inf
    run, how = trial / len(prepared.job.seeds), "if no trial is stopped early; starts and scores are not counted"
    trials = prepared.limit or len(prepared.settings)
    if at_once is None:
        total = trials * trial + repeats * run
        return f"about {dry_run.duration(total)} of local training, divided among the cluster, {how}"
    searched = min(ceil(trials / at_once) * trial, 60 * minutes)
    return f"about {dry_run.duration(searched + ceil(repeats / at_once) * run)} of local training, {how}"
