"""The options of live classes, and the classes that an option can name."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from lit_cfl.config import catalogue
from lit_cfl.errors import InputError, find_user_frame, is_installed, suggest

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
SIMILAR = 0.65  # similarity from which one class name is taken for another
PLAIN = (int, float, bool, str, NoneType, Path)


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
    known, node = options_below(kind, given)
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


def options_below(kind: Any, given: Any) -> tuple[dict[str, Option], Any]:
    """Returns the options of the class or group that is chosen for an option, and their values."""
    for one in members(kind):
        base, placed = base_of(one)
        if base is not None:
            name = given.get("class_path") if isinstance(given, Mapping) else given
            with suppress(Exception):  # a user's module may raise anything
                found = find_class("", str(name), base)
                arguments = (given.get("init_args") or {}) if isinstance(given, Mapping) else {}
                return options_of(found, placed), arguments
        elif is_dataclass(one):
            return options_of(one), given
    return {}, None


def option_at(root: type, given: Any, path: str) -> Option | None:
    """Returns an option of a class or of the classes that are chosen below it; None if there is no such option."""
    known, found = options_of(root), None
    for part in parts_of(path):
        found = known.get(part)
        if found is None:
            return None
        known, given = options_below(found.kind, given.get(part) if isinstance(given, Mapping) else None)
    return found


def parts_of(option: str) -> list[str]:
    """Splits a dotted option into the names on its path."""
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
    if name.endswith(".py"):
        stem = Path(name).stem
        raise InputError(f"{path}: {name!r} is a file, not a class; write {path}: {stem}.CLASS, with the class's name")
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
