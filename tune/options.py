"""Parses the options of `lit-cfl tune` into a new study, or one to resume."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import docstring_parser
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from jsonargparse.typing import register_type
from yaml import YAMLError

from lit_cfl.config.catalogue import arrange_with_paths, config_files, config_path
from lit_cfl.config.explain import explain
from lit_cfl.config.files import read_config, read_folders
from lit_cfl.config.live_options import options_of
from lit_cfl.config.merge import merge
from lit_cfl.config.own_code import announce_own_code, inside
from lit_cfl.config.variants import base_config
from lit_cfl.config.words import FLAGS, given_options, has_empty_group
from lit_cfl.errors import InputError, prefix_errors
from lit_cfl.experiment import Experiment
from lit_cfl.runs.run_directory import default_run_directory
from lit_cfl.storage.given_paths import resolve_directory
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.record import STUDY, find_resumed_directory, require_study_file
from lit_cfl.tune.study import Limits, Resources, Stopping, Study


def _announce(path: Path) -> None:
    """Warns of the user's own classes that an opened study names. Raises InputError if the directory holds no study."""
    file = require_study_file(path)
    try:
        study = parse_yaml(file.read_text("utf-8"))
        folders = [*read_folders(file, study["base"]), str(Path().resolve())]
    except (YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged ({error}); put the original back, or start another study") from error
    announce_own_code(path, [study], [folder for folder in folders if not inside(folder, path)])


@dataclass(frozen=True)
class StudyRequest:
    """The parsed command line of `lit-cfl tune`.

    Args:
        study: Study with its whole base.
        directory: Directory of the study's files.
        resume: Continue the study in this directory.
        address: Address of a Ray cluster; None = this machine.
        dry_run: Print what would run, and run nothing.
    """

    study: Study
    directory: Path
    resume: bool = False
    address: str | None = None
    dry_run: bool = False


class AsWritten:
    """Content of an option that the parser leaves unchanged.

    As `dict[str, Any]` it would fill in all defaults of each class that is named by its full path, `params: None` of
    an optimizer, too.
    """

    def __init__(self, content: Any) -> None:
        if content is None or not isinstance(content, (str, dict, list)):
            raise ValueError("neither text nor a list nor a mapping")
        self.content = content


_GROUPS = (("resources", Resources), ("limits", Limits), ("stopping", Stopping))
register_type(AsWritten, serializer=lambda written: written.content)
_OF_COMMAND = dict.fromkeys(("config", "study_dir", "resume", "ray", "dry-run"), Any)
_AS_WRITTEN = ("base", "space", "points", "searcher", "scheduler")  # options that name classes of other packages


def study_parser() -> ArgumentParser:
    """Makes the parser of `lit-cfl tune`; help texts come from the docstrings."""
    parser = ArgumentParser(
        prog="lit-cfl tune",
        exit_on_error=False,
        allow_abbrev=False,
        description="Searches an experiment's options with Ray Tune; every trial is a whole run.",
    )
    parser.add_argument(
        "--config", action="config", help="A study's file, or the name of a packaged study, such as tune/quickstart."
    )
    parser.add_argument("--study_dir", type=str, help="Directory of the study (default: runs/<name>-<time>).")
    parser.add_argument(
        "--resume", metavar="STUDY_DIR", help="Resume a study; --limits.trials N extends a finished one."
    )
    parser.add_argument("--ray.address", type=str, help="auto or HOST:PORT of a Ray cluster (default: this machine).")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Check everything, and print what would run and for how long; run nothing.",
    )
    parser.add_class_arguments(Study, skip=set(_AS_WRITTEN))
    for name in _AS_WRITTEN:
        needed = name in ("base", "space")
        parser.add_argument(f"--{name}", type=AsWritten | None, required=needed, help=_help(name))
    return parser


def _help(option: str) -> str:
    described = {one.arg_name: one.description for one in docstring_parser.parse(Study.__doc__ or "").params}
    return str(described[option])


def parse_study(arguments: Sequence[str], content: Mapping[str, Any] | None = None) -> StudyRequest:
    """Parses the command line of `lit-cfl tune`. Raises InputError for invalid options.

    Args:
        arguments: Words of the command line.
        content: Content of a study's file, in place of `--config`.
    """
    words = _with_recorded_study(arguments, content)
    _refuse_parts(words)
    files = config_files(words)
    contents = (
        {file: read_config(config_path(file)) for file in files} if content is None else {"this content": content}
    )
    _refuse_experiments(contents)
    read = _read(arrange_with_paths(words), list(contents.values()), content)
    resume, address = read.pop("resume"), read.pop("ray").address
    study_dir, dry_run = read.pop("study_dir"), read.pop("dry_run")
    read.pop("config")
    study = _build(read)
    with_base = [Path(file) for file, given in contents.items() if "base" in given and Path(file).is_file()]
    folder = with_base[-1].parent if with_base else None
    with prefix_errors("base"):
        base = base_config(study.base, None if resume else folder)
    where = study_dir if resume is None else resume
    directory = default_run_directory(study.name) if where is None else resolve_directory(where, "--study_dir")
    if resume:  # code is not imported from an opened study's directory, which may be another user's
        base["code"] = [part for part in base["code"] if not inside(part, directory)]
    return StudyRequest(replace(study, base=base), directory, resume is not None, address, dry_run)


def _refuse_parts(words: Sequence[str]) -> None:
    for word in words:
        option, _, part = word.partition("=")[0].removeprefix("--").partition(".")
        if word.startswith("--") and part and option in _AS_WRITTEN:
            place = "the study's base" if option == "base" else "the study's file"
            raise InputError(f"--{option}.{part} cannot be given on the command line; write {part} into {place}")


def _refuse_experiments(contents: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises InputError if a file is an experiment for `lit-cfl run` instead of a study."""
    for file, content in contents.items():
        if "task" in content and "space" not in content:
            raise InputError(
                f"{file} is an experiment, not a study; write a study with `base: {file}` and a `space`, or start from "
                "--config tune/quickstart"
            )


def _with_recorded_study(arguments: Sequence[str], content: Mapping[str, Any] | None) -> list[str]:
    words, path = list(arguments), find_resumed_directory(arguments)
    if path is None:
        return words
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    free = ("--resume", "--ray.address", *(f"--limits.{limit.name}" for limit in fields(Limits)))
    others = [*(["the study"] if content is not None else []), *(name for name in names if name not in free)]
    if others:
        raise InputError(
            f"--resume continues the study unchanged; leave out {others[0]} (only --ray.address and --limits.* may be "
            "given)"
        )
    _announce(path)
    return ["--config", str(path / STUDY), *words]


def _read(words: Sequence[str], contents: Sequence[Mapping[str, Any]], content: Mapping[str, Any] | None) -> Namespace:
    parser = study_parser()

    def refused() -> str | None:
        return explain(Study, merge(Study, contents, words), _OF_COMMAND, "lit-cfl tune")

    try:
        first = None if content is None else parser.parse_object(dict(content))
        read = parser.parse_args(words, namespace=first)
        if any(map(has_empty_group, contents)) and (found := refused()):
            raise ArgumentError(None, found)
        return read
    except ArgumentError as error:
        written = [name for content in contents for name in content]
        _refuse_options_of_experiments([*written, *dict(given_options(words))])
        raise InputError(refused() or " ".join(str(error).split())) from error
    except UnicodeDecodeError as error:
        raise InputError(f"the study's file is not UTF-8 text: {error}") from error


def _refuse_options_of_experiments(options: Sequence[str]) -> None:
    of_study, of_experiments = options_of(Study), options_of(Experiment)
    for option in options:
        name = option.partition(".")[0]
        if option in FLAGS and option not in _OF_COMMAND:
            raise InputError(f"--{option} is an option of lit-cfl run, which lit-cfl tune does not have; leave it out")
        if name in of_experiments and name not in of_study:
            searched = "" if option == "rounds" else ", or search it in the study's space"
            raise InputError(
                f"{option!r} is an option of an experiment, not of a study; set it in the study's base{searched}"
            )


def _group(name: str, kind: type, given: Any) -> Any:
    if not isinstance(given, Mapping):  # the parser takes any value from a file
        raise InputError(f"{name} is {given!r}; give its options, such as {name}.{fields(kind)[0].name}")
    return kind(**given)


def _build(read: Namespace) -> Study:
    """Builds the study; base, space, points, searcher and scheduler stay unparsed."""
    given = read.as_dict()
    given |= {name: given[name].content for name in _AS_WRITTEN if given[name] is not None}
    groups = {name: _group(name, kind, given.pop(name)) for name, kind in _GROUPS}
    return Study(**given, **groups)
