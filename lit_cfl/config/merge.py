"""Merges the options in files with those of a command line."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import is_dataclass
from typing import Any

import yaml

from lit_cfl.config.explain import mistake_in_value
from lit_cfl.config.live_options import Option, base_of, members, option_at, options_below, parts_of
from lit_cfl.config.words import FLAGS, flatten, given_options
from lit_cfl.errors import InputError
from lit_cfl.storage.yaml_files import parse_yaml

_NULL = ("null", "~")


def merge(root: type, contents: Iterable[Mapping[str, Any]], words: Sequence[str]) -> dict[str, Any]:
    """Merges files, in order, and then arranged words; the options of a class are nested as in a file.

    Another class keeps those options of the earlier class that it can have, too.

    Args:
        root: Class of which the command takes the options.
        contents: Contents of the files.
        words: Words of the command line, as returned by `arrange`.

    Raises:
        InputError: an option without a value has one.
    """
    given: dict[str, Any] = {}
    for content in contents:
        for option, value in flatten("", content):
            _put(root, given, option, value)
    for name, text in given_options(words):
        option = name.removesuffix(".help")
        if option in FLAGS:
            if text:
                raise InputError(f"--{option} is {text!r}, but has no value; write --{option}, or leave it out")
            given[option] = True
        elif option != "config":
            for inner, value in flatten(option, _read(text, option_at(root, given, option))):
                _put(root, given, inner, value)
    return given


def _read(text: str, option: Option | None) -> Any:
    """Reads the options of a class or group, null, or a value of an option without a type; the parser reads others."""
    if option is None and text in _NULL:  # of the command itself, such as run_dir
        return None
    with suppress(yaml.YAMLError):
        found = parse_yaml(text)
        if option is not None and not option.typed:
            return found
        if isinstance(found, dict) and (option is None or _is_class(option) or _is_group(option)):
            return found
    return text


def _is_class(option: Option | None) -> bool:
    return option is not None and any(base_of(kind)[0] is not None for kind in members(option.kind))


def _is_group(option: Option) -> bool:
    return any(is_dataclass(kind) for kind in members(option.kind))


def _put(root: type, given: dict[str, Any], option: str, value: Any) -> None:
    """Sets a dotted option."""
    *above, last = parts_of(option)
    if last == "class_path" and above:
        *above, last = above
    node = given
    for part in above:
        node = _enter(node, part)
    before: Any = node.get(last)
    found = option_at(root, given, ".".join([*above, last]))
    is_class = isinstance(before, dict) and ("class_path" in before or _is_class(found))
    if is_class and isinstance(value, str) and value not in _NULL:
        if value != before.get("class_path"):
            node[last] = _with_class(before, value, found)
    elif value != {} or before is None:
        node[last] = value


def _enter(node: dict[str, Any], part: str) -> dict[str, Any]:
    """Returns the options below an option, which is a group, a class, or a list whose last class is meant."""
    below: Any = node.get(part)
    if isinstance(below, str):
        below = parse_yaml(below) if below in _NULL or below[:1] in ("{", "[") else {"class_path": below}
    if isinstance(below, list) and below:
        entry = {"class_path": below[-1]} if isinstance(below[-1], str) else deepcopy(below[-1])
        node[part], below = [*below[:-1], entry], entry
    else:
        node[part] = below = below if isinstance(below, dict) else {}
    if "class_path" in below:
        below["init_args"] = below.get("init_args") or {}
    options: dict[str, Any] = below["init_args"] if "class_path" in below else below
    return options


def _with_class(before: dict[str, Any], name: str, option: Option | None) -> dict[str, Any]:
    """Returns another class with the options of the earlier one that it can have; with all if none was chosen yet."""
    known: Mapping[str, Option] | None = None
    arguments = before
    if "class_path" in before:
        arguments, known = before.get("init_args") or {}, options_below(getattr(option, "kind", None), name)[0]
    kept = {
        key: value
        for key, value in arguments.items()
        if known is None or (key in known and mistake_in_value(key, value, known[key].kind) is None)
    }
    return {"class_path": name} | ({"init_args": kept} if kept else {})
