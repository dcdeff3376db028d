"""Builds an Experiment from a YAML file and command-line options."""

from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any
from warnings import warn

from jsonargparse import ArgumentError, ArgumentParser, Namespace
from lightning import LightningModule

from lit_cfl.config import catalogue
from lit_cfl.config.build import GROUPS, ConfiguredExperiment, build_experiment, instantiate, require_values
from lit_cfl.config.explain import explain
from lit_cfl.config.files import (
    LOGGER_PATHS,
    append_to_path,
    code_folders,
    read_config,
    with_absolute_paths,
    with_recorded_config,
)
from lit_cfl.config.live_options import has_empty_group, options_of, with_lists
from lit_cfl.config.own_code import announce_own_code, no_code_from
from lit_cfl.config.words import arrange, given_options
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.errors import InputError, Notice
from lit_cfl.experiment import Experiment
from lit_cfl.storage.config_file import stored_config
from lit_cfl.storage.given_paths import expand_home, resolve_directory
from lit_cfl.storage.yaml_files import parse_yaml

_OF_RUN = ("resume", "run_dir", "new_plan", "tiny", "dry-run", "quiet", "json")  # options of a command that trains
_OF_COMMAND: dict[str, Any] = {
    **dict.fromkeys(("config", *_OF_RUN, "dry_run", "code", "data_commit", "format", "out"), Any),
    "seed": int | None,
}  # types of the options that are not an experiment's
_OPTIMIZER = "task.init_args.optimizer"


@dataclass(frozen=True)
class RunRequest:
    """The parsed command line of `lit-cfl run`.

    Args:
        experiment: Experiment to run.
        options: Options of the command itself.
        notices: Notices to show before the start.
    """

    experiment: ConfiguredExperiment
    options: Namespace
    notices: list[str]


@dataclass(frozen=True)
class DataRequest:
    """The parsed command line of `lit-cfl data`.

    Args:
        module: Data module.
        name: Name of the experiment.
        seed: First seed of the experiment.
        out: Folder for the files, or None.
    """

    module: FederatedDataModule
    name: str
    seed: int
    out: str | None


@cache
def experiment_parser(prog: str) -> ArgumentParser:
    """Returns the parser of all experiment options, built once per process."""
    return _new_parser(prog)


def _new_parser(prog: str, ignored: Sequence[str] = ()) -> ArgumentParser:
    """Builds a parser of all experiment options, with help texts from the docstrings.

    Args:
        prog: Name of the command.
        ignored: Options of an experiment that may have any value or be missing, as the command trains nothing; the
            help does not list them.
    """
    parser = ArgumentParser(
        prog=prog,
        exit_on_error=False,
        allow_abbrev=False,
        description="Runs an experiment and its baseline into a run directory.",
    )
    parser.add_argument("--config", action="config", help="A YAML file, or the name of one of `lit-cfl list configs`.")
    parser.add_argument("--seed", type=int | None, help="One seed in place of the file's.")
    # this option and the next two are written by runs
    parser.add_argument("--code", type=list[str], default=[], help=SUPPRESS)
    parser.add_argument("--data_commit", type=str | None, help=SUPPRESS)
    parser.add_argument("--format", type=int | None, help=SUPPRESS)
    for name in ignored:
        parser.add_argument(f"--{name}", type=Any, help=SUPPRESS)
    if not ignored:
        _add_run_options(parser)
    parser.add_class_arguments(Experiment, as_group=not ignored, skip={"task", *ignored})
    if not ignored:
        parser.add_argument_group("The LightningModule that each client trains").add_subclass_arguments(
            LightningModule,
            "task",
            as_group=False,
            metavar="NAME",
            help="Class of the task, such as Classification; --task.<option> VALUE sets one of its options.",
        )
    return parser


def _add_run_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--run_dir", type=str | None, help="Directory of the run (default: runs/<name>-<time>).")
    add("--resume", metavar="RUN_DIR", help="Resume a run; with --config, start it if there is none.")
    add("--new_plan", action="store_true", help="With --resume: use a new plan for this machine.")
    add("--tiny", action="store_true", help="Check that it runs: 4 clients, 20 examples each, 2 steps, 1 round.")
    add("--dry-run", action="store_true", help="Print the size and the estimated time of the run; run nothing.")
    add("--quiet", action="store_true", help="Print only errors, and the run directory at the end.")
    add("--json", action="store_true", help="Print only a JSON object for each evaluated round and each summary.")


def parse_run(arguments: Sequence[str], prog: str = "lit-cfl run", opened: Path | None = None) -> RunRequest:
    """Parses the command line of `lit-cfl run` and builds the experiment.

    Args:
        arguments: Words after the command.
        prog: Name of the command.
        opened: Directory of the configuration, perhaps another person's: no code is loaded from it.

    Raises:
        InputError: a word or a value cannot be used.
    """
    arguments, resumed = with_recorded_config(arguments)
    if resumed is not None and (resumed / "config.yaml").is_file():
        announce_own_code(resumed, [resumed], code_folders(arguments, resumed))
    with no_code_from(opened or resumed):
        code = append_to_path(arguments, opened or resumed)
        parser = experiment_parser(prog)
        read = _read(parser, arguments)
        _require_recorded_plan(read, arrange(arguments))
        if read.seed is not None:
            read.seeds = [read.seed]
        config = parse_yaml(parser.dump(read, skip_unset=False, skip_validation=True))  # `_read` has validated it
        options: dict[str, Any] = {name: value for name, value in config.items() if name not in _OF_COMMAND}
        # a resumed run is tiny, too, and finds the same files
        marked = {"tiny": True} if read.tiny else {}
        return RunRequest(build_experiment(options | marked | {"code": code}, read), read, _find_changed(read))


def parse_data(arguments: Sequence[str]) -> DataRequest:
    """Parses the command line of `lit-cfl data`, which needs no task and no algorithm."""
    ignored = [name for name in options_of(Experiment) if name not in ("data", "name", "seeds")]
    parser = _new_parser("lit-cfl data", ignored)
    parser.description = "Shows how the data are divided: a table, and pictures and the partition file in a folder."
    parser.add_argument("--out", metavar="DIR", help="Folder for the files (default: runs/<name>-data).")
    for name in _OF_RUN:
        parser.add_argument(f"--{name}", nargs="?", const="given", help=SUPPRESS)
    append_to_path(arguments)
    read = _read(parser, arguments, ignored)
    foreign = [name for name in _OF_RUN if read[name.replace("-", "_")]]
    if foreign:
        raise InputError(f"--{foreign[0]} is an option of lit-cfl run; lit-cfl data trains nothing, leave it out")
    given = [option for option, _ in given_options(arrange(arguments))]
    if unused := [f"--{option}" for option in given if option.partition(".")[0] in ignored]:
        warn(f"lit-cfl data trains nothing, and does not use {', '.join(unused)}", Notice, stacklevel=2)
    only_data = ArgumentParser(exit_on_error=False)
    only_data.add_subclass_arguments(FederatedDataModule, "data", required=True)
    # absolute paths as in `build_experiment`, so that both commands print the same errors
    data = only_data.parse_object({"data": with_absolute_paths(read.data.as_dict())})
    module = instantiate(only_data, data).data
    return DataRequest(module, read.name, read.seeds[0] if read.seed is None else read.seed, read.out)


def merge_files(files: Sequence[str]) -> dict[str, Any]:
    """Merges the options in files of an experiment as `lit-cfl run` does, without defaults.

    Raises:
        InputError: an option cannot be used.
    """
    words = [f"--config={file}" for file in files]
    code = append_to_path(words)
    named = any("algorithm" in read_config(file) for file in files)
    parser = experiment_parser("lit-cfl run")
    read = _read(parser, [*words, *([] if named else ["--algorithm=FedAvg"])], defaults=False)
    merged: dict[str, Any] = parse_yaml(parser.dump(read, skip_unset=False, skip_validation=True))
    return {name: value for name, value in merged.items() if named or name != "algorithm"} | {"code": code}


def _read(
    parser: ArgumentParser, arguments: Sequence[str], ignored: Sequence[str] = (), defaults: bool = True
) -> Namespace:
    """Parses the words of a command. Raises InputError with the first option that cannot be used."""
    words = arrange(catalogue.rename_configs(arguments, catalogue.config_path))
    contents = [read_config(file) for file in catalogue.config_files(words)]
    if any("space" in content for content in contents):
        raise InputError("space and base are options of a study; run its file with lit-cfl tune or lit-cfl launch")
    for word in words:
        if not word.startswith("-"):
            raise InputError(_describe_lone_word(word))
    _require_one_choice_of_seeds(contents, words)
    words = with_lists(Experiment, contents, words)

    def refused() -> str | None:
        return explain(Experiment, contents, words, _OF_COMMAND | dict.fromkeys(ignored, Any), parser.prog)

    try:
        read = parser.parse_args(words, defaults=defaults)
        _put_home_into_loggers(read)
        require_values(parser, read, [] if ignored else GROUPS)
        if defaults and read.task is None and "task" not in ignored:  # the parser asks for no task
            raise ArgumentError(None, "no task is given")
        if any(map(has_empty_group, contents)) and (found := refused()):
            raise ArgumentError(None, found)
    except Exception as error:  # a user's module may raise anything
        found = None
        with suppress(Exception):  # inspecting a user's class, too
            found = refused()
        if found is None and not isinstance(error, (ArgumentError, TypeError)):
            raise
        raise InputError(found or " ".join(str(error).split())) from error
    return read


def _put_home_into_loggers(read: Namespace) -> None:
    """Replaces `~` in the folders of loggers, most of which would create a folder named `~`."""
    tracking = read.get("tracking")
    for logger in (tracking.get("loggers") if isinstance(tracking, Namespace) else None) or []:
        given = logger.get("init_args") if isinstance(logger, Namespace) else None
        for name in LOGGER_PATHS:
            if isinstance(given, Namespace) and str(given.get(name)).startswith("~"):
                given[name] = str(expand_home(given[name]))


def _describe_lone_word(word: str) -> str:
    """Describes a word that is neither an option nor a value in one line, with the option to which it may belong."""
    kinds = {"--algorithm": "algorithms", "--config": "configs", "--data": "data"}
    meant = {name.lower(): f"{option} {name}" for option, kind in kinds.items() for name in catalogue.names(kind)}
    close = get_close_matches(word.lower(), meant, n=1, cutoff=0.7)
    written = meant[close[0]] if close else "its option before it, such as --data MNIST or --config quickstart"
    if word.endswith((".csv", ".npz")) or Path(word).is_file():
        written = f"{'--data.source' if word.endswith(('.csv', '.npz')) else '--config'} {word}"
    return f"{word!r} has no option before it; write {written}"


def _require_recorded_plan(read: Namespace, words: Sequence[str]) -> None:
    """With `--resume`, refuses a plan other than the run's unless `--new_plan` is given."""
    if read.resume is None or read.new_plan:
        return
    path = resolve_directory(read.resume, "--resume")
    plans = [(stored_config(part) or {}).get("plan") for part in (path, *sorted(path.glob("seed-*")))]
    recorded: dict[str, Any] = next(filter(None, plans), {})
    if recorded and read.plan is None and "plan" in dict(given_options(words)):
        raise InputError("--plan is null, but a resumed run keeps its plan; leave it out, or add --new_plan")
    for name, value in ({} if read.plan is None else vars(read.plan)).items():
        if value is not None and value != recorded.get(name, value):
            raise InputError(
                f"plan.{name} is {value}, but a resumed run keeps the plan that it was started with, in which it is "
                f"{recorded[name]}; leave it out, or add --new_plan (results may differ by rounding)"
            )


def _require_one_choice_of_seeds(contents: Sequence[Mapping[str, Any]], words: Sequence[str]) -> None:
    """Refuses `seed` together with `seeds`. `--seed` on the command line replaces a file's seeds."""
    written = {name for content in contents for name, value in content.items() if value is not None}
    given = {option for option, _ in given_options(words)}
    if {"seed", "seeds"} <= given | {"seed"} & written or {"seed", "seeds"} <= written:
        raise InputError("seed and seeds are both given; leave one of them out")


def _find_changed(read: Namespace) -> list[str]:
    """Returns notices of the file's options that are dropped or kept because another class was chosen."""
    notices = []
    for path in read.config or []:
        written: dict[str, Any] = read_config(str(path))
        if isinstance(task := written.get("task"), dict):
            written[_OPTIMIZER] = (task.get("init_args") or {}).get("optimizer")
        for part in ("algorithm", "baseline", "data", "task", _OPTIMIZER):
            before, now = written.get(part), read.get(part)
            if not isinstance(before, dict) or not isinstance(now, Namespace):
                continue
            was, name = str(before.get("class_path")).rpartition(".")[2], now.class_path.rpartition(".")[2]
            if was == name:
                continue
            options, taken = before.get("init_args") or {}, now.get("init_args", {})
            lost = [key for key in options if key not in taken]
            kept = [f"{key} {value}" for key, value in options.items() if key in taken and taken[key] == value]
            if lost:
                option = part.replace(".init_args", "")
                notices.append(f"{option} is now {name}: the file's options for {was} do not apply ({', '.join(lost)})")
            # otherwise FLUX would choose the number of clusters itself, and Adam would have its own learning rate
            if kept and part in ("algorithm", _OPTIMIZER):
                notices.append(f"{name} runs with the file's {', '.join(kept)}")
    return notices
