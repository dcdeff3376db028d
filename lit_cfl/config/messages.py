"""Turns the configuration parser's messages into one that quotes the value and names the remedy."""

import inspect
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import lightning.pytorch.loggers
import torch
from torch.optim import lr_scheduler

from lit_cfl.config import catalogue
from lit_cfl.config.option_tree import KIND_OF_KEY, OptionTree, UnknownOption, describe, unknown_class
from lit_cfl.config.typed_words import describe_lone_word
from lit_cfl.errors import nearest, users_line

_BASES = {
    "Algorithm": "lit_cfl.algorithms.Algorithm",
    "FederatedDataModule": "lit_cfl.datamodules.FederatedDataModule",
    "LightningModule": "lightning.LightningModule",
    "Module": "torch.nn.Module",
}
_OF_A_STUDY = ("base", "space")
_FUNCTIONS: dict[str, tuple[ModuleType, type, str, str]] = {
    "lr_schedule": (lr_scheduler, lr_scheduler.LRScheduler, "scheduler", "CosineAnnealingLR"),
    "server": (torch.optim, torch.optim.Optimizer, "optimizer", "torch.optim.SGD"),
}

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "list": "a list such as [0, 1]",
    "Sequence": "a list such as [0, 1]",
}


def explain(message: str, tree: OptionTree) -> str:
    """Turns a message of the parser into one for the user.

    Args:
        message: of the parser; causes are nested, the innermost says what is wrong.
        tree: the options of the command.
    """
    keys = re.findall(r'Parser key "([^"]+)"', message)
    classes = re.findall(r"class_path '([^']+)'", message)
    explained = (
        _missing(message, classes or re.findall(r"class_path='([^']+)'", message))
        or _no_function(message, keys)
        or _unknown_member(message, classes)
        or _unknown_module(message)
        or _lone_word(message)
        or _unknown_option(message, classes, tree)
        or _not_in_file(message)
        or _refused_class(message, keys)
        or _no_class(message, keys)
        or _unknown_class(message, keys)
        or _without_type(message)
        or _wrong_value(message, keys)
    )
    if explained:
        return explained
    errors = re.findall(r"^\s*- (.+)$", message, flags=re.MULTILINE)
    return errors[0] if errors else " ".join(message.split())


def _missing(message: str, classes: Sequence[str]) -> str | None:
    missing = _first(message, r"the following arguments are required: (.+)")
    if missing is None:
        return None
    if classes:
        return f"{classes[-1]} needs {missing}; give it under init_args"
    return f"nothing says what to run (no {missing}); start from a file, such as --config quickstart"


def _unknown_option(message: str, classes: Sequence[str], tree: OptionTree) -> str | None:
    refused = re.search(r"Option '([^']+)' is not accepted", message)
    if refused and "expects a function" in message:
        words = re.search(r"class_path='([^']+)'", message)
        classes = [*classes, words[1]] if words else classes
    if refused is None:
        refused = re.search(r"unrecognized arguments: (?:--)?([^\s=]+)", message)
    if refused is None:
        return None
    option = refused[1]
    if classes:
        known = _arguments_of(classes[-1])
        owner = classes[-1].rpartition(".")[2]
        return f"{owner} has no option {option!r}{nearest(option, known)}. Its options: {', '.join(known)}"
    unknown = tree.look_up(option)
    if not isinstance(unknown, UnknownOption):
        return f"there is no option {option!r}. See lit-cfl run --help"
    if option.partition(".")[0] in _OF_A_STUDY:
        return f"{option!r} is an option of a study: a study's file goes to lit-cfl tune, or to lit-cfl launch"
    return describe(tree, unknown, "lit-cfl run")


def _unknown_member(message: str, classes: Sequence[str]) -> str | None:
    """Explains an unknown option within a group of options, such as `pretrain.lenght`."""
    found = re.search(r"Group '([^']+)' does not accept option '([^']+)'", message)
    if found is None:
        return None
    group, option = found[1], found[2]
    kind = _annotations_of(classes[-1]).get(group) if classes else None
    known = [field.name for field in fields(kind)] if kind is not None and is_dataclass(kind) else []
    return f"{group} has no option {option!r}{nearest(option, known)}. Its options: {', '.join(known)}"


def _unknown_module(message: str) -> str | None:
    name = _first(message, r"No module named '([^']+)'")
    if name is None:
        return None
    for path in re.findall(r"(?:class_path|val=|value:) ?'?([\w.]+)\.\w+", message):
        with suppress(Exception):  # of a module of the user's that fails in another way
            place = _missing_in(path, name)
            if place is not None:
                return f"{place}; install the package that has it, or put {name}.py beside the YAML file"
    return f"there is no module {name!r}: put {name}.py beside the YAML file or into the current folder"


def _missing_in(path: str, name: str) -> str | None:
    """Finds where the user's module of this path imports one of this name that is not there; None if it does not."""
    try:
        import_module(path)
    except ModuleNotFoundError as error:
        return raised_in_import(error) if error.name == name else None
    return None


def _not_in_file(message: str) -> str | None:
    """Explains a class that is not in the user's file."""
    found = re.search(
        r"Problem with given class_path '([\w.]+)':\s+module '([\w.]+)' has no attribute '(\w+)'", message
    )
    if found is None:
        return None
    path, module, name = found.groups()
    known = [name for name, kind in vars(import_module(module)).items() if inspect.isclass(kind)]
    return f"{path!r} is not there: {module} has no class {name!r}{nearest(name, known)}"


def _refused_class(message: str, keys: Sequence[str]) -> str | None:
    """Explains a class path whose module fails, or that is not the class that is asked for."""
    path = _first(
        message, r"Import path (\S+\.\S+) does not corr", r"Given value: ([\w.]+\.\w+)$", r"val='([\w.]+\.\w+)'"
    )
    if path is None or path.startswith("torch.optim."):
        return None
    try:
        module = import_module(path.rpartition(".")[0])
    except ModuleNotFoundError:
        return None
    except Exception as error:  # whatever a module of the user's raises
        return raised_in_import(error)
    asked = re.findall(r"correspond to a subclass of (\w+)", message)
    if not asked or not hasattr(module, path.rpartition(".")[2]):
        return None
    base = _BASES.get(asked[-1], asked[-1])
    return f"{_dotted(keys)}: {path!r} is no {asked[-1]}; derive it from {base}, or name another class"


def raised_in_import(error: BaseException) -> str | None:
    """Describes what a module of the user's raised in its import, with file and line; None if none of them did."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    place = users_line(error)
    if place is None or place.name != "<module>":
        return None
    return f"{place.filename}, line {place.lineno}: {type(error).__name__}: {error}"


def _no_class(message: str, keys: Sequence[str]) -> str | None:
    """Explains options of a class that is not named."""
    if keys and "Expected an instantiatable class" in message:
        return f"{_dotted(keys)} names no class; write {_dotted(keys)}: {{class_path: NAME, init_args: {{...}}}}"
    return None


def _without_type(message: str) -> str | None:
    found = re.search(r"Parameter '(\w+)' from '([\w.]+?)(?:\.__init__)?' does not specify a type", message)
    return found and f"{found[2]}: its option {found[1]!r} has no type; write one, such as {found[1]}: float"


def _lone_word(message: str) -> str | None:
    """Explains a word without an option before it, as in `lit-cfl data MNIST`."""
    word = _first(message, r"unrecognized arguments: (?!-)(\S+)")
    if word is None:
        return None
    return describe_lone_word(word)


def _unknown_class(message: str, keys: Sequence[str]) -> str | None:
    name = _first(
        message,
        r"Expected a dot import path string: (\S+)",
        r"Import path (\S+) does not correspond",
        r"Got value: ([\w.]+)$(?=[\s\S]*has no attribute)",
        r"has no attribute '\w+'\. Got value: ([\w.]+)",
    )
    if name is None:
        return None
    key = keys[-1].rpartition(".")[2] if keys else ""
    if key == "optimizer":
        known = [n for n, found in vars(torch.optim).items() if inspect.isclass(found) and n != "Optimizer"]
        return f"{name!r} is no optimizer{nearest(name.rpartition('.')[2], known)}. Write for example torch.optim.SGD"
    if key == "loggers":
        known = [name for name in lightning.pytorch.loggers.__all__ if name.endswith("Logger")]
        return f"{name!r} is no logger{nearest(name, known)}. There are: {', '.join(known)}"
    kind = KIND_OF_KEY.get(key)
    if kind is None:
        return None
    return unknown_class(key, name, kind)


def _no_function(message: str, keys: Sequence[str]) -> str | None:
    """Explains what is given for a scheduler or the server's optimizer and is none."""
    value = _first(message, r"^\s*Given value: ([\w.]+)$")
    named = keys[0].rpartition(".")[2] if keys else ""
    if value is None or named not in _FUNCTIONS:
        return None
    module, base, what, example = _FUNCTIONS[named]
    known = [n for n, found in vars(module).items() if inspect.isclass(found) and issubclass(found, base)]
    near = nearest(value.rpartition(".")[2], [name for name in known if name != base.__name__])
    return f"{keys[0]}: {value!r} is no {what}{near}. Write for example {example}"


def _wrong_value(message: str, keys: Sequence[str]) -> str | None:
    expected = re.search(r"Expected a (?:typing\.)?(<class '[^']+'>|Literal\[[^]]+\]|\S+)", message)
    value = _first(
        message,
        r"Given value type: <class 'str'>\n\s*Given value: (\w+)$",
        r"Got value: (?!NestedArg|Namespace)(.+?)(?:\. Got value: .*)?$",
        r"Given value: (?!NestedArg|Namespace)(.+?)(?:\. Got value: .*)?$",
        r"val='([^']*)'",
    )
    if expected is None or value is None:
        return None
    wanted = re.findall(r"Expected a (?:typing\.)?(<class '[^']+'>|Literal\[[^]]+\])", message) or [expected[1]]
    kinds = [_in_words(one) for one in dict.fromkeys(wanted) if "NoneType" not in one]
    if not kinds:
        key = _dotted(keys)
        return f"{key}: {value.strip()!r} cannot be used; give its options one by one ({key}.<option>), or null"
    if keys and keys[-1].endswith("loggers"):
        kinds = ["a list of loggers, such as [CSVLogger]"]
    if value.strip() == "None":
        last = _dotted(keys).rpartition(".")[2]
        kinds = [f"one of {', '.join(catalogue.names(KIND_OF_KEY[last]))}"] if last in KIND_OF_KEY else kinds
        return f"{_dotted(keys)} is null; give {' or '.join(kinds)}, or leave it out"
    return f"{_dotted(keys)}: {value.strip()!r} is not {' or '.join(kinds)}"


def _dotted(keys: Sequence[str]) -> str:
    """Joins the keys of nested parsers into one name; an inner one may repeat the end of the one around it."""
    name = ""
    for key in keys:
        if not f".{name}".endswith(f".{key}"):
            name = f"{name}.{key}" if name else key
    return name


def _in_words(type_name: str) -> str:
    literal = re.fullmatch(r"Literal\[(.+)\]", type_name)
    if literal:
        return "one of " + literal[1].replace("'", "")
    plain = type_name.removeprefix("<class '").removesuffix("'>").rpartition(".")[2]
    return _WORDS.get(plain, f"a {plain}")


def _arguments_of(class_path: str) -> list[str]:
    annotations = _annotations_of(class_path).items()
    given = [name for name, annotation in annotations if getattr(annotation, "__name__", annotation) == "Optimizer"]
    return [name for name, _ in annotations if name not in ("self", "params", *given)]


def _annotations_of(class_path: str) -> dict[str, Any]:
    module, _, name = class_path.rpartition(".")
    try:
        signature = inspect.signature(getattr(import_module(module), name))
    except (ImportError, AttributeError, ValueError):
        return {}
    return {name: parameter.annotation for name, parameter in signature.parameters.items()}


def _first(message: str, *patterns: str) -> str | None:
    for pattern in patterns:
        found = re.search(pattern, message, flags=re.MULTILINE)
        if found:
            return found[1]
    return None
