"""Reads configuration files, and finds the folders with the user's own classes."""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lit_cfl.config.catalogue import config_files
from lit_cfl.config.own_code import inside
from lit_cfl.config.words import arrange, given_options
from lit_cfl.errors import InputError, write_space
from lit_cfl.storage.given_paths import expand_home, require_own_kind, resolve_directory, suggest_directory
from lit_cfl.storage.yaml_files import LOADER

_TABLES = (".csv", ".tsv", ".npz", ".parquet", ".xlsx")
_PATHS = ("source", "partition_file", "embeddings")  # options of data modules that are paths
LOGGER_PATHS = ("save_dir", "root_dir", "log_dir")


def with_recorded_config(arguments: Sequence[str]) -> tuple[Sequence[str], Path | None]:
    """Adds the recorded configuration of the resumed run if `--resume` is given without `--config`.

    Returns:
        The arguments, and the run directory after `--resume`.
    """
    given = dict(given_options(arrange(arguments)))
    if "resume" not in given:
        if "new_plan" in given:
            raise InputError(
                "--new_plan is given without --resume RUN_DIR; a new run chooses its plan anyway, so leave it out"
            )
        return arguments, None
    path = given["resume"]
    if "run_dir" in given:
        raise InputError(f"--resume {path} already names the run's directory; leave out --run_dir {given['run_dir']}")
    resumed = resolve_directory(path, "--resume")
    recorded = resumed / "config.yaml"
    if "config" not in given and not recorded.exists():
        if resumed.is_file() and (resumed.parent / recorded.name).exists():
            raise InputError(f"{path} is a file of a run; give its directory: --resume {resumed.parent}")
        require_own_kind(Path(path), "run")
        near = suggest_directory(resumed, "config.yaml")
        raise InputError(
            f"{path} holds no run to resume{near}; give its directory, or --config to start one there ({recorded} is "
            "missing)"
        )
    if "config" in given:
        return arguments, resumed
    fresh = ["--plan", "null"] if "new_plan" in given else []  # drops the recorded plan
    return ["--config", str(recorded), *fresh, *arguments], resumed


def code_folders(arguments: Sequence[str], opened: Path | None = None) -> list[str]:
    """Lists the absolute folders of the user's own code: recorded ones, those of YAML files, and the current one.

    Args:
        arguments: Arguments of the command; `--config` names files.
        opened: Directory that is opened: its configuration names folders of code, but no code in it is loaded.

    Raises:
        InputError: a file records a relative folder, whose meaning depends on the current folder.
    """
    named = map(Path, config_files(arguments))
    files = [str(file) for file in named if file.exists() and not file.is_dir()]  # others are names of packaged ones
    recorded = [folder for file in files for folder in read_folders(file, read_config(file))]
    of_files = [str(Path(file).parent.resolve()) for file in files if Path(file).is_file()]
    folders = dict.fromkeys([*recorded, *of_files, str(Path().resolve())])
    return [folder for folder in folders if opened is None or not inside(folder, opened)]


def append_to_path(arguments: Sequence[str], opened: Path | None = None) -> list[str]:
    """Appends `code_folders` to Python's path, after all installed packages. Returns them."""
    folders = code_folders(arguments, opened)
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    return folders


def read_folders(file: str | Path, content: Mapping[str, Any]) -> list[str]:
    """Returns the folders of the user's own classes that are listed in a configuration.

    Raises:
        InputError: a folder is relative, or the run was made in Python; the message names the file.
    """
    if content.get("made_in_python"):
        raise InputError(
            f"{file} belongs to a run made in Python, which no file describes completely: resume it with "
            "lit_cfl.run(experiment, path, mode='resume'), or open it with load_run(path, experiment)"
        )
    folders = content.get("code") or []
    for folder in folders if isinstance(folders, list) else [folders]:
        if not isinstance(folder, str) or not Path(folder).is_absolute():
            raise InputError(f"{file}: code names {folder!r}, which is not an absolute path; give a full path, or none")
    return list(folders)


def valid_anywhere(config: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the paths of an experiment's configuration absolute, since workers run in other folders."""
    tracking = with_absolute_paths(config["tracking"], LOGGER_PATHS) if "tracking" in config else None
    changed = {"data": with_absolute_paths(config.get("data")), "tracking": tracking}
    return {**config, **{name: value for name, value in changed.items() if name in config}}


def with_absolute_paths(options: Any, names: Sequence[str] = _PATHS) -> Any:
    """Makes the paths in a part of a configuration absolute, so that it is valid in any folder.

    A `source` that does not exist (an id of the Hugging Face Hub), `embeddings` that do not exist (a file in
    LITCFL_DATA), and addresses such as `s3://...` stay unchanged.

    Args:
        options: Part of a configuration.
        names: Names of the options that hold paths.
    """
    if isinstance(options, list):
        return [with_absolute_paths(part, names) for part in options]
    if not isinstance(options, dict):
        return options
    return {
        name: _absolute(name, value) if name in names and isinstance(value, str) else with_absolute_paths(value, names)
        for name, value in options.items()
    }


def _absolute(name: str, value: str) -> str:
    path = expand_home(value)
    stays = not value or "://" in value or (name in ("source", "embeddings") and not path.exists())
    return value if stays else str(path.absolute())


class _StrictLoader(LOADER):  # type: ignore[misc]  # one of two classes of PyYAML
    """Refuses what YAML reads otherwise than people: keys given twice, decimal commas, numbers in base 8 or 60."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.deep_construct = True  # so that an alias inside the value that it stands for is refused

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        before: tuple[str, yaml.Node] | None = None
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                raise InputError(f"{name!r} is given twice, in lines {lines[name]} and {line}; leave one out")
            lines[name] = line
            if before is not None and value.value == "" and _is_number(name) and _is_number(before[1].value):
                raise InputError(f"line {line}: {_describe_comma(before[0], before[1], key)}")
            before = (name, value)
        content: dict[Any, Any] = super().construct_mapping(node, deep=True)
        return content

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Reads a number, unless YAML reads it in base 8 or 60."""
        word, is_whole = node.value, node.tag.endswith(":int")
        number: int | float = self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)
        if ":" in word or re.fullmatch(r"[-+]?0[0-7_]+", word):
            base = 60 if ":" in word else 8
            plain = f"{int(word)} or {number}, whichever you mean" if base == 8 else str(number)
            raise InputError(
                f"line {node.start_mark.line + 1}: {word} is {number} in YAML, which reads it in base {base}; write "
                f"{plain} (or '{word}' for text)"
            )
        return number


def _is_number(word: object) -> bool:
    return isinstance(word, str) and bool(re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", word, re.IGNORECASE))


def _describe_comma(name: str, first: yaml.Node, second: yaml.Node) -> str:
    """Describes `{lr: 0,05}` and `{randint: 2, 6}`, in which YAML finds a second key without a value."""
    low, high, is_glued = first.value, second.value, second.start_mark.index - first.end_mark.index == 1
    meant = [f"{name}: {low}.{high}"] if is_glued and (low + high).isdigit() else []
    meant += [] if meant and high.startswith("0") else [f"{name}: [{low}, {high}]"]
    written = f"{name}: {low},{'' if is_glued else ' '}{high}"
    return f"{written} is neither a number nor a list; write {' or '.join(meant)}"


for _kind in ("int", "float"):
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _StrictLoader.construct_number)


def read_config(file: str | Path) -> dict[str, Any]:
    """Reads the options in a YAML file.

    Raises:
        InputError: the file is not YAML, has no options, or gives an option twice (YAML itself would use the last
            value).
    """
    if Path(file).suffix.lower() in _TABLES:
        raise InputError(
            f"{file} is a table, not an experiment; name it in an experiment as the source of its data: "
            f"--config FILE.yaml --data ArrayData --data.source {file}"
        )
    try:
        text = Path(file).read_text("utf-8") if Path(file).is_file() else _read_pipe(str(file))
        content = _StrictLoader(text).get_single_data()
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text: {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{file} is not a YAML file: {_describe_yaml_error(text, error)}") from error
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    if not isinstance(content, dict):
        held = {type(None): "nothing", list: "a list"}.get(type(content), f"only {content!r:.60}")
        raise InputError(f"{file} holds {held} instead of options; write one per line, such as rounds: 10")
    return content


@cache
def _read_pipe(path: str) -> str:
    """Reads a pipe, as in `--config <(...)`, which has its content only once."""
    return Path(path).read_text("utf-8")


def _describe_yaml_error(text: str, error: yaml.YAMLError) -> str:
    """Describes where a text is not valid YAML, with the remedy for common mistakes such as tabs."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    lines, number, column = text.split("\n"), error.problem_mark.line, error.problem_mark.column
    rest = lines[number][column:] if number < len(lines) else ""
    if rest.startswith("\t"):
        return f"line {number + 1} has a tab, which YAML does not allow there; use spaces"
    if "recursive" in str(error.problem):
        return f"line {number + 1}: an alias refers to the value that contains it; write the value out"
    if alias := re.match(r"\*[^\s,\]}]*", rest):
        return f"line {number + 1}: YAML takes {alias[0]} for an alias; write it in quotes: '{alias[0]}'"
    for k in (number - 1, number):  # YAML may report the error one line after its cause
        if space := write_space(lines[k]) if 0 <= k < len(lines) else "":
            return f"line {k + 1} has no value{space}"
    remedy = "; indent the keys of a group equally" if str(error.problem).startswith("mapping values") else ""
    begun = "" if error.context_mark is None else f" {error.context} that begins in line {error.context_mark.line + 1}"
    return f"line {number + 1}, column {column + 1}: {error.problem}{begun}{remedy}"
