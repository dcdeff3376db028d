"""Says in one line what is wrong with options that the parser refused. Called only then; walks the live classes."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import yaml

from lit_cfl.config.live_options import (
    ELSEWHERE,
    FROM_DATA,
    PLAIN,
    SIMILAR,
    Option,
    base_of,
    describe_untyped,
    find_class,
    guess_option,
    known_classes,
    members,
    option_names,
    options_of,
)
from lit_cfl.config.words import flatten, split_list
from lit_cfl.errors import InputError, spell_range, suggest, write_point, write_space
from lit_cfl.options import NAMES, join_words
from lit_cfl.storage.yaml_files import parse_yaml


def explain(root: type, given: Mapping[str, Any], own: Mapping[str, Any], command: str) -> str | None:
    """Describes the first option of a command that does not fit; None if all do.

    Args:
        root: Class of which the command takes the options.
        given: Options in files and words, as returned by `merge`.
        own: Types of the options of the command itself, which replace those of the class.
        command: Name of the command.
    """
    known = options_of(root) | {name: Option(kind, False, True) for name, kind in own.items()}
    for name, value in given.items():
        if name not in known:
            option = next(flatten(name, value), (name, None))[0]
            near = guess_option(option, [*option_names(root, given), *own])
            hint = write_space(name) or (f" (did you mean --{near}?)" if near else "")
            return f"there is no option {option!r}{hint}. See {command} --help"
    written = {name: value for name, value in given.items() if value is not None or not known[name].required}
    if found := _mistake_in_options("", "", known, written):
        return found
    missing = [name for name, option in known.items() if option.required and given.get(name) is None]
    start = "tune/quickstart" if root.__name__ == "Study" else "quickstart"
    return f"nothing says what to run (no {', '.join(missing)}); start from --config {start}" if missing else None


def find_mistake(root: type, given: Mapping[str, Any]) -> str | None:
    """Describes the first value that does not fit the constructor of a class; None if all do."""
    return _mistake_in_options("", "", options_of(root), given)


def mistake_in_value(path: str, given: Any, wanted: Any) -> str | None:
    """Describes why a value does not fit a type; None if it does."""
    kinds, value = list(members(wanted)), given
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if Any in kinds or (isinstance(given, str) and (str in kinds or given in words)):
        return None
    if isinstance(given, str) and given:
        with suppress(yaml.YAMLError):
            value = parse_yaml(given)
    if value is None:
        return None if NoneType in kinds else f"{path} is null; give {_in_words(path, kinds)}, or leave it out"
    found = [_why_not(path, value, kind) for kind in kinds if kind is not NoneType]
    if None in found:
        return None
    whole = isinstance(value, (dict, list))
    if whole or not (words or any(kind in (int, float, bool) for kind in kinds)):
        for why in filter(None, found):
            return why
    if str in kinds and not whole:
        return f"{path} is {given!r}, which is not text; write it in quotes: '{value}'"
    hint = (write_point(str(given)) if float in kinds else "") or write_space(str(given))
    near = suggest(value, words, SIMILAR) if isinstance(value, str) else ""
    return f"{path} is {given!r}{hint or f'{near}; give {_in_words(path, kinds)}'}"


def _why_not(path: str, value: Any, kind: Any) -> str | None:
    """Explains why a value does not fit a type. Returns None if it fits, an empty text if there is no explanation."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return None if value in inner else ""
    if origin in (list, Sequence, tuple):
        return _mistake_in_list(path, value, [one for one in inner if one is not ...])
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            return ""
        return next(
            filter(None, (mistake_in_value(f"{path}.{name}", one, inner[-1]) for name, one in value.items())), None
        )
    base, placed = base_of(kind)
    if base is not None:
        return "" if isinstance(value, list) else _mistake_in_class(path, value, base, placed)
    if is_dataclass(kind):
        return _mistake_in_options(path, path, options_of(kind), value) if isinstance(value, dict) else ""
    if kind is float:
        if isinstance(value, str) and not re.fullmatch(r"[-+\d._]+[eE][-+]?\d+", value):  # a text for YAML alone
            return ""
        return None if isinstance(value, (int, float, str)) and not isinstance(value, bool) else ""
    if kind in (int, bool):
        return None if type(value) is kind else ""
    return None if isinstance(value, str if kind is Path else origin or kind) else ""


def _mistake_in_list(path: str, value: Any, inner: Sequence[Any]) -> str | None:
    if isinstance(value, dict):
        return ""
    is_text = isinstance(value, str) and base_of(inner[0])[0] is None
    entries = value if isinstance(value, list) else split_list(value) if is_text else [value]
    for k, one in enumerate(entries):
        kind = inner[min(k, len(inner) - 1)]
        if kind is int and (numbers := spell_range(str(one))):
            return f"{path}[{k}] is {one!r}; write {', '.join(numbers.split())}"
        if (wrong := mistake_in_value(f"{path}[{k}]", one, kind)) is not None:
            return wrong
    return None if isinstance(value, list) else f"{path} is {value!r}; give a list: [{', '.join(map(str, entries))}]"


def _mistake_in_class(path: str, value: Any, base: Any, placed: int) -> str | None:
    name = value.get("class_path") if isinstance(value, dict) else str(value)
    if not isinstance(name, str):
        return f"{path} names no class; write {path}: {{class_path: NAME, init_args: {{...}}}}"
    given = value.get("init_args", {}) if isinstance(value, dict) else {}
    for key in value if isinstance(value, dict) else ():
        if key not in ("class_path", "init_args", "dict_kwargs"):
            return (
                f"{path}: {key!r} is next to class_path; write options under init_args: "
                f"{{class_path: {name}, init_args: {{{key}: {value[key]}}}}}"
            )
    if not isinstance(given, dict):
        shown = "null" if given is None else repr(given)
        return f"{path}: init_args is {shown}; write options below it, one per line, or leave it out"
    try:
        kind = find_class(path, name, base)
    except InputError as error:
        return str(error)
    known = options_of(kind, placed)
    for option in known:
        if known[option].required and not known[option].typed:
            return f"{path}: {describe_untyped(f'{kind.__module__}.{kind.__name__}', option)}"
    if (found := _mistake_in_options(path, f"{path}: {kind.__name__}", known, given, base)) is not None:
        return found
    missing = [option for option in known if known[option].required and option not in given]
    if from_data := [FROM_DATA[option] for option in missing if option in FROM_DATA]:
        return f"{path}: {name} needs {', '.join(missing)}; to take values from the data, write {', '.join(from_data)}"
    return f"{path}: {name} needs {', '.join(missing)}; give it under init_args" if missing else None


def _mistake_in_options(
    path: str, owner: str, known: Mapping[str, Option], given: Mapping[str, Any], base: Any = None
) -> str | None:
    for name, value in given.items():
        if name not in known:
            others = [one.__name__ for one in known_classes(base).values() if name in options_of(one)] if base else []
            if others:
                near = f" (an option of {', '.join(others)})"
            elif name in ELSEWHERE:
                near = f" (did you mean --{ELSEWHERE[name]}?)"
            else:
                near = write_space(name) or suggest(name, known)
            listed = f"Its options: {', '.join(known)}" if known else "A file can set none; write a class of your own"
            return f"{owner} has no option {name!r}{near}. {listed}"
        if (found := mistake_in_value(f"{path}.{name}".lstrip("."), value, known[name].kind)) is not None:
            return found
    return None


def _in_words(path: str, kinds: Sequence[Any]) -> str:
    """Lists the types of an option in words; leaves out classes if plain values are possible."""
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    plain = [kind for kind in kinds if kind in PLAIN and kind is not NoneType]
    others = []
    for kind in kinds:
        base = base_of(kind)[0]
        if get_origin(kind) in (list, tuple, Sequence):
            others.append("a list")
        elif get_origin(kind) in (dict, Mapping):
            others.append("a mapping such as {name: value}")
        elif base is not None and not plain:
            others.append(f"one of {', '.join(known_classes(base))}")
        elif base is None and is_dataclass(kind):
            others.append(f"its options, such as {path}.{next(iter(options_of(kind)))}")
    null = ["null"] if NoneType in kinds else []
    return join_words([*words, *(NAMES[kind] for kind in plain if kind in NAMES), *others, *null])
