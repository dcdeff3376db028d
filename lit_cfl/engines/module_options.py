"""Describes the options of a module or data module, such as a dropout rate, for comparison on resume."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property, partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from torch import nn

from lit_cfl.engines.module_state import FRAMEWORK

PART = "part "  # prefix of the names of layers
_OF_DATA_MODULES = frozenset((*vars(LightningDataModule()), "commit", "data"))  # attributes that describe no option
_MOST_VALUES = 100  # maximum number of described values of a list or mapping; of longer ones only the length counts


def module_options(module: nn.Module) -> dict[str, str]:
    """Lists the classes of a module's layers, and the plain values in their attributes, as text by name.

    Plain are numbers, words, dtypes, functions and classes (by name), also in lists, mappings and dataclasses, and the
    hyperparameters that `save_hyperparameters` keeps. Private attributes are left out, and words that name a device or
    a path, which may differ between machines.
    """
    found: dict[str, str] = {}
    for name, part in module.named_modules():
        found[f"{PART}{name or 'module'}"] = type(part).__name__
        prefix = f"{name}." if name else ""
        for key, value in vars(part).items():
            if key not in FRAMEWORK and not key.startswith("_"):
                found |= dict(_plain_values(f"{prefix}{key}", value, ()))
        found |= dict(_plain_values(f"{prefix}hparams", vars(part).get("_hparams") or {}, ()))
    return found


def changed_options(recorded: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Lists added, removed and changed layers, and changed values, as `name: recorded -> now`.

    A value that only one of the two has does not count: another version of a layer may have further attributes.
    """
    lines = []
    for name in dict.fromkeys((*recorded, *now)):
        then, new = recorded.get(name), now.get(name)
        if then != new and (name.startswith(PART) or None not in (then, new)):
            lines.append(f"{name.removeprefix(PART)}: {then or '(no layer)'} -> {new or '(no layer)'}")
    return lines


def data_options(data: LightningDataModule) -> str | None:
    """Describes one of our data modules by its options.

    Returns:
        None if the options do not determine the data: the class is a user's, or has arrays or other objects as options.
    """
    kind = type(data)
    options = {
        key: value
        for key, value in vars(data).items()
        if key not in _OF_DATA_MODULES and not isinstance(getattr(kind, key, None), cached_property)
    }
    known = _is_ours(kind) and options.get("partition_file") is None and all(map(_determines, options.values()))
    return f"{kind.__qualname__} {sorted(options.items())}" if known else None


def _determines(value: Any) -> bool:
    """Returns whether the text of an option's value describes it completely."""
    if isinstance(value, Mapping):
        return all(map(_determines, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_determines, value))
    if is_dataclass(value):
        return _is_ours(type(value)) and all(_determines(getattr(value, field.name)) for field in fields(value))
    return value is None or isinstance(value, (bool, int, float, str, Path))


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "lit_cfl"


def _plain_values(name: str, value: Any, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """Yields the plain values in an attribute, as names and texts.

    `above` has the ids of the containers that hold the attribute.
    """
    if value is None or isinstance(value, (bool, int, float, complex, torch.dtype, np.generic, Enum)):
        yield name, repr(value)
    elif isinstance(value, str):
        if not _depends_on_machine(value):
            yield name, repr(value)
    elif isinstance(value, (type, FunctionType, BuiltinFunctionType, MethodType)):
        yield name, value.__name__
    elif id(value) not in above:
        parts = _parts(value)
        if len(parts) > _MOST_VALUES:
            yield name, f"{len(parts)} values"
            return
        for key, part in parts.items():
            yield from _plain_values(f"{name}{key}", part, (*above, id(value)))


def _parts(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return {f"[{number}]": part for number, part in enumerate(value)}
    if isinstance(value, partial):
        return {"": value.func, **_parts(value.args), **_parts(value.keywords)}
    if is_dataclass(value):
        return {f".{field.name}": getattr(value, field.name) for field in fields(value)}
    return {}


def _depends_on_machine(word: str) -> bool:
    return "/" in word or "\\" in word or word.partition(":")[0] in ("cpu", "cuda", "mps", "auto")
