"""Finds mistakes in a configuration by comparing values with the arguments of the classes it names."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from lit_cfl.config.given_options import FLAGS, Typed, given_options, merge_options, option_names
from lit_cfl.config.messages import (
    describe_failed_import,
    describe_null,
    describe_other_class,
    describe_unknown_class,
    describe_wrong_value,
)
from lit_cfl.config.option_tree import OptionTree, UnknownOption, describe, suggest_option
from lit_cfl.config.typed_words import describe_lone_word, lone_words
from lit_cfl.errors import InputError, suggest, write_space
from lit_cfl.storage.yaml_files import parse_yaml

_OF_A_STUDY = ("base", "space")
# endings of data files, which --data does not accept
_DATA_FILES = ("csv", "json", "jsonl", "npy", "npz", "parquet", "tsv", "xlsx")
# declarations of the arguments that a net takes from the data
_FROM_DATA = {
    "input_shape": "input_shape: list[int] | None = None",
    "num_labels": "num_labels: int | None = None",
    "vocabulary": "vocabulary: int = 0",
}


@dataclass(frozen=True)
class Option:
    """An option of a class.

    Args:
        kind: Type of the option; `Any` if none is written.
        required: True if the option has no default.
        typed: True if a type is written.
    """

    kind: Any
    required: bool = False
    typed: bool = True


Options = Mapping[str, Option]


def explain(
    error: Exception, contents: Sequence[Mapping[str, Any]], words: Sequence[str], tree: OptionTree, options: Options
) -> str:
    """Explains in one line why a parser refuses a command line.

    Args:
        error: The parser's own error, which is quoted if no mistake is found.
        contents: Contents of the files, in order.
        words: Words of the command line, with lists as in YAML.
        tree: Tree of the options known from source files.
        options: Options of the command, by name.
    """
    for word in lone_words(words, FLAGS):
        return describe_lone_word(word)
    given = merge_options(contents, words)  # leaves out options of a class that is replaced by another
    for option in (*option_names(given), *dict(given_options(words))):
        if isinstance(unknown := tree.look_up(option), UnknownOption):
            study = f"{option!r} is an option of a study; run a study's file with lit-cfl tune or lit-cfl launch"
            return study if option.partition(".")[0] in _OF_A_STUDY else describe(tree, unknown, "lit-cfl run")
    found = None
    with suppress(Exception):  # inspecting a user's class may raise anything
        found = find_mistake(given, options)
    return found or " ".join(str(error).split())


def find_mistake(given: Mapping[str, Any], options: Options) -> str | None:
    """Describes the first wrong option in one line; None if all options fit."""
    missing = [name for name, option in options.items() if option.required and given.get(name) is None]
    if missing:
        return f"nothing says what to run (no {', '.join(missing)}); start from a file, such as --config quickstart"
    found = (_mistake(name, value, options[name].kind) for name, value in given.items() if name in options)
    return next(filter(None, found), None)


def options_of(kind: Any, placed: int = 0) -> dict[str, Option]:
    """Lists the options of a class or a function.

    Args:
        placed: Number of leading arguments that the caller gives, such as the parameters of an optimizer.
    """
    is_class, found = inspect.isclass(kind), dict[str, Option]()
    for function in [part.__init__ for part in kind.__mro__] if is_class else [kind]:
        parameters = list(inspect.signature(function).parameters.values())[is_class:]
        inherited, hints = bool(found), dict[str, Any]()
        with suppress(Exception):  # annotations may use names that exist only for type checkers
            hints = get_type_hints(function)
        for one in parameters:
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                typed = one.annotation is not one.empty
                wanted = hints.get(one.name, Any) if typed else Any
                wanted = wanted | None if one.default is None and wanted is not Any else wanted
                # a subclass may pass an inherited argument itself
                required = one.default is one.empty and not inherited
                found.setdefault(one.name, Option(wanted, required, typed))
        if not any(one.kind == one.VAR_KEYWORD for one in parameters):
            break
    return dict(list(found.items())[placed:])


def _mistake(path: str, given: Any, wanted: Any) -> str | None:
    kinds = list(_members(wanted))
    if Any in kinds:
        return None
    value, shown = given, str(given)
    if isinstance(given, Typed):
        with suppress(yaml.YAMLError):
            value = shown if shown in _literals(kinds) else parse_yaml(shown)
    if value is None:
        return None if NoneType in kinds else describe_null(path, kinds)
    whole = isinstance(value, (dict, list))
    found = [_why_not(path, value, shown, kind) for kind in kinds if kind is not NoneType]
    if None in found or (str in kinds and isinstance(given, Typed) and not whole):
        return None
    if str in kinds and not whole:
        return f"{path}: {shown} is not text; write it in quotes: '{shown}'"
    if whole or not any(kind in (int, float, bool) or get_origin(kind) is Literal for kind in kinds):
        for why in filter(None, found):
            return why
    return describe_wrong_value(path, shown, kinds)


def _why_not(path: str, value: Any, shown: str, kind: Any) -> str | None:
    """Explains why a value does not match a type. Returns None if it matches, empty text if there is no explanation."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return None if value in inner else ""
    if origin in (list, Sequence, tuple):
        wrong = [_mistake(path, one, inner[0]) for one in value] if isinstance(value, list) and inner else []
        return next(filter(None, wrong), None) if isinstance(value, list) else ""
    if origin in (dict, Mapping) and inner:
        return _mistake_in_mapping(path, value, inner[1]) if isinstance(value, dict) else ""
    if origin is Callable or _is_chosen(kind):
        base, placed = (inner[1], len(inner[0])) if origin is Callable else (kind, 0)
        named = value if isinstance(value, dict) else shown
        return "" if isinstance(value, list) else _mistake_in_class(path, named, base, placed)
    if is_dataclass(kind):
        return _mistake_in_options(path, value, path, options_of(kind)) if isinstance(value, dict) else ""
    return None if _is_plain(value, origin or kind) else ""


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is float:
        if str(value).lstrip("+-").lower() in ("nan", "inf", "infinity") and isinstance(value, str):
            return False  # it is a number in Python, but a word in YAML
        with suppress(TypeError, ValueError):
            return not isinstance(value, bool) and float(value) is not None
        return False
    return type(value) is kind if kind in (int, bool) else isinstance(value, kind if kind is not Path else str)


def _is_chosen(kind: Any) -> bool:
    """Returns whether values of a type are classes chosen by name, such as nets."""
    if is_dataclass(kind):
        return inspect.isabstract(kind)  # only abstract dataclasses: the others are groups of options
    return inspect.isclass(kind) and kind.__module__.split(".")[0] not in ("builtins", "pathlib")


def _mistake_in_class(path: str, value: str | Mapping[str, Any], base: Any, placed: int) -> str | None:
    name = value if isinstance(value, str) else value.get("class_path")
    if not isinstance(name, str):
        return f"{path} names no class; write {path}: {{class_path: NAME, init_args: {{...}}}}"
    try:
        kind = _class(path, name, base)
        given = {} if isinstance(value, str) else value.get("init_args") or {}
        return _mistake_in_options(
            path, given, kind.__name__, options_of(kind, placed), f"{kind.__module__}.{kind.__name__}"
        )
    except InputError as error:
        return str(error)


def _mistake_in_options(path: str, given: Mapping[str, Any], owner: str, known: Options, whole: str = "") -> str | None:
    for name, option in known.items():
        if not option.typed and option.required:
            return (
                f"{whole}: its option {name!r} has no type annotation; write one, such as "
                f"{_FROM_DATA.get(name, f'{name}: float')}"
            )
    for name, value in given.items():
        if name not in known:
            if not known:
                return (
                    f"{owner} has no option {name!r}, nor any other that a configuration can set; write your own "
                    "class that builds it"
                )
            near = suggest_option(name, owner, known)
            return f"{owner} has no option {name!r}{near}. Its options: {', '.join(known)}"
        if (found := _mistake(f"{path}.{name}", value, known[name].kind)) is not None:
            return found
    missing = [name for name, option in known.items() if option.required and name not in given]
    if from_data := [_FROM_DATA[name] for name in missing if name in _FROM_DATA]:
        return f"{whole} needs {', '.join(missing)}; to take values from the data, write {', '.join(from_data)}"
    return f"{whole or path} needs {', '.join(missing)}; give it under init_args" if missing else None


def _mistake_in_mapping(path: str, given: Mapping[str, Any], wanted: Any) -> str | None:
    for name, value in given.items():
        if value is None and (space := write_space(str(name))):
            return f"{path}: {name!r} has no value{space}"
        if str in _members(wanted) and isinstance(value, (int, float)):
            return f"{path}.{name}: {value} is a number, not text; write it in quotes: '{value}'"
        if isinstance(value, list) and str in _members(wanted):
            return f"{path}.{name} is a list, but it takes one text"
        if (found := _mistake(f"{path}.{name}", value, wanted)) is not None:
            return found
    return None


def _class(path: str, name: str, base: Any) -> Any:
    """Finds a class by name. Raises InputError if it does not exist, or does not derive from the base."""
    module, _, last = name.rpartition(".")
    if not module:
        known = {kind.__name__: kind for kind in _below(base)}
        if name in known:
            return known[name]
    if path == "data" and last in _DATA_FILES:
        raise InputError(f"data: {name!r} is a file, not a data module; give it as the source: --data.source {name}")
    if not module or not name.replace(".", "").isidentifier():
        raise InputError(describe_unknown_class(path, name))
    try:
        found = getattr(import_module(module), last, None)
    except Exception as error:  # a user's module may raise anything
        raise InputError(describe_failed_import(module, error)) from error
    if found is None and not name.startswith("torch.optim."):
        classes = [one for one, part in vars(import_module(module)).items() if inspect.isclass(part)]
        raise InputError(f"{name!r} cannot be found: {module} has no class {last!r}{suggest(last, classes)}")
    if found is None or (inspect.isclass(found) and not issubclass(found, base)):
        raise InputError(describe_other_class(path, name, base))
    return found


def _below(base: Any) -> Iterator[Any]:
    yield base
    for kind in base.__subclasses__():
        yield from _below(kind)


def _members(wanted: Any) -> Iterator[Any]:
    """Yields the members of a union type, without classes that derive from other members."""
    parts = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    classes = [part for part in parts if inspect.isclass(part) and get_origin(part) is None]
    for part in parts:
        if part not in classes or not any(issubclass(part, other) for other in classes if other is not part):
            yield part


def _literals(kinds: Sequence[Any]) -> set[Any]:
    return {value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)}
