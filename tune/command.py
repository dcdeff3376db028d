"""`lit-cfl tune`."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lit_cfl.config.own_code import no_code_from
from lit_cfl.errors import Interrupted
from lit_cfl.runs.run_directory import default_run_directory
from lit_cfl.tune.opening import opened_directory
from lit_cfl.tune.options import StudyRequest, parse_study
from lit_cfl.tune.record import FAILED_STATUS
from lit_cfl.tune.report import closing_table
from lit_cfl.tune.search import run_study


def search(arguments: Sequence[str]) -> int:
    """Runs a study. Returns 1 where no trial came to anything, 128 + the signal where one ended the study."""
    with no_code_from(opened_directory(arguments)):
        return _search(parse_study(arguments))


def _search(request: StudyRequest) -> int:
    console = Console()
    where = request.resume or request.study_dir
    path = default_run_directory(request.study.name) if where is None else Path(where)
    try:
        outcome = run_study(
            request.study,
            path,
            request.resume is not None,
            request.address,
            say=lambda line: console.print(line, soft_wrap=True, highlight=False),
        )
    except Interrupted as stop:
        console.print(f"Interrupted. Go on with: lit-cfl tune --resume {path}", soft_wrap=True, highlight=False)
        return 128 + stop.signum
    closing_table(console, request.study, outcome)
    return 1 if all(row["status"] == FAILED_STATUS for row in outcome.rows) else 0
