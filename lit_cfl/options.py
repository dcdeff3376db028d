"""Types and bounds of options, for YAML and Python alike, and the objects that users name by a path."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from importlib import import_module
from inspect import isclass
from math import inf
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from lit_cfl.errors import InputError, short_error, suggest

NAMES = {int: "a whole number", float: "a number", bool: "true or false", list: "a list", str: "text"}
# classes of the values that fit, NumPy's included; 0 and 1 fit as False and True
_FITTING: Mapping[Any, Any] = {int: Integral, float: Real, bool: (Integral, np.bool_), list: Iterable, str: str}
_BOUNDS = "bounds"  # key of a field's metadata


@dataclass(frozen=True)
class Bounds:
    """Range of a number.

    Args:
        words: The range in words, for messages.
        hold: Returns whether a number lies in it; False for NaN.
    """

    words: str
    hold: Callable[[float], bool]


FROM_1 = Bounds("1 or more", lambda number: 1 <= number < inf)
FROM_0 = Bounds("0 or more", lambda number: 0 <= number < inf)
NOT_NEGATIVE = Bounds("0 or more", lambda number: number >= 0)  # infinity is a threshold that nothing reaches
ABOVE_0 = Bounds("a number above 0", lambda number: 0 < number < inf)
SHARE = Bounds("0 to 1", lambda number: 0 <= number <= 1)
PART = Bounds("0 or more and below 1", lambda number: 0 <= number < 1)


def bounded(default: Any, bounds: Bounds) -> Any:
    """Makes a dataclass's field for a number within bounds, which `require_options` checks.

    Args:
        default: Default of the option, which may be None or a word if its annotation allows it.
        bounds: Range of the numbers that the option takes.
    """
    return field(default=default, metadata={_BOUNDS: bounds})


def require_options(options: Any, prefix: str = "") -> None:
    """Checks those fields of a dataclass that take numbers, lists, words, or an object of a class of Lit-CFL.

    Fields of other types are left to the checks of their owners, and so are values that equal a field's default.

    Args:
        options: Object of a dataclass.
        prefix: Text before the names of its fields in messages, such as `local.`.

    Raises:
        InputError: a value has a wrong type, a word is not one of those that the annotation lists, or a number is out
            of its bounds.
    """
    hints = _hints(type(options))
    for one in fields(options):
        name, value = f"{prefix}{one.name}", getattr(options, one.name)
        if value is one.default:
            continue
        if (remedy := _find_remedy(value, one, list(_members(hints.get(one.name))))) is not None:
            raise InputError(f"{name} is {_show(value)}{remedy}")
        if is_dataclass(value) and not isclass(value):
            require_options(value, f"{name}.")


def _find_remedy(value: Any, option: Field[Any], members: Sequence[Any]) -> str | None:
    """Describes which values an option accepts if this value is certainly invalid; None otherwise.

    Args:
        value: Value of the option.
        option: Field of the option.
        members: Members of the union that annotates it; none if they are unknown.
    """
    words = [word for member in members if get_origin(member) is Literal for word in get_args(member)]
    kinds: list[Any] = [get_origin(member) or member for member in members if get_origin(member) is not Literal]
    own = tuple(kind for kind in kinds if isclass(kind) and kind.__module__.partition(".")[0] == "lit_cfl")
    plain = [kind for kind in kinds if kind is not NoneType and kind not in own]
    if not members or isinstance(value, own) or (value is None and NoneType in kinds) or _is_one_of(value, words):
        return None
    if own and not plain:
        if isclass(value) and issubclass(value, own):
            return f"; give an object of it: {value.__name__}(...)"
        return f"; give an object of {' or '.join(kind.__name__ for kind in own)}"
    if not all(kind in NAMES for kind in plain):
        return None
    if isinstance(value, tuple(_FITTING[kind] for kind in plain if (kind is str) == isinstance(value, str))):
        bounds = option.metadata.get(_BOUNDS)
        null = ["null"] if NoneType in kinds else []
        return None if bounds is None or bounds.hold(value) else f"; give {', or '.join([*words, bounds.words, *null])}"
    if plain == [list]:
        return f"; give a list, such as [{_show(value)}]"
    near = suggest(value, words) if isinstance(value, str) else ""
    return f"{near}; give {join_words([*words, *(NAMES[kind] for kind in plain)])}"


def join_words(words: Sequence[str]) -> str:
    """Lists what an option accepts: `auto, all or a whole number`."""
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _is_one_of(value: Any, words: Sequence[Any]) -> bool:
    return isinstance(value, str) and value in words


def _show(value: Any) -> str:
    if isclass(value):
        return f"the class {value.__name__}"
    shown = repr(value.item() if isinstance(value, np.generic) else value)
    return shown if len(shown) < 80 and "\n" not in shown else f"a {type(value).__name__}"


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


def import_object(option: str, path: str) -> object:
    """Imports an object by its path.

    Args:
        option: Option that names the object, for errors.
        path: Path of the object, such as `my_module.function`.

    Raises:
        InputError: The path names no object, or its module cannot be imported.
    """
    module, _, name = path.rpartition(".")
    try:
        found: object = getattr(import_module(module), name)
    except Exception as error:  # a user's module may raise anything
        raise InputError(f"{option} names {path!r}, which cannot be imported: {short_error(error)}") from error
    return found
