"""Builds an Experiment from a YAML file and command-line options."""

import re
from argparse import SUPPRESS
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from os.path import isfile
from pathlib import Path
from typing import Any
from warnings import warn

from jsonargparse import ArgumentError, ArgumentParser, Namespace, set_parsing_settings
from lightning import LightningModule

from lit_cfl.config.build import ConfiguredExperiment, build_experiment, instantiate
from lit_cfl.config.files import (
    LOGGER_PATHS,
    append_to_path,
    code_folders,
    read_config,
    require_class_entries,
    with_absolute_paths,
    with_recorded_config,
)
from lit_cfl.config.given_options import given_options
from lit_cfl.config.messages import describe_import_error
from lit_cfl.config.mistakes import Option, explain, options_of
from lit_cfl.config.named_configs import config_files, with_paths
from lit_cfl.config.option_tree import COMMAND_ONLY, OF_DATA, OF_RUN, experiment_tree
from lit_cfl.config.own_code import announce_own_code, no_code_from, require_own_modules
from lit_cfl.config.typed_words import with_lists
from lit_cfl.config.untyped import read_untyped
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.errors import InputError, Notice
from lit_cfl.experiment import Experiment
from lit_cfl.storage.config_file import stored_config
from lit_cfl.storage.given_paths import expand_home, resolve_directory
from lit_cfl.storage.yaml_files import leaves, parse_yaml

_GROUPS = ("local", "evaluation", "checkpoint", "tracking", "pictures")  # options that are groups of options
_OF_RUN = ("resume", "run_dir", "new_plan", "tiny", "dry-run", "quiet", "json")  # options of a command that trains
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


class CommandParser(ArgumentParser):
    """Parser of a command's options.

    For the help of a class (`--data.help ArrayData`) jsonargparse makes another parser of this class, whose usage then
    names the command and the class.
    """

    _command = "lit-cfl run"  # command whose options were parsed last

    def __init__(self, *positional: Any, prog: str | None = None, description: str | None = None, **options: Any):
        of = re.fullmatch(r"Help for (--\w+)\.help=(?:.*\.)?(\w+)", description or "")
        if prog is None and of is not None:
            prog = f"{CommandParser._command} {of[1]} {of[2]}"
        super().__init__(*positional, prog=prog, description=description, **options)

    def parse_args(self, *positional: Any, **options: Any) -> Namespace:  # type: ignore[override]  # whatever jsonargparse takes
        if self.prog.startswith("lit-cfl "):  # otherwise this parser prints the help text of a class
            CommandParser._command = self.prog
        return super().parse_args(*positional, **options)


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
    parser = CommandParser(
        prog=prog,
        exit_on_error=False,
        allow_abbrev=False,
        description="Runs an experiment and its baseline into a run directory.",
    )
    parser.add_argument("--config", action="config", help="A YAML file, or the name of one of `lit-cfl list configs`.")
    parser.add_argument("--seed", type=int, help="One seed in place of the file's.")
    # this option and the next two are written by runs
    parser.add_argument("--code", type=list[str], default=[], help=SUPPRESS)
    parser.add_argument("--data_commit", type=str, help=SUPPRESS)
    parser.add_argument("--format", type=int, help=SUPPRESS)
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
    parser.add_argument("--run_dir", type=str, help="Directory of the run (default: runs/<name>-<time>).")
    parser.add_argument("--resume", metavar="RUN_DIR", help="Resume a run; with --config, start it if there is none.")
    parser.add_argument("--new_plan", action="store_true", help="With --resume: use a new plan for this machine.")
    parser.add_argument(
        "--tiny", action="store_true", help="Check that it runs: 4 clients, 20 examples each, 2 steps, 1 round."
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="Print the size and the estimated time of the run; run nothing."
    )
    parser.add_argument("--quiet", action="store_true", help="Print only errors, and the run directory at the end.")
    parser.add_argument(
        "--json", action="store_true", help="Print only a JSON object for each evaluated round and each summary."
    )


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
        return _request(prog, arguments, append_to_path(arguments, opened or resumed))


def _request(prog: str, arguments: Sequence[str], code: list[str]) -> RunRequest:
    """Parses a command line and builds the experiment from its options."""
    parser = experiment_parser(prog)
    read, untyped = _read(parser, arguments)
    _require_recorded_plan(read, arguments)
    empty = [name for name in _GROUPS if not isinstance(read.get(name), Namespace)]
    if empty:
        raise InputError(f"{empty[0]} is null; give its options, or leave it out")
    missing = [name for name in ("data", "task", "algorithm") if read.get(name) is None]
    if missing:
        raise InputError(f"no {missing[0]} is given; start from a file: {prog} --config quickstart")
    if read.seed is not None:
        read.seeds = [read.seed]
    config = _configuration(parser, read, code)
    return RunRequest(build_experiment(config, None if untyped else read), read, _find_changed(read))


def parse_data(arguments: Sequence[str]) -> DataRequest:
    """Parses the command line of `lit-cfl data`, which needs no task and no algorithm."""
    ignored = [name for name in options_of(Experiment) if name not in ("data", "name", "seeds")]
    parser = _new_parser("lit-cfl data", ignored)
    parser.description = "Shows how the data are divided: a table, and pictures and the partition file in a folder."
    parser.add_argument("--out", metavar="DIR", help="Folder for the files (default: runs/<name>-data).")
    for name in _OF_RUN:
        parser.add_argument(f"--{name}", nargs="?", const="given", help=SUPPRESS)
    append_to_path(arguments)
    read, _ = _read(parser, arguments, ignored=ignored)
    foreign = [name for name in _OF_RUN if read[name.replace("-", "_")]]
    if foreign:
        raise InputError(f"--{foreign[0]} is an option of lit-cfl run; lit-cfl data trains nothing, leave it out")
    if unused := [f"--{option}" for option, _ in given_options(arguments) if option.partition(".")[0] in ignored]:
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
    words = [word for file in files for word in ("--config", file)]
    code = append_to_path(words)
    named = any("algorithm" in read_config(file) for file in files)
    parser = experiment_parser("lit-cfl run")
    read, _ = _read(parser, [*words, *([] if named else ["--algorithm", "FedAvg"])], defaults=False)
    merged: dict[str, Any] = parse_yaml(parser.dump(read, skip_unset=False, skip_validation=True))
    return {name: value for name, value in merged.items() if named or name != "algorithm"} | {"code": code}


def _read(
    parser: ArgumentParser, arguments: Sequence[str], ignored: Sequence[str] = (), defaults: bool = True
) -> tuple[Namespace, bool]:
    """Parses a command line. Returns its options, and whether some are untyped; see `read_untyped`."""
    words = with_paths(arguments)
    contents = {file: read_config(file) for file in config_files(words)}
    # includes the options of `lit-cfl data`, which also calls this function
    tree = experiment_tree(list(contents.values()), words, (*OF_RUN, *OF_DATA))
    words = with_lists(words, tree.look_up)
    own = [folder for content in contents.values() for folder in content.get("code") or []]
    require_own_modules(tree.chosen.values(), [*own, *code_folders(words)])
    for file, content in contents.items():
        # `space` is skipped, since it belongs to a study
        require_class_entries(file, {name: part for name, part in content.items() if name != "space"})
    _require_one_choice_of_seeds(
        words, {k for content in contents.values() for k, v in content.items() if v is not None}
    )
    try:
        read = parser.parse_args(words, defaults=defaults)
        untyped = read_untyped(read, words)
        _put_home_into_loggers(read)
        _require_values(parser, read, _with_null(contents.values(), words))
    except (ArgumentError, TypeError) as error:
        if isinstance(error, TypeError) and not str(error).startswith("Parser key"):
            raise
        options = {k: v for k, v in options_of(Experiment).items() if k not in ignored} | {"seed": Option(int | None)}
        raise InputError(explain(error, list(contents.values()), words, tree, options)) from error
    except Exception as error:
        found = describe_import_error(error)
        if found is None:
            raise
        raise InputError(found) from error
    return read, untyped


def _put_home_into_loggers(read: Namespace) -> None:
    """Replaces `~` in the folders of loggers, most of which would create a folder named `~`."""
    tracking = read.get("tracking")
    for logger in (tracking.get("loggers") if isinstance(tracking, Namespace) else None) or []:
        given = logger.get("init_args") if isinstance(logger, Namespace) else None
        for name in LOGGER_PATHS:
            if isinstance(given, Namespace) and str(given.get(name)).startswith("~"):
                given[name] = str(expand_home(given[name]))


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


def _require_one_choice_of_seeds(words: Sequence[str], written: Set[str]) -> None:
    """Refuses `seed` together with `seeds`. `--seed` on the command line replaces a file's seeds."""
    given = {option for option, _ in given_options(words)}
    if {"seed", "seeds"} <= given | {"seed"} & written or {"seed", "seeds"} <= written:
        raise InputError("seed and seeds are both given; leave one of them out")


def _require_values(parser: ArgumentParser, read: Namespace, options: Set[str]) -> None:
    """Refuses null, in a file or on the command line, for options that require a value.

    Args:
        options: Top-level options that may be null; the parser has checked all others.
    """
    given = [name for name in options if name in read and (name not in _GROUPS or read[name] is not None)]
    names = [name for name in given if read[name] is not None or parser.get_default(name) is not None]
    set_parsing_settings(unset_sentinel=True)
    try:
        parser.validate(Namespace({name: read[name] for name in names}), skip_required=True)
    finally:
        set_parsing_settings(unset_sentinel=False)


def _with_null(contents: Iterable[Mapping[str, Any]], words: Sequence[str]) -> set[str]:
    """Lists the top-level options that contain null in a file, or may contain null on the command line."""
    options = [option for content in contents for option in content.items()]
    found = {name for name, value in options if any(part is None for _, part in leaves(value))}
    option = ""
    for word in words:
        name, joined, value = word.partition("=") if word.startswith("--") else (option, "=", word)
        option = name.removeprefix("--")
        if joined and (value.lower() in ("", "~", "null", "none") or value[0] in "{[" or isfile(value)):
            found.add(option)
    return {str(name).partition(".")[0] for name in found}


def _configuration(parser: ArgumentParser, read: Namespace, code: list[str]) -> dict[str, Any]:
    """Returns the experiment's options as plain values, without those of the command."""
    config = parse_yaml(parser.dump(read, skip_unset=False, skip_validation=True))  # `_read` has validated it
    options: dict[str, Any] = {name: value for name, value in config.items() if name not in COMMAND_ONLY}
    marked = {"tiny": True} if read.tiny else {}  # so that a resumed run is tiny, too
    return options | marked | {"code": code}  # so that a resumed run finds the same files


def _find_changed(read: Namespace) -> list[str]:
    """Returns notices of the file's options that are dropped or kept because another class was chosen."""
    notices = []
    for path in filter(None, read.config or []):  # None = text in place of a file
        written: dict[str, Any] = parse_yaml(Path(str(path)).read_text("utf-8")) or {}
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
