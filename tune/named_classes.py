"""The classes selected in a study's file: samplers of Optuna and schedulers of Ray Tune."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from lit_cfl.errors import InputError, nearest

Written = str | dict[str, Any] | None  # in a study: a class, or its class_path and init_args


def named_class(
    written: Written, what: str, default: type, known: Mapping[str, type], base: type
) -> tuple[type, dict[str, Any]]:
    """Finds a class, and the arguments given in a study.

    Args:
        written: The study's own words.
        what: The option's name, for messages.
        default: The class if the study names none.
        known: Classes that may be named without their module, and Ray Tune's names for them.
        base: The class that all others must derive from.

    Raises:
        InputError: there is no such class, or a study cannot use it.
    """
    one: dict[str, Any] = {"class_path": written} if isinstance(written, str) else (written or {})
    if not isinstance(one, dict) or set(one) - {"class_path", "init_args"}:
        raise InputError(f"{what} is {written!r}; give class_path and, if need be, init_args")
    if "class_path" not in one:
        return default, dict(one.get("init_args") or {})
    path = str(one["class_path"])
    module, _, name = path.rpartition(".")
    kind = known.get(name) if not module or module.startswith("ray.") else _imported(module, name)
    if kind is None or not issubclass(kind, base):
        hint = nearest(name, known)
        raise InputError(f"{what} {path!r} cannot be used{hint}. Give one of {', '.join(known)}")
    return kind, dict(one.get("init_args") or {})


def _imported(module: str, name: str) -> type | None:
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if inspect.isclass(found) else None


def built(kind: Callable[..., Any], given: Mapping[str, Any], what: str) -> Any:
    """Instantiates a class. Raises InputError for arguments that it does not accept."""
    accepted = inspect.signature(kind).parameters
    unknown = [name for name in given if name not in accepted]
    if unknown:
        raise InputError(f"{what} {kind.__name__} has no option {unknown[0]!r}{nearest(unknown[0], accepted)}")
    try:
        return kind(**given)
    except Exception as error:  # Ray's and Optuna's have many
        raise InputError(f"{what} {kind.__name__}: {error}") from error
