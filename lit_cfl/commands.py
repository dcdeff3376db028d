"""The commands that train."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lit_cfl import dry_run, progress, tiny
from lit_cfl.configuration import parse_run
from lit_cfl.run import run
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
    path = Path(request.options.run_dir) if request.options.run_dir else default_run_directory(experiment.name)
    finished = run(experiment, path, progress.watch(console))
    progress.closing_table(console, finished)
    return 0
