"""The command line of `lit-cfl compare`."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from lit_cfl.config.typed_words import split_list
from lit_cfl.errors import InputError, LineParser
from lit_cfl.storage.given_paths import expand_home, resolve_directory

RECORD = "compare.yaml"  # file in the directory of a comparison
_EPILOG = """\
WHAT is a class (FedAvg; the file's own algorithm keeps the arguments it has there), a packaged configuration
(ifca/digits) or a YAML file, whose algorithm: is taken. Options of one algorithm begin with its name, all others are
those of lit-cfl run:

  lit-cfl compare --config quickstart --algorithms FedAvg IFCA StoCFL --seeds 0 1 2 3 4
  lit-cfl compare --config quickstart --algorithms FedAvg two=IFCA four=IFCA --two.num_clusters 2 --four.num_clusters 4
"""
_ELSEWHERE = {
    "--seed": "give --seeds",
    "--run_dir": "give --compare_dir",
    "--json": "read runs.csv and results.csv",
    "--new_plan": "all runs of a comparison are under one plan",
    "--algorithm": "give --algorithms, and options by its name, such as --FedGroup.num_clusters 4",
    "--baseline": "put it first in --algorithms",
    "--print_config": "see <name>/config.yaml in the comparison's directory",
}
_FREE = ("--resume", "--num_cpus", "--target", "--quiet", "--dry-run")  # options allowed with --resume


@dataclass(frozen=True)
class CompareArguments:
    """The options of a command line.

    Args:
        config: the experiment's file; empty with `resume`.
        algorithms: words, see `read_entries`.
        seeds: empty = the file's.
        compare_dir: where the files go; None = runs/<name>-compare-<time>.
        resume: a comparison to go on with, or None.
        target: a test figure, or None.
        num_cpus: cores to use, or None for all.
        quiet, dry_run: as for `lit-cfl run`.
        rest: options of the experiment and of single algorithms.
        content: Content of the experiment's file, in its place; None = read it.
    """

    config: str
    algorithms: list[str]
    seeds: list[int]
    compare_dir: str | None
    resume: str | None
    target: float | None
    num_cpus: int | None
    quiet: bool
    dry_run: bool
    rest: list[str]
    content: Mapping[str, Any] | None = None


def read_arguments(arguments: Sequence[str]) -> CompareArguments:
    """Reads the part of a command line that does not need the experiment. Raises InputError."""
    given, rest = _parser().parse_known_args(arguments)
    for word in rest:
        head = word.partition("=")[0]
        owner = (
            "--algorithm"
            if head.startswith("--algorithm.")
            else "--baseline"
            if head.startswith("--baseline.")
            else head
        )
        if owner in _ELSEWHERE:
            raise InputError(f"{head} is no option of lit-cfl compare; {_ELSEWHERE[owner]}")
    if given.resume is not None:
        _require_free(arguments, rest)
    elif given.config is None:
        raise InputError("nothing says on which experiment to compare; give a file: --config quickstart")
    elif not given.algorithms:
        raise InputError("nothing says what to compare; give --algorithms, such as --algorithms FedAvg IFCA")
    if given.target is not None and not isfinite(given.target):
        raise InputError(f"--target is {given.target:g}; it is a figure on test data, so give a number, such as 0.8")
    if given.num_cpus is not None:
        _require_cores(given.num_cpus)
    return CompareArguments(
        given.config or "",
        [entry for word in given.algorithms or [] for entry in _entries(word)],
        _whole_numbers(given.seeds or []),
        given.compare_dir,
        given.resume,
        given.target,
        given.num_cpus,
        given.quiet,
        given.dry_run,
        rest,
    )


def _parser() -> argparse.ArgumentParser:
    parser = LineParser(
        prog="lit-cfl compare",
        allow_abbrev=False,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs several algorithms on the same clients, cohorts and initial weights over several seeds.",
        usage="%(prog)s --config FILE --algorithms [NAME=]WHAT ... [--seeds N ...] [options]",
    )
    add = parser.add_argument
    add("--config", metavar="FILE", help="The experiment: a file, or the name of one of `lit-cfl list configs`.")
    add("--algorithms", nargs="+", metavar="WHAT", help="What to compare; differences are to the first.")
    add("--seeds", nargs="+", metavar="N", help="In place of the file's.")
    add("--compare_dir", metavar="DIR", help="Where the files go (default: runs/<name>-compare-<time>).")
    add("--resume", metavar="DIR", help="Go on with a comparison as it was begun.")
    add(
        "--target",
        type=float,
        help="Test figure of the first score for the columns rounds and MiB (default: what all runs reach).",
    )
    add("--num_cpus", type=int, help="Cores to use (default: all); 1: one run after the other, without Ray.")
    add("--quiet", action="store_true", help="Print the comparison's directory at the end; no more but errors.")
    add("--dry-run", action="store_true", help="Check everything and say what would run; run nothing.")
    return parser


def _entries(word: str) -> list[str]:
    """Splits `FedAvg,IFCA`; file names may contain commas."""
    return [word] if Path(word).is_file() or Path(word.partition("=")[2]).is_file() else split_list([word])


def _whole_numbers(words: Sequence[str]) -> list[int]:
    """Parses integers, also in brackets and with commas: `--seeds [0, 1]`."""
    texts = split_list(words)
    for text in texts:
        if not text.isdecimal():
            raise InputError(f"--seeds: {text!r} is no seed; give whole numbers from 0 on, such as --seeds 0 1 2")
    return [int(text) for text in texts]


def _require_cores(asked: int) -> None:
    if asked < 1:
        raise InputError(f"--num_cpus is {asked}; give 1 or more")
    from lit_cfl.cores import count_cores  # takes a second to import

    cores = count_cores()
    if asked > cores and "RAY_ADDRESS" not in os.environ:
        raise InputError(f"--num_cpus is {asked}, but {cores} cores may be used here; give {cores} or less")


def _require_free(arguments: Sequence[str], rest: Sequence[str]) -> None:
    for word in arguments:
        name = word.partition("=")[0]
        if (name.startswith("--") and name not in _FREE) or word in rest:
            raise InputError(
                f"--resume continues the comparison as it was started; leave out {name} "
                f"(free are {', '.join(_FREE[1:])}), or start another one with --compare_dir"
            )


def require_comparison(path: str | Path) -> None:
    """Checks that a directory contains a comparison. Raises InputError."""
    if not (expand_home(path) / RECORD).is_file():
        raise InputError(f"{path} holds no comparison to resume (no {RECORD}); give the directory of one")


def directory(given: str) -> Path:
    """Makes a path absolute: workers may run elsewhere."""
    return resolve_directory(given, "--compare_dir").absolute()
