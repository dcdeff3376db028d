"""Merges the options in files with those of a command line."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import yaml

from lit_cfl.config.explain import mistake_in_value
from lit_cfl.config.live_options import option_at, options_below, parts_of
from lit_cfl.config.words import FLAGS, flatten, given_options
from lit_cfl.storage.yaml_files import parse_yaml

_NULL = ("null", "~")


def merge(root: type, contents: Iterable[Mapping[str, Any]], words: Sequence[str]) -> dict[str, Any]:
    """Merges files, in order, and then arranged words; the options of a class are nested as in a file.

    Another class keeps those options of the earlier class that it can have, too.

    Args:
        root: Class of which the command takes the options.
        contents: Contents of the files.
        words: Words of the command line, as returned by `arrange`.
    """
    given: dict[str, Any] = {}
    for content in contents:
        for option, value in flatten("", content):
            _put(root, given, option, value)
    for name, text in given_options(words):
        option = name.removesuffix(".help")
        if option in FLAGS:
            given[option] = True
        elif option != "config":
            found = option_at(root, given, option)
            for inner, value in flatten(option, _read(text, typed=found is None or found.typed)):
                _put(root, given, inner, value)
    return given


def _read(text: str, typed: bool) -> Any:
    """Reads a class with its arguments, or a value of an option without a type; the parser reads all others."""
    with suppress(yaml.YAMLError):
        found = parse_yaml(text)
        if not typed or (isinstance(found, dict) and (not found or not {"class_path", "init_args"}.isdisjoint(found))):
            return found
    return text


def _put(root: type, given: dict[str, Any], option: str, value: Any) -> None:
    """Sets a dotted option."""
    *above, last = parts_of(option)
    node = given
    for part in above:
        below = node.get(part)
        if isinstance(below, str):
            below = parse_yaml(below) if below in _NULL or below.startswith("{") else {"class_path": below}
        node[part] = below = below if isinstance(below, dict) else {}
        if "class_path" in below:
            below["init_args"] = below.get("init_args") or {}
        node = below["init_args"] if "class_path" in below else below
    before = node.get(last)
    if isinstance(before, dict) and "class_path" in before and isinstance(value, str) and value not in _NULL:
        if value != before["class_path"]:
            known = options_below(getattr(option_at(root, given, option), "kind", None), value)
            kept = {
                name: part
                for name, part in (before.get("init_args") or {}).items()
                if name in known and mistake_in_value(name, part, known[name].kind) is None
            }
            node[last] = {"class_path": value, "init_args": kept}
    elif value != {} or before is None:
        node[last] = value
