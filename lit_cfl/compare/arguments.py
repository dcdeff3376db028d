"""The command line of `lit-cfl compare`: its options, the compared algorithms, and the words of each."""

import argparse
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from lit_cfl.config import catalogue
from lit_cfl.config.files import append_to_path, read_config
from lit_cfl.config.live_options import find_class, options_of, parts_of
from lit_cfl.config.words import arrange, given_options, split_list
from lit_cfl.errors import InputError, LineParser, spell_range, suggest

RECORD = "compare.yaml"  # file in the directory of a comparison
Section = Mapping[str, Any]  # class_path and init_args of an algorithm
SEARCHES = "searches"  # folder of the searches that came before the runs, one study for each algorithm
SEARCH_TABLE, CLIENT_GAINS = "search.csv", "client_gains.csv"
_TABLES = ("results.md", "results.csv", "results.tex", "runs.csv", CLIENT_GAINS, SEARCH_TABLE)
_RESERVED = ("pictures", "search", SEARCHES, RECORD, *_TABLES)
TABLE = ("test", "difference")  # columns of results.tex
ALL_COLUMNS = (
    *("seeds", "test", "val", "tuned", "newcomers", "worst10", "losing", "difference", "needed", "gap", "ari"),
    *("clusters", "rounds_to", "mib_to", "steps_to", "mib", "steps", "seconds"),
)

_OF_AN_ENTRY = ("server", "shared", "personal")  # options of the experiment that an entry's file may set, too
OWN = (*_OF_AN_ENTRY, "local", "task.optimizer")  # options of the experiment that may be given by an algorithm's name
_EPILOG = """\
WHAT is a class (FedAvg; the file's own algorithm keeps the arguments it has there), a packaged configuration
(ifca/digits) or a YAML file, of which algorithm:, server:, shared: and personal: are taken. Options of one algorithm
begin with its name, also its learning rate (--IFCA.task.optimizer.lr 0.2); all others are those of lit-cfl run:

  lit-cfl compare --config quickstart --algorithms FedAvg IFCA StoCFL --seeds 0 1 2 3 4
  lit-cfl compare --config quickstart --algorithms FedAvg two=IFCA four=IFCA --two.num_clusters 2 --four.num_clusters 4
"""
_ELSEWHERE = {
    "--seed": "give --seeds",
    "--num_seeds": "give --seeds, such as --seeds 0 1 2",
    "--run_dir": "give --compare_dir",
    "--json": "read runs.csv and results.csv",
    "--new_plan": "all runs of a comparison use one plan",
    "--algorithm": "give --algorithms, and options by its name, such as --FedGroup.num_clusters 4",
    "--baseline": "put it first in --algorithms",
    "--print_config": "see <name>/config.yaml in the comparison's directory",
}
_FREE = ("--resume", "--num_cpus", "--target", "--table", "--quiet", "--dry-run")  # options allowed with --resume


@dataclass(frozen=True)
class CompareArguments:
    """The parsed command line of `lit-cfl compare`.

    Args:
        files: Paths of the experiment's files, in order.
        algorithms: Words after `--algorithms`, see `read_entries`.
        seeds: Seeds of the runs; empty = the file's.
        compare_dir: Directory of the files; None = runs/<name>-compare-<time>.
        resume: Directory of a comparison to continue, or None.
        target: Test score to reach, at a cost shown in the columns of rounds and MiB, or None.
        table: Columns of `results.tex`.
        num_cpus: Cores to use; None = all.
        quiet, dry_run: Options as in `lit-cfl run`.
        rest: Options of the experiment and of single algorithms.
        search: Options `--search.<option>=VALUE`; None = no search is asked for here.
        content: Content of an experiment's file, in place of `files`.
    """

    files: list[str]
    algorithms: list[str]
    seeds: list[int]
    compare_dir: str | None
    resume: str | None
    target: float | None
    table: Sequence[str]
    num_cpus: int | None
    quiet: bool
    dry_run: bool
    rest: list[str]
    search: list[str] | None = None
    content: Mapping[str, Any] | None = None

    @property
    def search_groups(self) -> list[Any] | None:
        """The groups `search` of the experiment's files, in order; None if no search is asked for."""
        contents = map(read_config, self.files) if self.content is None else [self.content]
        groups = [content["search"] for content in contents if content.get("search") is not None]
        return None if self.search is None and not groups else groups


def read_arguments(arguments: Sequence[str], content: Mapping[str, Any] | None = None) -> CompareArguments:
    """Parses the command line, except for the options of the experiment and the algorithms. Raises InputError.

    Args:
        arguments: Words after the command.
        content: Content of an experiment's file, in place of `--config`.
    """
    given, rest = _parser().parse_known_args(arguments)
    search = [word for word in arrange(rest) if word.startswith("--search.")]
    if search:  # without it, the words stay as they were typed
        rest = [word for word in arrange(rest) if not word.startswith("--search.")]
    for word in rest:
        head = word.partition("=")[0]
        group = head.partition(".")[0]
        owner = group if group in ("--algorithm", "--baseline") else head
        if owner in _ELSEWHERE:
            raise InputError(f"{head} is not an option of lit-cfl compare; {_ELSEWHERE[owner]}")
    if given.resume is not None:
        _require_free(arguments, [*rest, *search])
    elif given.config is None and content is None:
        file = next((word for word in rest if Path(word).is_file()), "quickstart")
        raise InputError(f"no experiment is given; give a file: --config {file}")
    elif not given.algorithms:
        raise InputError("no algorithms are given; give --algorithms, such as --algorithms FedAvg IFCA")
    if given.target is not None and not isfinite(given.target):
        raise InputError(f"--target is {given.target:g}; it is a test score, so give a number, such as 0.8")
    if given.num_cpus is not None:
        _require_cores(given.num_cpus)
    files = [catalogue.config_path(file) for file in given.config or []]
    own = {name: value for name, value in vars(given).items() if name != "config"}
    own |= {"algorithms": given.algorithms or [], "seeds": [_seed(word) for word in given.seeds or []]}
    own |= {"search": search if search or given.search else None}
    return CompareArguments(**own, files=files, rest=rest, content=content)


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
    add(
        "--config",
        action="append",
        metavar="FILE",
        help="The experiment: a file, or the name of one of `lit-cfl list configs`. May be given several times: "
        "options of a later file replace those of earlier ones.",
    )
    add(
        "--algorithms",
        nargs="+",
        action="extend",
        metavar="WHAT",
        help="Algorithms to compare, each as described below; the first is the reference.",
    )
    add("--seeds", nargs="+", metavar="N", help="Seeds, in place of the file's.")
    add("--compare_dir", metavar="DIR", help="Directory of the comparison (default: runs/<name>-compare-<time>).")
    add("--resume", metavar="DIR", help="Resume a comparison with its recorded options.")
    add(
        "--target",
        type=float,
        help="Test score to reach, for the columns rounds to, MiB to and local steps to (default: one that all reach).",
    )
    add("--table", nargs="+", choices=ALL_COLUMNS, default=TABLE, help="Columns of results.tex, in this order.")
    add(
        "--search",
        action="store_true",
        help="First search every algorithm's options on validation data, with one budget and the same learning rates: "
        "--search.trials N or --search.minutes M, --search.seeds, --search.rates, --search.spaces.NAME FILE, "
        "--search.stopping.eta, --search.resources.gpus and others of docs/compare.md.",
    )
    add("--num_cpus", type=int, help="Cores to use (default: all); 1: one run after the other, without Ray.")
    add("--quiet", action="store_true", help="Print only errors, and the comparison's directory at the end.")
    add("--dry-run", action="store_true", help="Check everything and say what would run; run nothing.")
    return parser


def _seed(word: str) -> int:
    if not word.isdecimal():
        numbers = spell_range(word)
        remedy = f"--seeds {numbers}" if numbers else "whole numbers from 0 on, such as --seeds 0 1 2"
        raise InputError(f"--seeds: {word!r} is not a seed; give {remedy}")
    return int(word)


def _require_cores(asked: int) -> None:
    if asked < 1:
        raise InputError(f"--num_cpus is {asked}; give 1 or more")
    from lit_cfl.devices import count_cores  # takes a second to import

    cores = count_cores()
    if asked > cores and "RAY_ADDRESS" not in os.environ:
        raise InputError(f"--num_cpus is {asked}, but only {cores} cores are available; give {cores} or less")


def _require_free(arguments: Sequence[str], rest: Sequence[str]) -> None:
    for word in arguments:
        name = word.partition("=")[0]
        if (name.startswith("--") and name not in _FREE) or word in rest:
            raise InputError(
                f"--resume continues the comparison as it was started; leave out {name} (only {', '.join(_FREE[1:])} "
                "may be given), or start another one with --compare_dir"
            )


@dataclass(frozen=True)
class ComparedAlgorithm:
    """One algorithm of a comparison.

    Args:
        name: Name of the entry's folder, options and row of the table.
        section: Class and arguments, as under `algorithm:` in a configuration.
        words: Further options, as `--algorithm.<option> VALUE`.
        code: Folders of the user's own classes.
    """

    name: str
    section: Section
    words: tuple[str, ...] = ()
    code: tuple[str, ...] = ()

    @property
    def options(self) -> Collection[str]:
        """The options of the algorithm's class. Raises InputError if there is no such class."""
        from lit_cfl.algorithms import Algorithm  # takes seconds to import

        return options_of(find_class(self.name, self.section["class_path"], Algorithm))

    def given(self, option: str) -> bool:
        """Returns whether the user has set this option."""
        flag = f"--algorithm.{option}"
        written = self.section.get("init_args") or {}
        return option in written or any(word.partition("=")[0] == flag for word in self.words)


def read_entries(words: Sequence[str], own: Section | None) -> list[ComparedAlgorithm]:
    """Reads the entries of `--algorithms`.

    Args:
        words: Entries `[NAME=]WHAT`: a class, a packaged configuration, a file with an `algorithm:`, or a file of an
            algorithm.
        own: The experiment's algorithm; an entry that is only its class has the file's arguments.

    Raises:
        InputError: an unknown file, a name twice, or a name that a folder cannot have.
    """
    entries = [_entry(word, own) for word in words]
    earlier: dict[str, str] = {}
    for word, entry in zip(words, entries, strict=True):
        _require_name(entry.name)
        name, what = entry.name.lower(), word.removeprefix(f"{entry.name}=")
        if name in earlier:
            raise InputError(
                f"--algorithms has {entry.name} twice; give each a separate name: A={earlier[name]} B={what}"
            )
        earlier[name] = what
    return entries


def with_options(
    entries: Sequence[ComparedAlgorithm], words: Sequence[str]
) -> tuple[list[ComparedAlgorithm], list[str]]:
    """Adds the options `--NAME.option VALUE` on the command line to the compared algorithm NAME.

    Returns:
        The entries with their options, and the remaining words.

    Raises:
        InputError: a name is an option of experiments, or an option can belong to no algorithm or not to a single one.
    """
    from lit_cfl.experiment import Experiment  # takes seconds to import

    heads = options_of(Experiment)
    known = {one.name: one.options for one in entries}
    if taken := [name for name in known if name in heads]:
        raise InputError(f"{taken[0]!r} is an option of experiments; give the algorithm another name, NAME=...")
    own: dict[str, list[str]] = {name: [] for name in known}
    left: list[str] = []
    target = left
    for word in words:
        if word.startswith("--"):
            name = max((name for name in own if word.startswith(f"--{name}.")), key=len, default=None)
            target = left if name is None else own[name]
            word = word if name is None else _flag(name, word.removeprefix(f"--{name}."), known[name], heads)
        target.append(word)
    for option, _ in given_options(left):
        head, dot, _ = option.partition(".")
        if dot and head not in heads:
            raise InputError(
                f"--{option}: no algorithm here is called {head!r}{suggest(head, known)}; the algorithms are "
                f"{', '.join(known)}"
            )
        if head not in heads and (owner := next((name for name in known if option in known[name]), None)):
            raise InputError(f"there is no option {option!r} of all algorithms; give --{owner}.{option} for {owner}")
    return [replace(entry, words=(*entry.words, *own[entry.name])) for entry in entries], left


def _flag(name: str, option: str, known: Collection[str], heads: Collection[str]) -> str:
    """Converts an option of a compared algorithm to its flag in `lit-cfl run`.

    Args:
        name: Name of the algorithm.
        option: The option without the name, perhaps with `=` and its value.
        known: Options of the algorithm's class.
        heads: Options of an experiment.
    """
    path, joined, value = option.partition("=")
    path = ".".join(parts_of(path))
    head = path.partition(".")[0]
    if head in known or head not in heads:
        return f"--algorithm.{path}{joined}{value}"
    if not any(f"{path}.".startswith(f"{part}.") for part in OWN):
        raise InputError(
            f"--{name}.{path}: {path} is the same for all compared algorithms; give --{path}, without {name}"
        )
    return f"--{path}{joined}{value}"


def section(written: Any, where: str) -> Section:
    """Returns the algorithm of a configuration as a mapping with `class_path`, even if only its name is written."""
    if isinstance(written, str):
        return {"class_path": written}
    if not isinstance(written, dict) or not isinstance(written.get("class_path"), str):
        raise InputError(f"{where} names no algorithm; it needs algorithm: with class_path: (and init_args:)")
    return written


def _entry(word: str, own: Section | None) -> ComparedAlgorithm:
    name, what = "", word
    words: tuple[str, ...] = ()
    if "=" in word and not Path(word).is_file():
        name, _, what = word.partition("=")
    if Path(what).is_file() or what in catalogue.configs() or "/" in what or what.endswith(".yaml"):
        file = catalogue.config_path(what)
        whole, code = read_config(file), tuple(append_to_path(["--config", file]))
        found = section(whole.get("algorithm", whole), file)
        kept = {option: whole[option] for option in _OF_AN_ENTRY if whole.get(option) is not None}
        words = tuple(
            f"--{option}={value if isinstance(value, str) else json.dumps(value)}" for option, value in kept.items()
        )
    elif "," in what:
        apart = " ".join(split_list(what))
        raise InputError(f"--algorithms has {word!r}; separate algorithms by spaces: --algorithms {apart}")
    else:
        mine = own is not None and what in (own["class_path"], _short(own["class_path"]))
        found, code = own if mine and own is not None else {"class_path": what}, ()
    return ComparedAlgorithm(name or _short(found["class_path"]), found, words, code)


def _short(class_path: str) -> str:
    return class_path.rpartition(".")[2]


def _require_name(name: str) -> None:
    plain = name and Path(name).name == name and name[0] not in ".-" and "\\" not in name and name.isprintable()
    if not plain or name.lower() in _RESERVED:
        raise InputError(
            f"{name!r} cannot be an algorithm's name here, because the folder of its runs gets that name; choose "
            "another NAME="
        )
