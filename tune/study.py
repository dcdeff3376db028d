"""A study as its file describes it, and `lit-cfl tune`'s options."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from lit_cfl import catalogue
from lit_cfl.checkpoint import write_atomically
from lit_cfl.config_errors import explain
from lit_cfl.config_files import config_files, found_config
from lit_cfl.errors import InputError
from tune.candidate import base_config
from tune.objective import DEFAULT, Objective
from tune.spaces import Space, parse_space


@dataclass(frozen=True)
class Resources:
    """What one trial holds while it runs.

    Args:
        cpus: cores, above 0; also PyTorch's threads, unless the base sets `plan.threads`.
        gpus: share of a GPU, 0 or more; 0.25 = four trials on each.
    """

    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not self.cpus > 0:
            raise InputError(f"resources.cpus is {self.cpus}; give a number above 0")
        if not self.gpus >= 0:
            raise InputError(f"resources.gpus is {self.gpus}; give 0 or more")


@dataclass(frozen=True)
class Limits:
    """When a study ends.

    Args:
        trials: how many are begun; None = 20, or all of a grid.
        minutes: trials that still run then are stopped; None = no limit.
        target: ends the study once a trial that ran to its end is this good; None = never.
        concurrent: trials at the same time, at most; None = as many as the resources allow.
    """

    trials: int | None = None
    minutes: float | None = None
    target: float | None = None
    concurrent: int | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "concurrent"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"limits.{name} is {value}; give 1 or more")
        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"limits.minutes is {self.minutes}; give a number above 0")


@dataclass(frozen=True)
class Study:
    """A search over an experiment's options.

    Args:
        base: the experiment: a file, the name of a packaged configuration, or the experiment itself.
        space: what is searched: dotted names of options, each with one of uniform, loguniform, quniform, randint,
            choice, grid.
        name: of the study, and of its directory.
        metric: a `val/...` column of `metrics.csv`.
        seeds: of every trial; None = the base's.
        search_seed: of the search itself.
        searcher: a Ray Tune searcher: its class, or class_path and init_args; None = random search.
        scheduler: a Ray Tune scheduler, in the same way; None = ASHA on rounds.
        resources: what each trial holds.
        limits: when the study ends.
        num_repeats: new seeds on which the best trial and the default setting are trained at the end, 0 or more.
    """

    base: str | dict[str, Any]
    space: dict[str, Any]
    name: str = "study"
    metric: str = DEFAULT
    seeds: list[int] | None = None
    search_seed: int = 0
    searcher: str | dict[str, Any] | None = None
    scheduler: str | dict[str, Any] | None = None
    resources: Resources = field(default_factory=Resources)
    limits: Limits = field(default_factory=Limits)
    num_repeats: int = 5

    def __post_init__(self) -> None:
        if not self.name or Path(self.name).name != self.name:
            raise InputError(f"name is {self.name!r}; it names a folder in runs/, so give a word without slashes")
        if self.num_repeats < 0:
            raise InputError(f"num_repeats is {self.num_repeats}; give 0 or more")
        if self.seeds is not None and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise InputError(f"seeds is {self.seeds}; give one or more different numbers, such as [0, 1, 2]")

    @property
    def objective(self) -> Objective:
        return Objective(self.metric)

    def searched(self) -> Space:
        """Its space, parsed."""
        return parse_space(self.space)

    def write(self, path: Path) -> None:
        """Writes the study file."""
        text = yaml.safe_dump(asdict(self), sort_keys=False, allow_unicode=True)
        write_atomically(path, lambda file: file.write(text.encode()))


@dataclass(frozen=True)
class StudyRequest:
    """What a command line asks for.

    Args:
        study: with its base whole.
        study_dir: where its files go; None = runs/<name>-<time>.
        resume: a study directory to go on with, or None.
        address: of a Ray cluster; None = this machine.
    """

    study: Study
    study_dir: str | None
    resume: str | None
    address: str | None


def study_parser() -> ArgumentParser:
    """Options of `lit-cfl tune`; help texts come from the docstrings."""
    parser = ArgumentParser(
        prog="lit-cfl tune", exit_on_error=False, allow_abbrev=False,
        description="Searches an experiment's options with Ray Tune; every trial is a whole run.",
    )  # fmt: skip
    parser.add_argument(
        "--config", action="config", help="A study's file, or the name of one, such as tune/quickstart."
    )
    parser.add_argument("--study_dir", type=str, help="Where the files go (default: runs/<name>-<time>).")
    parser.add_argument("--resume", metavar="STUDY_DIR", help="Go on with a study. Never one of a stranger.")
    parser.add_argument("--ray.address", type=str, help="auto or HOST:PORT of a Ray cluster (default: this machine).")
    parser.add_class_arguments(Study)
    return parser


def parse_study(arguments: Sequence[str]) -> StudyRequest:
    """Reads a command line. Raises InputError for anything that cannot be used."""
    words = _with_recorded_study(arguments)
    parser = study_parser()
    read = _read(parser, [found_config(a, b) for a, b in zip(["", *words], words, strict=False)])
    if read.get("base") is None:
        raise InputError("no base is given; start from a file: lit-cfl tune --config tune/quickstart")
    resume, address = read.pop("resume"), read.pop("ray").address
    study_dir = read.pop("study_dir")
    files = [Path(file) for file in config_files(words)]
    read.pop("config")
    study = _build(parser, read)
    beside = next((file.parent for file in reversed(files) if file.is_file()), None)
    whole = base_config(study.base, beside)
    return StudyRequest(Study(**(vars(study) | {"base": whole})), study_dir, resume, address)


def _with_recorded_study(arguments: Sequence[str]) -> list[str]:
    words = list(arguments)
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--resume"), None)
    if at is None:
        return words
    path = Path(words[at].partition("=")[2] or "".join(words[at + 1 : at + 2]))
    others = [word for word in words if word.startswith("--") and word.partition(".")[0].partition("=")[0] != "--ray"]
    if len(others) > 1:
        raise InputError(
            f"--resume goes on with the study as it is; leave out {others[0]} (only --ray.address is free)"
        )
    if not (path / "study.yaml").is_file():
        raise InputError(f"{path} holds no study to resume; give the directory of one")
    return ["--config", str(path / "study.yaml"), *words]


def _read(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    try:
        return parser.parse_args(list(words))
    except ArgumentError as error:
        message = explain(str(error), list(parser._option_string_actions))
        raise InputError(message.replace("lit-cfl run", "lit-cfl tune")) from error
    except UnicodeDecodeError as error:
        raise InputError(f"the study's file is no UTF-8 text: {error}") from error


def _build(parser: ArgumentParser, read: Namespace) -> Study:
    try:
        given = parser.instantiate(read)
    except ValueError as error:
        raise next(
            (e for e in (error, error.__cause__, error.__context__) if isinstance(e, InputError)), error
        ) from error
    return Study(**{name: getattr(given, name) for name in vars(given)})


def packaged() -> list[str]:
    """Names of the studies that come with the package."""
    return [name for name in catalogue.configs() if name.startswith("tune/")]
