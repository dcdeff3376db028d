"""`lit_cfl.compare(...)`: a comparison from Python, with the results as pandas tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_cfl.compare.arguments import CLIENT_GAINS, SEARCH_TABLE, read_arguments
from lit_cfl.compare.command import requested_comparison, run_comparison
from lit_cfl.compare.tables import read_notes
from lit_cfl.config.words import require_words
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment, content_for_processes
from lit_cfl.notebook import MAIN, as_html, short_repr
from lit_cfl.progress.screen import Screen
from lit_cfl.storage.csv_log import read_frame

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class ComparisonTables:
    """The results of a comparison, read from its files.

    Args:
        path: The comparison's directory; `path / NAME / "seed-0"` is a run directory.
    """

    path: Path

    __repr__ = short_repr

    def _repr_html_(self) -> str:
        tables = [self.search] if (self.path / SEARCH_TABLE).exists() else []
        return as_html(self, self.path, *tables, self.results.filter(regex=MAIN), text="".join(self.notes[:1]))

    @cached_property
    def results(self) -> "DataFrame":
        """One row per algorithm, with the columns of `results.csv`; NaN = unknown."""
        return read_frame(self.path / "results.csv", "algorithm")

    @cached_property
    def runs(self) -> "DataFrame":
        """One row per algorithm and seed, with the columns of `runs.csv`."""
        return read_frame(self.path / "runs.csv", "algorithm")

    @cached_property
    def rounds(self) -> "DataFrame":
        """One row per evaluated round of each finished run: `algorithm`, `seed`, and the columns of `metrics.csv`."""
        from pandas import DataFrame, concat

        finished = self.runs[self.runs["status"] == "finished"]
        tables = []
        for name, seed in zip(finished["algorithm"], finished["seed"], strict=True):
            table = read_frame(self.path / str(name) / f"seed-{seed}" / "metrics.csv")
            table.insert(0, "algorithm", name)
            table.insert(1, "seed", seed)
            tables.append(table)
        return concat(tables, ignore_index=True) if tables else DataFrame(columns=["algorithm", "seed", "round"])

    @cached_property
    def client_gains(self) -> "DataFrame":
        """One row per client of each algorithm but the first, with the columns of `client_gains.csv`."""
        return read_frame(self.path / CLIENT_GAINS, "algorithm", "name")

    @cached_property
    def search(self) -> "DataFrame":
        """One row per searched algorithm, with the columns of `search.csv`: costs, scores and the chosen setting."""
        return read_frame(self.path / SEARCH_TABLE, "algorithm", "setting", "trial", "error")

    @property
    def notes(self) -> list[str]:
        """The notes below the table of `results.md`: limits of the comparison."""
        return read_notes(self.path)


def compare(
    config: str | Path | Mapping[str, Any] | Experiment | None = None,
    algorithms: Sequence[str] = (),
    seeds: Sequence[int] = (),
    words: Sequence[str] = (),
    *,
    compare_dir: str | Path | None = None,
    resume: str | Path | None = None,
    target: float | None = None,
    num_cpus: int | None = None,
    search: Mapping[str, Any] | None = None,
) -> ComparisonTables:
    """Runs `lit-cfl compare` and returns its tables.

    Args:
        config: An experiment's file, the name of a packaged configuration, its content, or an experiment that was
            loaded from a file.
        algorithms: Algorithms to compare, `[NAME=]WHAT` each, as after `--algorithms`; the others are compared
            with the first.
        seeds: Seeds that replace the experiment's.
        words: Further options, such as `["--rounds", "50", "--IFCA.num_clusters", "4"]`.
        compare_dir: Directory of the files; None = runs/<name>-compare-<time>.
        resume: Directory of a comparison to continue, in place of `config`, `algorithms`, `seeds` and `words`.
        target: Test score to reach, at a cost shown in the columns of rounds and MiB; None = one that all runs reach.
        num_cpus: Cores to use; None = all.
        search: Options of the search of every algorithm before its runs, as below `search:` in a file, such as
            {"trials": 16}; {} = their defaults, None = none unless a file or word asks for it.

    Returns:
        The tables. A run that failed is a row of `runs` with `status` "failed", and does not end the others.

    Raises:
        InputError: An option cannot be used; nothing was run then.
        SaveError: The tables could not be written.
        Interrupted: SIGINT or SIGTERM arrived; `resume` continues.
    """
    require_words(words)
    if isinstance(seeds, int):
        raise InputError(f"seeds is {seeds}; give a list, such as [{seeds}]")
    algorithms = algorithms if isinstance(algorithms, Sequence) and not isinstance(algorithms, str) else [algorithms]
    for one in algorithms:
        if not isinstance(one, str):
            raise InputError(f"algorithms has {one!r:.60}; give names, such as ['FedAvg', 'two=IFCA']")
    config = str(config) if isinstance(config, Path) else config
    config = content_for_processes(config) if isinstance(config, Experiment) else config
    options = {"--compare_dir": compare_dir, "--resume": resume, "--target": target, "--num_cpus": num_cpus}
    whole = [f"{name}={value}" for name, value in options.items() if value is not None]
    if isinstance(config, str):
        whole += ["--config", config]
    if search is not None:
        whole += ["--search", *(f"--search.{name}={json.dumps(value, default=str)}" for name, value in search.items())]
    if algorithms:
        whole += ["--algorithms", *algorithms]
    if seeds:
        whole += ["--seeds", *map(str, seeds)]
    given = read_arguments([*whole, *words], None if isinstance(config, str) else config)
    if given.dry_run:
        raise InputError("--dry-run is for the command lit-cfl compare; leave it out here")
    screen = Screen(given.quiet)
    comparison, path = requested_comparison(given, screen)
    _, trouble = run_comparison(comparison, path, given, screen)
    if trouble is not None:
        raise trouble
    return ComparisonTables(path)
