"""Implements `lit-cfl run`."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from lit_cfl.config.parser import RunRequest, parse_run
from lit_cfl.errors import Interrupted, SaveError
from lit_cfl.progress import dry_run
from lit_cfl.progress.screen import Screen
from lit_cfl.runs.run import ResumeMode, run
from lit_cfl.runs.run_directory import default_run_directory
from lit_cfl.runs.signals import interruptible
from lit_cfl.storage.given_paths import resolve_directory


def run_experiment(arguments: Sequence[str]) -> int:
    """Runs an experiment and its baseline: `lit-cfl run`."""
    request = parse_run(arguments)
    options, experiment = request.options, request.experiment
    screen = Screen(options.quiet, options.json)
    for notice in request.notices:
        screen.say(f"Note: {notice}.")
    if options.dry_run:
        dry_run.show(screen.aside, experiment)
        return 0
    path, mode = _where(request)
    again = f"lit-cfl run --resume {quote(str(path))}"
    try:
        with interruptible() as check, screen.callbacks(check, len(experiment.seeds) > 1) as callbacks:
            finished = run(experiment, path, callbacks, mode)
    except Interrupted as stop:
        screen.say(f"Interrupted; every completed round is saved. Resume with: {again}")
        return 128 + stop.signum
    except SaveError as error:
        state, remedy = "Nothing was trained yet", "run the same command again"
        if (path / "config.yaml").exists():
            state, remedy = "The last checkpoint is intact", f"resume with: {again}"
        raise SaveError(f"{error}. {state}; free some disk space, then {remedy}") from error
    screen.close(finished)
    return 0


def _where(request: RunRequest) -> tuple[Path, ResumeMode]:
    options = request.options
    if options.resume is None:
        if options.run_dir is None:
            return default_run_directory(request.experiment.name), "new"
        return resolve_directory(options.run_dir, "--run_dir"), "new"
    return resolve_directory(options.resume, "--resume"), "new_plan" if options.new_plan else "resume"
