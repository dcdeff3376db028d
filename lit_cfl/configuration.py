"""From a YAML file and command-line options to an Experiment."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from lightning import LightningModule

import datamodules
import lit_cfl.algorithms
import lit_cfl.nets
import lit_cfl.tasks
from lit_cfl import catalogue, tiny
from lit_cfl.config_errors import explain, nearest
from lit_cfl.data import Examples
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment

SHORT_NAMES = (
    datamodules,
    lit_cfl.algorithms,
    lit_cfl.nets,
    lit_cfl.tasks,
)  # imported, so that their classes go by name
_COMMAND_ONLY = (
    "config",
    "seed",
    "run_dir",
    "resume",
    "new_plan",
    "tiny",
    "dry_run",
    "code",
)  # options of the command, not of the experiment
_GROUPS = ("local", "evaluation", "checkpoint", "tracking")  # options that are groups of options


@dataclass(frozen=True)
class Request:
    """What a command line asks for.

    Args:
        experiment: to run.
        options: the command's own options.
        notices: what the user should know before it starts.
    """

    experiment: Experiment
    options: Namespace
    notices: list[str]


def experiment_parser(prog: str) -> ArgumentParser:
    """A parser of all options of an experiment; help texts come from the docstrings."""
    parser = ArgumentParser(
        prog=prog, exit_on_error=False, allow_abbrev=False,
        description="Runs an experiment and its baseline into a run directory.",
    )  # fmt: skip
    parser.add_argument("--config", action="config", help="A YAML file, or the name of one of `lit-cfl list configs`.")
    parser.add_argument("--seed", type=int, help="One seed in place of the file's.")
    parser.add_argument("--run_dir", type=str, help="Where the files go (default: runs/<name>-<time>).")
    parser.add_argument("--resume", metavar="RUN_DIR", help="Go on with a run; with --config, start it where none is.")
    parser.add_argument(
        "--code", type=list[str], default=[], help="Written by runs: folders of the user's own classes."
    )
    parser.add_argument("--new_plan", action="store_true", help="With --resume: under a plan for this machine.")
    parser.add_argument(
        "--tiny", action="store_true", help="4 clients, 20 samples, 2 steps, 1 round: does it run at all?"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="Say what would run, how large and how long; run nothing."
    )
    parser.add_class_arguments(Experiment, skip={"task", "config"})
    parser.add_subclass_arguments(LightningModule, "task", required=True)
    return parser


def parse_run(arguments: Sequence[str], prog: str = "lit-cfl run") -> Request:
    """Reads a command line. Raises InputError for anything that cannot be used."""
    parser = experiment_parser(prog)
    arguments = _with_recorded_config(arguments)
    code = _append_to_path(arguments)
    arguments = [_found_config(before, word) for before, word in zip(["", *arguments], arguments, strict=False)]
    try:
        read = parser.parse_args(arguments)
    except ArgumentError as error:
        message = explain(str(error), list(parser._option_string_actions))
        raise InputError(message.replace('"<unicode string>"', f'"{"".join(_configs(arguments)[-1:])}"')) from error
    except UnicodeDecodeError as error:
        raise InputError(f"the configuration is no UTF-8 text: {error}") from error
    empty = [name for name in _GROUPS if not isinstance(read.get(name), Namespace)]
    if empty:
        raise InputError(f"{empty[0]} is {read.get(empty[0])}; give its options, or leave it out")
    missing = [name for name in ("data", "task", "algorithm") if read.get(name) is None]
    if missing:
        raise InputError(f"no {missing[0]} is given; start from a file: {prog} --config quickstart")
    if read.seed is not None:
        read.seeds = [read.seed]
    experiment = _build(parser, read, code)
    return Request(tiny.shrink(experiment) if read.tiny else experiment, read, _dropped_arguments(read))


def _build(parser: ArgumentParser, read: Namespace, code: list[str]) -> Experiment:
    config = yaml.safe_load(parser.dump(read, skip_unset=False))
    for name in _COMMAND_ONLY:
        config.pop(name, None)
    if read.tiny:
        config["tiny"] = True  # a resumed run has to be as tiny
    config["code"] = code  # and to find the same files
    parts = read.clone()
    task = parts.pop("task")
    for name in _COMMAND_ONLY:
        parts.pop(name, None)
    try:
        built = parser.instantiate(parts)
    except ValueError as error:
        raise _innermost(error) from error
    given = {name: getattr(built, name) for name in vars(built)}
    return Experiment(task=task_factory(task, lambda: built.data.examples), config=config, **given)


def task_factory(task: Namespace, examples: Callable[[], Examples]) -> Callable[[], LightningModule]:
    """Builds the configured LightningModule anew at each call; nets of ours are told the shape of the data."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningModule, "task", required=True)

    def build() -> LightningModule:
        filled = task.clone()
        net = filled.get("init_args.net")
        if isinstance(net, Namespace) and "init_args" in net:
            shape = {"input_shape": list(examples().input_shape), "num_labels": examples().num_labels}
            for name, value in shape.items():
                if name in net.init_args and net.init_args[name] is None:
                    net.init_args[name] = value
        try:
            module: LightningModule = parser.instantiate(Namespace(task=filled)).task
        except ValueError as error:
            raise _innermost(error) from error
        return module

    return build


def _innermost(error: BaseException) -> InputError:
    """The cause that a class of ours, or the user's, raised; the parser wraps it in its own."""
    while error.__cause__ is not None or error.__context__ is not None:
        if isinstance(error, InputError):
            return error
        error = error.__cause__ or error.__context__ or error
    return error if isinstance(error, InputError) else InputError(str(error))


def _with_recorded_config(arguments: Sequence[str]) -> Sequence[str]:
    """With `--resume` alone, the configuration is the one that the run recorded."""
    early = argparse.ArgumentParser(prog="lit-cfl run", add_help=False, allow_abbrev=False)
    for option in ("--resume", "--config", "--run_dir"):
        early.add_argument(option)
    given, _ = early.parse_known_args(arguments)
    if given.resume is None:
        if "--new_plan" in arguments:
            raise InputError("--new_plan goes with --resume RUN_DIR: a new run chooses its plan anyway")
        return arguments
    if given.run_dir is not None:
        raise InputError(f"--resume {given.resume} says where the run is; leave out --run_dir {given.run_dir}")
    recorded = Path(given.resume) / "config.yaml"
    if given.config is None and not recorded.exists():
        raise InputError(f"{given.resume} holds no run to resume; give its directory, or --config to start one there")
    return arguments if given.config is not None else ["--config", str(recorded), *arguments]


def _found_config(before: str, word: str) -> str:
    """A configuration by its path, or by the name of a packaged one."""
    if before == "--config":
        return _config_path(word)
    if word.startswith("--config="):
        return f"--config={_config_path(word.removeprefix('--config='))}"
    return word


def _append_to_path(arguments: Sequence[str]) -> list[str]:
    """The user's own files: beside the YAML file, and in the current folder. Never in front of anything installed.

    Returns:
        these folders, absolute.
    """
    files = _configs(arguments)
    recorded = [folder for file in files for folder in _recorded_code(file)]
    beside = [str(Path(file).parent.resolve()) for file in files if Path(file).is_file()]
    folders = list(dict.fromkeys([*recorded, *beside, str(Path().resolve())]))
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    return folders


def _recorded_code(file: str) -> list[str]:
    """Where the run that wrote this file found the user's classes."""
    try:
        content = yaml.safe_load(Path(file).read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return []  # what is wrong with the file is said when it is parsed
    if not isinstance(content, dict):
        return []
    if content.get("made_in_python"):
        raise InputError(
            f"{file} is of a run made in Python, which no file describes whole: go on with "
            "lit_cfl.run.run(experiment, path, going='resume'), or open it with load_run(path, experiment)"
        )
    return list(content.get("code") or [])


def _configs(arguments: Sequence[str]) -> list[str]:
    """The files of `--config FILE` and `--config=FILE`."""
    pairs = zip(["", *arguments], arguments, strict=False)
    found = [word if before == "--config" else word.partition("--config=")[2] for before, word in pairs]
    return [file for file in found if file]


def _config_path(name: str) -> str:
    if Path(name).is_file():
        return name
    packaged = catalogue.configs()
    plain = name.removeprefix("configs/").removesuffix(".yaml")
    if plain in packaged:
        return os.fspath(packaged[plain])
    raise InputError(f"there is no file {name!r}, and no packaged configuration of that name{nearest(plain, packaged)}")


def _dropped_arguments(read: Namespace) -> list[str]:
    """The parser drops a class's options without a word when the command line names another class: say so."""
    notices = []
    for path in read.config or []:
        written: dict[str, Any] = yaml.safe_load(Path(str(path)).read_text()) or {}
        for part in ("algorithm", "baseline", "data", "task"):
            before, now = written.get(part), read.get(part)
            if not isinstance(before, dict) or now is None:
                continue
            was, name = str(before.get("class_path")).rpartition(".")[2], now.class_path.rpartition(".")[2]
            lost = [key for key in before.get("init_args") or {} if key not in now.get("init_args", {})]
            if was != name and lost:
                notices.append(f"{part} is now {name}: the file's options for {was} do not apply ({', '.join(lost)})")
    return notices
