"""One-line messages about an option's wrong value: each quotes the value and names the remedy."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import lightning.pytorch.loggers
import torch
from torch.optim import lr_scheduler

from lit_cfl.config import catalogue
from lit_cfl.config.option_tree import KIND_OF_KEY, unknown_class
from lit_cfl.errors import find_user_frame, is_installed, join_ids, spell_range, suggest, write_point, write_space

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_PUBLIC = ("lit_cfl.algorithms", "lit_cfl.datamodules", "torch.nn", "lightning")  # modules of public base classes


def describe_wrong_value(path: str, shown: str, kinds: Sequence[Any]) -> str:
    """Describes a value that does not match any type of an option."""
    if path == "baseline" and shown.startswith("["):
        return f"baseline: {shown} is a list, but there is one baseline; compare several by lit-cfl compare"
    if not in_words(path, kinds):  # the option takes only groups of options
        if space := write_space(shown):
            return f"{path}: {shown!r} is not an option{space}"
        options = [f"{path}.{option.name}" for kind in kinds if is_dataclass(kind) for option in fields(kind)]
        listed = join_ids(options[:4]) or f"{path}.<option>"
        otherwise = "null" if NoneType in kinds else "leave it out"
        return f"{path}: {shown!r} cannot be used; give its options one by one ({listed}), or {otherwise}"
    point = write_point(shown) if float in kinds else ""
    if any(get_origin(kind) in (list, tuple, Sequence) for kind in kinds) and re.fullmatch(r"[\w.]+", shown):
        return f"{path}: {shown!r} is not a list; write [{shown}]"
    if path == "cohort_size" and re.fullmatch(r"\d*[.,]?\d+\s*%?", shown):
        point = "; give the number of clients in each round, not a share of them"
    if path == "data.newcomers" and not point:
        point = (
            "; give a share of the clients, such as 0.2. To hold out certain clients, leave their lines out of the "
            "table, and score them afterwards: lit-cfl evaluate RUN --data.source FILE"
        )
    if path == "seed" and shown.startswith("["):
        point = f"; give several as --seeds {shown}"
    if path in ("seed", "seeds") and (numbers := spell_range(shown)):
        point = f"; give --seeds {numbers}"
    return f"{path}: {shown!r} is not {in_words(path, kinds)}{point}"


def describe_null(path: str, kinds: Sequence[Any]) -> str:
    """Explains that an option requires a value and was given null."""
    kind = KIND_OF_KEY.get(path.rpartition(".")[2])
    wanted = f"one of {', '.join(catalogue.names(kind))}" if kind else in_words(path, kinds) or "its options"
    return f"{path} is null; give {wanted}, or leave it out"


def in_words(path: str, kinds: Sequence[Any]) -> str:
    """Lists the types of an option in words, leaving out classes if other types are possible."""
    found = [word for word in (_in_words(path, kind) for kind in kinds) if word]
    plain = [word for word in found if not word.startswith("a class")]
    return " or ".join(dict.fromkeys(plain or found))


def _in_words(path: str, kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}" if len(inner) > 1 else f"the word {inner[0]}"
    if origin in (list, tuple, Sequence):
        return "a list of loggers, such as [CSVLogger]" if path.endswith("loggers") else "a list such as [0, 1]"
    if origin in (dict, Mapping):
        return "a mapping such as {name: value}"
    if origin is Callable or (
        inspect.isclass(kind) and kind not in _WORDS and (inspect.isabstract(kind) or not is_dataclass(kind))
    ):
        return f"a class of {(inner[1] if origin is Callable else kind).__name__}" * (kind is not NoneType)
    return _WORDS.get(kind, "")


def describe_unknown_class(path: str, name: str) -> str:
    """Describes an unknown class name, with the available classes."""
    key, last = path.rpartition(".")[2], name.rpartition(".")[2]
    if key in ("optimizer", "server"):
        known = [one for one, found in vars(torch.optim).items() if inspect.isclass(found) and one != "Optimizer"]
        return f"{path}: {name!r} is not an optimizer{suggest(last, known)}. Write for example torch.optim.SGD"
    if key == "lr_schedule":
        known = [one for one, found in vars(lr_scheduler).items() if inspect.isclass(found) and one.endswith("LR")]
        return f"{path}: {name!r} is not a scheduler{suggest(last, known)}. Write for example CosineAnnealingLR"
    if key == "loggers":
        known = [one for one in lightning.pytorch.loggers.__all__ if one.endswith("Logger")]
        return f"{path}: {name!r} is not a logger{suggest(name, known)}. Known loggers: {', '.join(known)}"
    kind = KIND_OF_KEY.get(key)
    return unknown_class(key, name, kind) if kind else f"{path}: there is no class {name!r}; write its full path"


def describe_other_class(path: str, name: str, base: type) -> str:
    """Describes the mistake of naming a class that is not derived from the base class of the option."""
    if name.startswith("torch.optim."):
        return describe_unknown_class(path, name)
    place = next((one for one in _PUBLIC if base.__name__ in vars(import_module(one))), base.__module__)
    whole = f"{place}.{base.__name__}"
    return f"{path}: {name!r} is not a subclass of {base.__name__}; derive it from {whole}, or name another class"


def describe_failed_import(module: str, error: Exception) -> str:
    """Explains why a user's module cannot be imported."""
    place = describe_import_error(error)
    if not isinstance(error, ModuleNotFoundError):
        return place or f"{module} cannot be imported: {type(error).__name__}: {error}"
    if place is not None:
        return f"{place}; install the package that has it, or put {error.name}.py next to the YAML file"
    parent = str(error.name).rpartition(".")[0]
    # for example, torch was imported, but has no torch.optm
    if folders := getattr(sys.modules.get(parent), "__path__", None):
        near = suggest(str(error.name), (f"{parent}.{part.name}" for part in iter_modules(folders)), 0.7)
        return f"there is no module {error.name!r}{near} in the package {parent}"
    files = (file for folder in sys.path for file in Path(folder).glob("*.py"))
    near = suggest(str(error.name), (file.stem for file in files if not is_installed(file)), 0.7)
    return (
        f"there is no module {error.name!r}{near}: put {error.name}.py next to the YAML file or into the current folder"
    )


def describe_import_error(error: BaseException) -> str | None:
    """Describes an error in the import of a user's module, with file and line; None if the error has another source."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    place = find_user_frame(error)
    if place is None or place.name != "<module>":
        return None
    return f"{place.filename}, line {place.lineno}: {type(error).__name__}: {error}"
