"""Builds an Experiment from a YAML file and command-line options."""

import re
from argparse import SUPPRESS, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from warnings import warn

from jsonargparse import ArgumentError, ArgumentParser
from lightning import LightningModule

from lit_cfl.config import catalogue
from lit_cfl.config.build import (
    OPTIONS,
    ConfiguredExperiment,
    build_experiment,
    instantiate,
    option_parser,
    parse_options,
)
from lit_cfl.config.explain import explain
from lit_cfl.config.files import (
    LOGGER_PATHS,
    append_to_path,
    code_folders,
    read_config,
    with_absolute_paths,
    with_recorded_config,
)
from lit_cfl.config.merge import merge
from lit_cfl.config.own_code import announce_own_code, no_code_from
from lit_cfl.config.words import given_options, has_empty_group
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.errors import InputError, Notice
from lit_cfl.experiment import Experiment
from lit_cfl.storage.config_file import stored_config
from lit_cfl.storage.given_paths import expand_home, resolve_directory
from lit_cfl.storage.yaml_files import parse_yaml

_OF_RUN = ("resume", "run_dir", "new_plan", "tiny", "dry-run", "quiet", "json")  # options of a command that trains
_OF_COMMAND: dict[str, Any] = {
    **dict.fromkeys((*_OF_RUN, "dry_run", "code", "data_commit", "format", "out"), Any),
    "seed": int | None,
}  # types of the options that are not an experiment's
_OF_DATA = ("data", "name", "seeds")  # options of an experiment that `lit-cfl data` uses
_HELP = re.compile(r"-h|--help|--print_config(=.*)?|--[\w.]+\.help(=.*)?")


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


def help_parser(prog: str) -> ArgumentParser:
    """Builds a parser for the help and the resolved configuration of a command; help texts are the docstrings."""
    parser = ArgumentParser(prog=prog, exit_on_error=False, allow_abbrev=False)
    add = parser.add_argument
    add("--config", action="config", help="A YAML file, or the name of one of `lit-cfl list configs`.")
    add("--seed", type=int | None, help="One seed in place of the file's.")
    for name in ("code", "data_commit", "format"):  # written by runs
        add(f"--{name}", type=Any, help=SUPPRESS)
    if prog == "lit-cfl data":
        parser.description = "Shows how the data are divided: a table, and pictures and the partition file in a folder."
        add("--out", metavar="DIR", help="Folder for the files (default: runs/<name>-data).")
        ignored = set(OPTIONS).difference(_OF_DATA)
        for name in ignored:
            add(f"--{name}", type=Any, help=SUPPRESS)
        parser.add_class_arguments(Experiment, as_group=False, skip=ignored)
        return parser
    parser.description = "Runs an experiment and its baseline into a run directory."
    add("--run_dir", type=str | None, help="Directory of the run (default: runs/<name>-<time>).")
    add("--resume", metavar="RUN_DIR", help="Resume a run; with --config, start it if there is none.")
    add("--new_plan", action="store_true", help="With --resume: use a new plan for this machine.")
    add("--tiny", action="store_true", help="Check that it runs: 4 clients, 20 examples each, 2 steps, 1 round.")
    add("--dry-run", action="store_true", help="Print the size and the estimated time of the run; run nothing.")
    add("--quiet", action="store_true", help="Print only errors, and the run directory at the end.")
    add("--json", action="store_true", help="Print only a JSON object for each evaluated round and each summary.")
    parser.add_class_arguments(Experiment, as_group=True, skip={"task"})
    parser.add_argument_group("The LightningModule that each client trains").add_subclass_arguments(
        LightningModule,
        "task",
        as_group=False,
        metavar="NAME",
        help="Class of the task, such as Classification; --task.<option> VALUE sets one of its options.",
    )
    return parser


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
    if resumed is not None and (resumed / "config.yaml").exists():
        # `stored_config` refuses a run of another format before its options are read
        announce_own_code(resumed, [stored_config(resumed)], code_folders(arguments, resumed))
    with no_code_from(opened or resumed):
        code = append_to_path(arguments, opened or resumed)
        return _build(arguments, [], prog, code)


def parse_content(content: Mapping[str, Any], words: Sequence[str]) -> ConfiguredExperiment:
    """Builds the experiment of a file's content and of further words. Raises InputError for what cannot be used."""
    return _build(words, [content], "lit-cfl run", list(content.get("code") or [])).experiment


def _build(arguments: Sequence[str], contents: Sequence[Any], prog: str, code: Sequence[str]) -> RunRequest:
    words, contents, given = _merge(arguments, contents)
    parser = option_parser(frozenset())
    read = _parse(parser, words, given, prog)
    options = Namespace(**{name.replace("-", "_"): given.get(name) for name in _OF_RUN})
    _require_recorded_plan(options, read.plan, words)
    config = parse_yaml(parser.dump(read, skip_unset=False, skip_validation=True))  # `_parse` has validated it
    # a resumed run is tiny, too, and finds the same files
    marked = {"tiny": True} if options.tiny else {}
    experiment = build_experiment(config | marked | {"code": list(code)}, read)
    return RunRequest(experiment, options, _find_changed(contents, given))


def parse_data(arguments: Sequence[str]) -> DataRequest:
    """Parses the command line of `lit-cfl data`, which needs no task and no algorithm."""
    append_to_path(arguments)
    words, _, given = _merge(arguments)
    if foreign := [name for name in _OF_RUN if given.get(name)]:
        raise InputError(f"--{foreign[0]} is an option of lit-cfl run; lit-cfl data trains nothing, leave it out")
    ignored = [name for name in OPTIONS if name not in _OF_DATA]
    if unused := [f"--{option}" for option, _ in given_options(words) if option.partition(".")[0] in ignored]:
        warn(f"lit-cfl data trains nothing, and does not use {', '.join(unused)}", Notice, stacklevel=2)
    parser = option_parser(frozenset(ignored))
    read = _parse(parser, words, given, "lit-cfl data", ignored)
    # absolute paths as in `build_experiment`, so that both commands print the same errors
    only_data = option_parser(frozenset(OPTIONS) - {"data"})
    data = only_data.parse_object({"data": with_absolute_paths(read.data.as_dict())})
    return DataRequest(instantiate(only_data, data).data, read.name, read.seeds[0], given.get("out"))


def merge_files(files: Sequence[str]) -> dict[str, Any]:
    """Merges the options in files of an experiment as `lit-cfl run` does, without defaults."""
    words = [f"--config={file}" for file in files]
    code = append_to_path(words)
    return _merge(words)[2] | {"code": code}


def _merge(arguments: Sequence[str], contents: Sequence[Any] = ()) -> tuple[list[str], list[Any], dict[str, Any]]:
    """Returns the arranged words of a command, the contents of all files, and the options that both give."""
    words = catalogue.arrange_with_paths(arguments)
    contents = [*contents, *map(read_config, catalogue.config_files(words))]
    if any("space" in content for content in contents):
        raise InputError("space and base are options of a study; run its file with lit-cfl tune or lit-cfl launch")
    for word in words:
        if not word.startswith("--") and word != "-h":
            raise InputError(_describe_lone_word(word))
    _require_one_choice_of_seeds(contents, words)
    return words, contents, merge(Experiment, contents, words)


def _parse(
    parser: ArgumentParser, words: Sequence[str], given: Mapping[str, Any], prog: str, ignored: Sequence[str] = ()
) -> Any:
    """Parses the options of an experiment. Raises InputError with the first that cannot be used."""
    own = _OF_COMMAND | dict.fromkeys(ignored, Any)
    options = {name: value for name, value in given.items() if name not in own}
    if given.get("seed") is not None:
        options["seeds"] = [given["seed"]]
    try:
        if any(map(_HELP.fullmatch, words)):
            help_parser(prog).parse_args(words)
        read = parse_options(parser, options)
        _put_home_into_loggers(read)
        if has_empty_group(given) and (found := explain(Experiment, given, own, prog)):
            raise ArgumentError(None, found)
    except Exception as error:  # a user's module may raise anything
        found = None
        with suppress(Exception):  # inspecting a user's class, too
            found = explain(Experiment, given, own, prog)
        if found is None and not isinstance(error, (ArgumentError, TypeError)):
            raise
        raise InputError(found or " ".join(str(error).split())) from error
    return read


def _put_home_into_loggers(read: Any) -> None:
    """Replaces `~` in the folders of loggers, most of which would create a folder named `~`."""
    for logger in read.get("tracking.loggers") or []:
        given = logger.get("init_args") or {}
        for name in LOGGER_PATHS:
            if str(given.get(name)).startswith("~"):
                given[name] = str(expand_home(given[name]))


def _describe_lone_word(word: str) -> str:
    """Describes a word that is neither an option nor a value in one line, with the option to which it may belong."""
    if word.startswith("-"):
        return (
            f"{word!r} is not an option; options begin with two dashes, and such a value is joined: --OPTION='{word}'"
        )
    kinds = {"--algorithm": "algorithms", "--config": "configs", "--data": "data"}
    meant = {name.lower(): f"{option} {name}" for option, kind in kinds.items() for name in catalogue.names(kind)}
    close = get_close_matches(word.lower(), meant, n=1, cutoff=0.7)
    written = meant[close[0]] if close else "its option before it, such as --data MNIST or --config quickstart"
    if word.endswith((".csv", ".npz")) or Path(word).is_file():
        written = f"{'--data.source' if word.endswith(('.csv', '.npz')) else '--config'} {word}"
    return f"{word!r} has no option before it; write {written}"


def _require_recorded_plan(options: Namespace, plan: Any, words: Sequence[str]) -> None:
    """With `--resume`, refuses a plan other than the run's unless `--new_plan` is given."""
    if options.resume is None or options.new_plan:
        return
    path = resolve_directory(options.resume, "--resume")
    plans = [(stored_config(part) or {}).get("plan") for part in (path, *sorted(path.glob("seed-*")))]
    recorded: dict[str, Any] = next(filter(None, plans), {})
    if recorded and plan is None and "plan" in dict(given_options(words)):
        raise InputError("--plan is null, but a resumed run keeps its plan; leave it out, or add --new_plan")
    for name, value in ({} if plan is None else vars(plan)).items():
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


def _find_changed(contents: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> list[str]:
    """Returns notices of the files' options that are dropped or kept because another class was chosen."""
    notices = []
    for content in contents:
        for option in ("algorithm", "baseline", "data", "task", "task.optimizer"):
            (was, before), (name, now) = _chosen(content, option), _chosen(given, option)
            if not was or not name or was == name:
                continue
            lost = [key for key in before if key not in now]
            kept = [f"{key} {value}" for key, value in before.items() if key in now and now[key] == value]
            if lost:
                notices.append(f"{option} is now {name}: the file's options for {was} do not apply ({', '.join(lost)})")
            # otherwise FLUX would choose the number of clusters itself, and Adam would have its own learning rate
            if kept and option in ("algorithm", "task.optimizer"):
                notices.append(f"{name} runs with the file's {', '.join(kept)}")
    return notices


def _chosen(content: Any, option: str) -> tuple[str, Mapping[str, Any]]:
    """Returns the short name and the arguments of the class that is chosen for an option; no name if there is none."""
    arguments = content
    for part in option.split("."):
        found = arguments.get(part)
        if not isinstance(found, dict) or not isinstance(found.get("class_path"), str):
            return "", {}
        name, arguments = found["class_path"].rpartition(".")[2], found.get("init_args") or {}
    return name, arguments
