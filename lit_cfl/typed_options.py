"""Checks options given in Python against their annotations, as the parser checks those of a file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import isclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from lit_cfl.errors import InputError, suggest

_NAMES = {int: "a whole number", float: "a number", bool: "True or False", list: "a list", str: "text"}
# classes of the values that fit, NumPy's included; 0 and 1 fit as False and True
_FITTING: Mapping[Any, Any] = {int: Integral, float: Real, bool: (Integral, np.bool_), list: Iterable, str: str}


def require_annotated(options: Any, prefix: str = "") -> None:
    """Checks those fields of a dataclass that take numbers, lists, words, or another dataclass.

    Fields of other types are left to the checks of their owners.

    Args:
        options: Object of a dataclass.
        prefix: Text before the names of its fields in messages, such as `local.`.

    Raises:
        InputError: a word is not one of those that the annotation lists, a value is not a number, a list or text where
            the field takes one, or a field that takes a dataclass has something else.
    """
    hints = _hints(type(options))
    for field in fields(options):
        name, value = f"{prefix}{field.name}", getattr(options, field.name)
        members = [member for member in _members(hints.get(field.name)) if member is not NoneType]
        if (remedy := _find_remedy(value, members)) is not None:
            raise InputError(f"{name} is {value!r}{remedy}")
        if is_dataclass(value) and not isclass(value):
            require_annotated(value, f"{name}.")


def _find_remedy(value: Any, members: Sequence[Any]) -> str | None:
    """Describes which values a field accepts if this value is certainly invalid; None otherwise."""
    words = [word for member in members if get_origin(member) is Literal for word in get_args(member)]
    kinds: list[Any] = [get_origin(member) or member for member in members if get_origin(member) is not Literal]
    if value is None or (isinstance(value, str) and value in words) or not members:
        return None
    only = kinds[0] if len(kinds) == 1 and not words else None
    if isclass(only) and is_dataclass(only):
        return None if is_dataclass(value) else f"; give an object of {only.__name__}"
    if kinds and not all(kind in _NAMES for kind in kinds):
        return None
    if isinstance(value, tuple(_FITTING[kind] for kind in kinds if (kind is str) == isinstance(value, str))):
        return None
    near = suggest(value, words) if isinstance(value, str) else ""
    taken = [*words, *(_NAMES[kind] for kind in kinds)]
    return f"{near}; give {' or '.join(filter(None, [', '.join(taken[:-1]), taken[-1]]))}"


def _hints(kind: type) -> Mapping[str, Any]:
    """Returns the annotations of a class; empty if a name in them cannot be resolved."""
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


def _members(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) not in (Union, UnionType):
        yield annotation
        return
    for member in get_args(annotation):
        yield from _members(member)
