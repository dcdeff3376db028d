"""Reads command-line options without a declared type as YAML, as in a file.

The parser reads them as texts: `null` would be the word 'None', and `3` the word '3'.
"""

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import yaml
from jsonargparse import Namespace

from lit_cfl.config.given_options import given_options
from lit_cfl.config.mistakes import options_of
from lit_cfl.storage.yaml_files import parse_yaml


def read_untyped(read: Namespace, words: Sequence[str]) -> bool:
    """Reads the values of command-line options without a declared type as YAML, and replaces them in `read`.

    Args:
        read: Values read by the parser, changed in place.
        words: Words of the command line.

    Returns:
        Whether an option was untyped. The parser has not seen the new values, which may describe objects.
    """
    changed = False
    for option, value in given_options(words):
        found = _owner(read, option.replace(".init_args", ""))
        if found is not None and isinstance(found[1].get(found[2]), str) and _is_untyped(found[0], found[2]):
            with suppress(yaml.YAMLError):
                found[1][found[2]], changed = parse_yaml(value), True
    return changed


def _owner(read: Namespace, option: str) -> tuple[str, Namespace, str] | None:
    """Finds the class that declares an option: its path, its arguments, and the option's name there."""
    place: Any = read
    *path, name = option.split(".")
    for part in path:
        place = place.get("init_args", place) if isinstance(place, Namespace) else None
        place = place.get(part) if isinstance(place, Namespace) else None
    if not isinstance(place, Namespace) or not isinstance(place.get("init_args"), Namespace):
        return None
    return (str(place.class_path), place.init_args, name) if name in place.init_args else None


def _is_untyped(class_path: str, option: str) -> bool:
    module, _, name = class_path.rpartition(".")
    found = options_of(getattr(import_module(module), name)).get(option)  # the parser has imported it
    return found is not None and not found.typed
