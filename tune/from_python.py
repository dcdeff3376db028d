"""`lit_cfl.tune(...)`: a study from Python, with the results as pandas tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_cfl.config.own_code import no_code_from
from lit_cfl.errors import InputError
from lit_cfl.metric_names import Row
from lit_cfl.statistics import Interval
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.record import find_resumed_directory
from lit_cfl.tune.search import run_study
from lit_cfl.tune.study_result import StudyResult

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class StudyTables:
    """The results of a study.

    Args:
        path: The study's directory, with `best.yaml`, `trials/` and `pictures/`.
        best: Row of the best trial, or None if no trial ran to its end.
        importance: Importance of each parameter, highest first; empty with few trials.
        gain: Gain of the best over the default setting on test data, over the new seeds; None without any.
    """

    path: Path
    best: Row | None
    importance: dict[str, float]
    gain: Interval | None
    _repeated: Sequence[Row]

    @cached_property
    def trials(self) -> "DataFrame":
        """One row per trial, with the columns of `trials.csv`; NaN = unknown."""
        from pandas import read_csv  # takes most of a second

        return read_csv(self.path / "trials.csv", dtype={"trial_id": str, "repeats": str})

    @cached_property
    def repeats(self) -> "DataFrame":
        """Results of the best and the default setting on new seeds: one row per setting and metric."""
        from pandas import DataFrame

        columns = ["setting", "metric", "mean", "low", "high", "seeds"]
        return DataFrame(list(self._repeated), columns=columns)


def tune(
    study: str | Mapping[str, Any] | None = None,
    words: Sequence[str] = (),
    *,
    study_dir: str | Path | None = None,
    resume: str | Path | None = None,
    address: str | None = None,
    say: Callable[[str], None] = print,
) -> StudyTables:
    """Runs `lit-cfl tune` and returns its tables.

    Args:
        study: A study's file, the name of a packaged one, or its content.
        words: Further options, such as `["--limits.trials", "5"]`.
        study_dir: Directory of the files; None = runs/<name>-<time>.
        resume: Directory of a study to continue, in place of `study`.
        address: Address of a Ray cluster; None = this machine.
        say: Called with each line that the command would print while the study runs.

    Raises:
        InputError: The study cannot be run.
        Interrupted: SIGINT or SIGTERM arrived; `resume` continues.
    """
    options = {"--study_dir": study_dir, "--resume": resume, "--ray.address": address}
    whole = [*(f"{name}={value}" for name, value in options.items() if value is not None), *words]
    with no_code_from(find_resumed_directory(whole)):
        named = ["--config", study] if isinstance(study, str) else []
        request = parse_study([*named, *whole], study if isinstance(study, Mapping) else None)
        if request.dry_run:
            raise InputError("--dry-run is for the command lit-cfl tune; leave it out here")
        result = run_study(request.study, request.directory, request.resume is not None, request.address, say)
    return _tables(result)


def _tables(result: StudyResult) -> StudyTables:
    repeated = result.repeated
    rows: list[Row] = [
        {"setting": setting, "metric": metric, "mean": one.mean, "low": one.low, "high": one.high, "seeds": one.count}
        for setting, figures in (repeated.figures.items() if repeated else ())
        for metric, one in figures.items()
    ]
    return StudyTables(result.path, result.best, result.importance, repeated.gain if repeated else None, rows)
