"""The classes named in a study's file: samplers of Optuna and schedulers of Ray Tune."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from lit_cfl.errors import InputError, suggest


def find_class(
    written: str | dict[str, Any] | None, what: str, default: type, known: Mapping[str, type]
) -> tuple[type, dict[str, Any]]:
    """Finds the class that an option of a study names, and its arguments.

    Args:
        written: Name of a class, or its class_path and init_args.
        what: Name of the option, for messages.
        default: Class if the study names none.
        known: Classes that can be named, with or without their module.

    Raises:
        InputError: a study cannot use this class.
    """
    one: dict[str, Any] = {"class_path": written} if isinstance(written, str) else (written or {})
    if not isinstance(one, dict) or set(one) - {"class_path", "init_args"}:
        raise InputError(f"{what} is {written!r}; give class_path and, if needed, init_args")
    given = dict(one.get("init_args") or {})
    if "class_path" not in one:
        return default, given
    path = str(one["class_path"])
    module, _, name = path.rpartition(".")
    if name not in known or (module and not module.startswith(("optuna.", "ray."))):
        near = next(filter(None, (suggest(f"{name}{end}", known) for end in ("", "Sampler"))), "")  # for TPE
        raise InputError(f"{what} {path!r} cannot be used{near}. Give one of {', '.join(known)}")
    return known[name], given


def instantiate(kind: Callable[..., Any], given: Mapping[str, Any], what: str) -> Any:
    """Instantiates a class. Raises InputError for arguments that it does not accept."""
    accepted = inspect.signature(kind).parameters
    unknown = [name for name in given if name not in accepted]
    if unknown:
        raise InputError(f"{what} {kind.__name__} has no option {unknown[0]!r}{suggest(unknown[0], accepted)}")
    try:
        return kind(**given)
    except Exception as error:  # classes of Ray and Optuna raise many kinds
        raise InputError(f"{what} {kind.__name__}: {error}") from error
