"""`lit_cfl.tune(...)`: a study from Python, with the results as pandas tables."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_cfl.config.own_code import no_code_from
from lit_cfl.config.words import require_words
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment, content_for_processes
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.record import find_resumed_directory
from lit_cfl.tune.result import StudyResult
from lit_cfl.tune.search import run_study


def tune(
    study: str | Path | Mapping[str, Any] | None = None,
    words: Sequence[str] = (),
    *,
    study_dir: str | Path | None = None,
    resume: str | Path | None = None,
    address: str | None = None,
    say: Callable[[str], None] = print,
) -> StudyResult:
    """Runs or resumes a study, and returns its results.

    Args:
        study: A study's file, the name of a packaged one, or its content, whose base may also be an experiment that was
            loaded from a file.
        words: Further options, such as `["--limits.trials", "5"]`.
        study_dir: Directory of the files; None = runs/<name>-<time>.
        resume: Directory of a study to continue, in place of `study`.
        address: Address of a Ray cluster; None = this machine.
        say: Called with each line that the command would print while the study runs.

    Raises:
        InputError: The study cannot be run.
        Interrupted: SIGINT or SIGTERM arrived; `resume` continues.
    """
    require_words(words)
    study = str(study) if isinstance(study, Path) else study
    if isinstance(study, Mapping) and isinstance(base := study.get("base"), Experiment):
        study = {**study, "base": content_for_processes(base)}
    options = {"--study_dir": study_dir, "--resume": resume, "--ray.address": address}
    whole = [*(f"{name}={value}" for name, value in options.items() if value is not None), *words]
    with no_code_from(find_resumed_directory(whole)):
        named = ["--config", study] if isinstance(study, str) else []
        request = parse_study([*named, *whole], study if isinstance(study, Mapping) else None)
        if request.dry_run:
            raise InputError("--dry-run is for the command lit-cfl tune; leave it out here")
        return run_study(request, say)
