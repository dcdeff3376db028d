"""Reads options from files and from a command line, without checking that they exist."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from lit_cfl.errors import InputError
from lit_cfl.storage.yaml_files import parse_yaml

FLAGS = ("new_plan", "tiny", "dry-run", "quiet", "json")  # options without a value


class Typed(str):
    """The text of a value on a command line."""


def require_words(words: object) -> None:
    """Raises InputError unless the words of a command line are a list of texts."""
    if isinstance(words, str) or not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise InputError(f"words is {words!r}; give a list of words, such as ['--rounds', '50']")


def given_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each option of a command line, without dashes, with its first value; the value is empty if missing."""
    for number, word in enumerate(words):
        if word.startswith("--"):
            option, joined, value = word.removeprefix("--").partition("=")
            following = words[number + 1] if number + 1 < len(words) else "--"
            yield option, value if joined or following.startswith("--") else following


def option_names(content: Any, path: str = "") -> Iterator[str]:
    """Yields the dotted names of all options in a file."""
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        name = path if key == "init_args" else f"{path}.{key}" if path else str(key)
        if key not in ("init_args", "class_path", "dict_kwargs"):
            yield name
        if key != "dict_kwargs":
            yield from option_names(value, name)


def merge_options(contents: Sequence[Mapping[str, Any]], words: Sequence[str]) -> dict[str, Any]:
    """Merges the contents of files, in order, and then the options of a command line, which take precedence.

    Returns:
        Options by name, nested as in a file; the command line's values are `Typed`.
    """
    whole: dict[str, Any] = {}
    for content in contents:
        for name, value in content.items():
            _set(whole, str(name).split("."), value)
    for option, value in given_options(words):
        path = [part for part in option.removesuffix("+").split(".") if part not in ("init_args", "class_path")]
        if path and path[0] not in (*FLAGS, "config"):
            _set(whole, path, Typed(value))
    return whole


def _set(node: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Sets an option; a new class drops the options of the previous class."""
    *above, last = path
    for part in above:
        below = node.get(part)
        node[part] = below = {"class_path": below} if isinstance(below, str) else _as_dict(below)
        if "class_path" in below:
            below["init_args"] = _as_dict(below.get("init_args"))
        node = below["init_args"] if "class_path" in below else below
    before = node.get(last)
    value = _parse_value(value)
    if isinstance(before, Mapping) and (isinstance(value, Mapping) or before.get("class_path") == value):
        given = _as_dict(value)
        if not isinstance(value, Mapping) or value.get("class_path") in (None, before.get("class_path")):
            arguments = _merge_arguments(_as_dict(before.get("init_args")), _as_dict(given.get("init_args")))
            value = {**before, **given, **({"init_args": arguments} if arguments else {})}
    node[last] = value


def _merge_arguments(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merges arguments of a class, and those of classes among them, such as a task's net; dicts are replaced."""
    whole = dict(before)
    for name, value in given.items():
        earlier = before.get(name)
        if isinstance(earlier, Mapping) and "class_path" in earlier:
            _set(whole, [name], value)
        else:
            whole[name] = value
    return whole


def _as_dict(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _parse_value(value: Any) -> Any:
    """Parses a command-line value that is a YAML mapping or list, or names a YAML file; returns others unchanged."""
    if isinstance(value, Typed):
        with suppress(yaml.YAMLError, OSError, ValueError):
            is_file = Path(value).suffix in (".yaml", ".yml", ".json") and Path(value).is_file()
            found = parse_yaml(Path(value).read_text("utf-8") if is_file else str(value))
            return found if isinstance(found, (dict, list)) else value
    return value
