"""The commands that train."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lit_cfl import dry_run, progress, tiny
from lit_cfl.configuration import Request, parse_run
from lit_cfl.errors import Interrupted, SaveError
from lit_cfl.interrupt import interruptible
from lit_cfl.run import Going, run
from lit_cfl.run_directory import default_run_directory


def run_experiment(arguments: Sequence[str]) -> int:
    """`lit-cfl run`."""
    request = parse_run(arguments)
    console, experiment = Console(), request.experiment
    for notice in request.notices:
        console.print(f"Note: {notice}.", soft_wrap=True, highlight=False)
    if request.options.tiny:
        experiment = tiny.shrink(experiment)
    if request.options.dry_run:
        dry_run.show(console, experiment)
        return 0
    path, going = _where(request)
    again = f"lit-cfl run --resume {path}"
    try:
        with interruptible() as check:
            finished = run(experiment, path, progress.watch(console, check), going)
    except Interrupted as stop:
        console.print(f"Interrupted; what was done is saved. Go on with: {again}", soft_wrap=True, highlight=False)
        return 128 + stop.signum
    except SaveError as error:
        raise SaveError(f"{error}. The last checkpoint is intact: make room, then go on with: {again}") from error
    progress.closing_table(console, finished)
    return 0


def _where(request: Request) -> tuple[Path, Going]:
    options = request.options
    if options.resume is None:
        return Path(options.run_dir) if options.run_dir else default_run_directory(request.experiment.name), "new"
    return Path(options.resume), "new_plan" if options.new_plan else "resume"
