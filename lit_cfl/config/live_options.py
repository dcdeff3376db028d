"""The options of live classes, the classes that an option can name, and the values given in files and words."""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import yaml

from lit_cfl.config import catalogue
from lit_cfl.config.words import FLAGS, given_options, split_list
from lit_cfl.errors import InputError, find_user_frame, is_installed, suggest
from lit_cfl.storage.yaml_files import parse_yaml

ELSEWHERE = {
    "clients_per_round": "cohort_size",
    "num_rounds": "rounds",
    "local_epochs": "local.epochs",
    "learning_rate": "task.optimizer.lr",
    "lr": "task.optimizer.lr",
    "model": "task.net",
    "dataset": "data",
    "gpus": "device",
    "output_dir": "run_dir",
    "num_samples": "limits.trials",
}  # names of options in other programs
FROM_DATA = {
    "input_shape": "input_shape: list[int] | None = None",
    "num_labels": "num_labels: int | None = None",
    "vocabulary": "vocabulary: int = 0",
}  # arguments of nets that follow from the data, with their declarations
KEPT = "options of another class"  # key for those that were given before the class
_BARE = re.compile(r"[\w./+-]+")  # matches entries of a list that need no quotes in YAML
SIMILAR = 0.65  # similarity from which one class name is taken for another
PLAIN = (int, float, bool, str, NoneType, Path)


class Typed(str):
    """The text of a value on a command line."""


class Option(NamedTuple):
    """An option of a class: its type (`Any` if none is written), whether it must be given, whether it has a type."""

    kind: Any
    required: bool
    typed: bool


def options_of(kind: Any, placed: int = 0) -> dict[str, Option]:
    """Lists the options of a class or a function.

    Args:
        kind: Class or function.
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
                wanted = hints.get(one.name, Any)
                wanted = wanted | None if one.default is None and wanted is not Any else wanted
                # a subclass may pass an inherited argument itself
                required = one.default is one.empty and not inherited
                found.setdefault(one.name, Option(wanted, required, one.annotation is not one.empty))
        if not any(one.kind == one.VAR_KEYWORD for one in parameters):
            break
    return dict(list(found.items())[placed:])


def option_names(kind: Any, given: Any, path: str = "") -> Iterator[str]:
    """Yields the dotted names of the options of a class and of the classes and groups that are chosen below it."""
    _, known, node = _below(kind, given)
    for name, option in known.items():
        yield f"{path}{name}"
        yield from option_names(option.kind, node.get(name) if isinstance(node, Mapping) else None, f"{path}{name}.")


def guess_option(option: str, names: Sequence[str]) -> str | None:
    """Guesses the option meant by an unknown name; None if no name is similar."""
    last = option.rpartition(".")[2]
    if ELSEWHERE.get(last) in names:
        return ELSEWHERE[last]
    by_last = {name.rpartition(".")[2]: name for name in sorted(names, key=lambda name: -name.count("."))}
    if last in by_last:
        return by_last[last]
    near = get_close_matches(option.lower(), names, n=1, cutoff=0.75)
    near = near or [by_last[word] for word in get_close_matches(last.lower(), by_last, n=1, cutoff=0.75)]
    longer = [name for name in names if len(option) >= 4 and name.startswith(f"{option.lower()}_")]
    return next(iter([*near, *longer]), None)


def _below(kind: Any, given: Any) -> tuple[str, dict[str, Option], Any]:
    """Returns the name and the options of the class or group that is chosen for an option, and their values."""
    for one in members(kind):
        base, placed = base_of(one)
        if base is not None:
            name = given.get("class_path") if isinstance(given, Mapping) else given
            with suppress(Exception):  # a user's module may raise anything
                found = find_class("", str(name), base)
                arguments = (given.get("init_args") or {}) if isinstance(given, Mapping) else {}
                return f"{found.__module__}.{found.__name__}", options_of(found, placed), arguments
        elif is_dataclass(one):
            return "", options_of(one), given
    return "", {}, None


def with_lists(root: type, contents: Iterable[Mapping[str, Any]], words: Sequence[str]) -> list[str]:
    """Writes the values of options that take a list as a list in YAML: `0 1`, `0,1` and `[0, 1]` are the same list.

    Raises:
        InputError: an option has no type annotation, so that its value would stay a text.
    """
    given, found = merge(contents, words), []
    for word in words:
        option, _, text = word.partition("=")
        kinds = list(members(_type_of(root, given, option.removeprefix("--"))))
        literals = [one for kind in kinds for one in get_args(kind) if get_origin(kind) is Literal]
        lists = [kind for kind in kinds if get_origin(kind) in (list, Sequence, tuple)]
        others = [kind for kind in kinds if kind not in (*lists, NoneType) and get_origin(kind) is not Literal]
        several = " " in text or not others
        if lists and several and text not in ("null", "~", *literals) and not text.startswith(("[", "{")):
            is_text = get_args(lists[0])[0] is str
            entries = [json.dumps(one) if is_text or not _BARE.fullmatch(one) else one for one in split_list(text)]
            word = f"{option}=[{', '.join(entries)}]"
        found.append(word)
    return found


def _type_of(root: type, given: Any, option: str) -> Any:
    """Returns the type of an option of a class or of the classes chosen below it; None if there is no such option."""
    kind: Any = root
    for part in _parts(option):
        owner, known, given = _below(kind, given)
        found = known.get(part)
        if found is None:
            return None
        if not found.typed:
            raise InputError(describe_untyped(owner, part))
        kind, given = found.kind, given.get(part) if isinstance(given, Mapping) else None
    return kind


def merge(contents: Iterable[Mapping[str, Any]], words: Sequence[str]) -> dict[str, Any]:
    """Merges files, in order, and then a command line, whose values are `Typed`; nested as in a file."""
    given: dict[str, Any] = {}
    for content in contents:
        for option, value in flatten("", content):
            _put(given, option, value)
    for option, text in given_options(words):
        if option not in (*FLAGS, "config"):
            name = re.sub(r"\+$|\.class_path$|\.help$", "", option)
            for inner, value in flatten(name, _read_typed(text)):
                _put(given, inner, value)
    return given


def _read_typed(text: str) -> Any:
    """Reads a class with its arguments, or a YAML file of options, from the command line; other texts are `Typed`."""
    with suppress(yaml.YAMLError, OSError, ValueError):
        is_file = text.endswith((".yaml", ".yml", ".json")) and Path(text).is_file()
        found = parse_yaml(Path(text).read_text("utf-8") if is_file else text)
        if isinstance(found, dict) and (not found or is_file or not {"class_path", "init_args"}.isdisjoint(found)):
            return found
    return Typed(text)


def has_empty_group(value: Any) -> bool:
    """Returns whether a part of a file has an option with nothing in it, which a parser drops, known or not."""
    return isinstance(value, dict) and (not value or any(map(has_empty_group, value.values())))


def flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the options in a part of a file with their dotted names; a class comes before its arguments."""
    if not isinstance(value, dict) or "dict_kwargs" in value or (not value and path):
        yield path, value
        return
    if "class_path" in value:
        if not set(value) <= {"class_path", "init_args"} or not isinstance(value.get("init_args", {}), dict):
            yield path, value  # to be explained as a whole
            return
        yield path, value["class_path"]
    for name, part in (value.get("init_args", {}) if set(value) <= {"class_path", "init_args"} else value).items():
        yield from flatten(f"{path}.{name}".lstrip("."), part)


def _put(node: dict[str, Any], option: str, value: Any) -> None:
    """Sets a dotted option. Another class keeps those options of the one before that it has, too, as in the parser."""
    *above, last = _parts(option)
    for part in above:
        below = node.get(part)
        if isinstance(below, Typed) and below.startswith("{"):
            below = parse_yaml(str(below))
        below = {"class_path": below} if isinstance(below, str) else below
        node[part] = below = below if isinstance(below, dict) else {}
        if "class_path" in below:
            below["init_args"] = below.get("init_args") or {}
        node = below["init_args"] if "class_path" in below else below
    before = node.get(last)
    if isinstance(before, dict) and "class_path" in before and isinstance(value, str):
        if value != before["class_path"]:
            node[last] = {"class_path": value, KEPT: before.get(KEPT, {}) | (before.get("init_args") or {})}
    elif value != {} or before is None:
        node[last] = value


def _parts(option: str) -> list[str]:
    return [part for part in option.split(".") if part != "init_args"]


def describe_untyped(owner: str, option: str) -> str:
    """Describes an option without a type annotation, which a configuration cannot set."""
    written = FROM_DATA.get(option, f"{option}: float")
    return f"{owner}: its option {option!r} has no type; write one, such as {written}"


def base_of(kind: Any) -> tuple[Any, int]:
    """Returns the base if values of a type are classes chosen by name, and the number of arguments given later."""
    if get_origin(kind) is Callable:
        return get_args(kind)[1], len(get_args(kind)[0])
    is_group = is_dataclass(kind) and not inspect.isabstract(kind)
    return (None if not inspect.isclass(kind) or kind in PLAIN or get_origin(kind) or is_group else kind), 0


def members(wanted: Any) -> Iterator[Any]:
    """Yields the members of a union type, without classes that derive from other members."""
    parts = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    classes = [part for part in parts if inspect.isclass(part) and get_origin(part) is None]
    for part in parts:
        if part not in classes or not any(issubclass(part, other) for other in classes if other is not part):
            yield part


def known_classes(base: Any) -> dict[str, Any]:
    """Returns the classes that an option of this type may name without their modules: Lit-CFL's own, if it has any."""
    name = {"Module": "Net"}.get(base.__name__, base.__name__)  # any torch.nn.Module is a net
    kind = next((kind for kind, (_, found) in catalogue.CLASSES.items() if found == name), None)
    found = catalogue.classes(kind) if kind else {one.__name__: one for one in _subclasses(base) if public_path(one)}
    return {name: found[name] for name in sorted(found) if issubclass(found[name], base)}


def _subclasses(base: Any) -> Iterator[Any]:
    for one in base.__subclasses__():
        yield one
        yield from _subclasses(one)


def public_path(kind: type) -> str | None:
    """Returns the shortest path of a class, such as torch.optim.SGD; None if it is private."""
    parts = kind.__module__.split(".")
    modules = [".".join(parts[: number + 1]) for number in range(len(parts)) if not kind.__name__.startswith("_")]
    found = [name for name in modules if getattr(sys.modules.get(name), kind.__name__, None) is kind]
    return f"{found[0]}.{kind.__name__}" if found else None


def find_class(path: str, name: str, base: Any) -> Any:
    """Finds the class that an option names. Raises InputError if there is none, or if it has another base."""
    module, _, last = name.rpartition(".")
    known = known_classes(base)
    if not module and name in known:
        return known[name]
    if path == "data" and name.endswith((".csv", ".npz")):
        raise InputError(f"data: {name!r} is a file, not a data module; write --data ArrayData --data.source {name}")
    if not module or not name.replace(".", "").isidentifier():
        plain = name.partition("(")[0]
        near = f" (write {plain} without parentheses)" if "(" in name else suggest(last, known, SIMILAR)
        listed = f". Known: {', '.join(known)}; name" if known else "; name"
        raise InputError(f"{path}: {name!r} is not known{near}{listed} others by their path, such as my_file.MyClass")
    try:
        found = getattr(import_module(module), last, None)
    except Exception as error:  # a user's module may raise anything
        near = suggest(last, known, SIMILAR) if module.partition(".")[0] in sys.modules else ""
        raise InputError(f"{path}: {name!r}: {_failed_import(module, error)}{near}") from error
    if found is None:
        files = [Path(folder, f"{module}.py") for folder in sys.path]
        own = [file for file in files if file.is_file() and not is_installed(file)]
        if own and is_installed(str(sys.modules[module].__file__)):
            raise InputError(f"{path}: {name!r} is in an installed module, which hides {own[0]}; rename that file")
        near = suggest(last, [one for one, part in vars(sys.modules[module]).items() if inspect.isclass(part)])
        raise InputError(f"{path}: {name!r} cannot be found: {module} has no class {last!r}{near}")
    if inspect.isclass(found) and not issubclass(found, base):
        whole = public_path(base) or f"{base.__module__}.{base.__name__}"
        raise InputError(f"{path}: {name!r} is not a subclass of {whole}; derive it from that, or name another class")
    return found


def _failed_import(module: str, error: Exception) -> str:
    """Explains why a module cannot be imported, with file and line if a user's module is wrong."""
    place = find_user_frame(error)
    where = f"{place.filename}, line {place.lineno}" if place is not None and place.name == "<module>" else ""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    if not isinstance(error, ModuleNotFoundError):
        return f"{where or f'{module} cannot be imported'}: {type(error).__name__}: {error}"
    if where:
        return f"{where}: {error}; install the package that has it, or put {error.name}.py next to the YAML file"
    if "." in str(error.name):
        return f"there is no module {error.name!r}"
    files = (file for folder in sys.path for file in Path(folder).glob("*.py"))
    near = suggest(str(error.name), (file.stem for file in files if not is_installed(file)), 0.7)
    return f"there is no module {error.name!r}{near}; put {error.name}.py next to the YAML file"
