"""Ray Tune's own classes and domains, made of what a study's file says."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from optuna.distributions import CategoricalDistribution, IntDistribution
from ray import tune as ray_tune

from lit_cfl.errors import InputError, nearest
from lit_cfl.tune.spaces import Distribution, Space

Written = str | dict[str, Any] | None  # in a study: a class, or its class_path and init_args


def named_class(written: Written, what: str, default: type, known: Mapping[str, type]) -> tuple[type, dict[str, Any]]:
    """Finds a class and the arguments that a study gives it.

    Args:
        what: it is for, in messages.
        default: where the study names none.
        known: classes that may be named without their module; all others by their whole path.

    Raises:
        InputError: there is no such class.
    """
    one: dict[str, Any] = {"class_path": written} if isinstance(written, str) else (written or {})
    if not isinstance(one, dict) or set(one) - {"class_path", "init_args"}:
        raise InputError(f"{what} is {written!r}; give class_path and, if need be, init_args")
    if "class_path" not in one:
        return default, dict(one.get("init_args") or {})
    path = str(one["class_path"])
    kind = known.get(path) or _imported(path)
    if kind is None:
        hint = nearest(path.rpartition(".")[2], known)
        raise InputError(
            f"{what} {path!r} is not known{hint}. Known: {', '.join(known)}; give others with their module"
        )
    return kind, dict(one.get("init_args") or {})


def _imported(path: str) -> type | None:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if inspect.isclass(found) else None


def built(kind: Callable[..., Any], given: Mapping[str, Any], what: str) -> Any:
    """Makes an instance of a class. Raises InputError for arguments that it does not take."""
    accepted = inspect.signature(kind).parameters
    unknown = [name for name in given if name not in accepted]
    if unknown:
        raise InputError(f"{what} {kind.__name__} has no option {unknown[0]!r}{nearest(unknown[0], accepted)}")
    try:
        return kind(**given)
    except Exception as error:  # Ray's and others' have many
        raise InputError(f"{what} {kind.__name__}: {error}") from error


def domains(space: Space) -> dict[str, Any]:
    """Makes Ray's domain of each parameter; with several algorithms those of all, of which a trial reads its own."""
    chosen = {"algorithm": ray_tune.choice(list(space.algorithms))} if space.algorithms else {}
    return chosen | {p.key: domain(p.distribution) for p in space.parameters}


def domain(distribution: Distribution) -> Any:
    """Makes Ray's domain of a distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return ray_tune.choice(list(distribution.choices))
    if isinstance(distribution, IntDistribution):
        whole = ray_tune.lograndint if distribution.log else ray_tune.randint
        return whole(distribution.low, distribution.high + 1)
    low, high = distribution.low, distribution.high
    if distribution.step is not None:
        return ray_tune.quniform(low, high, distribution.step)
    return (ray_tune.loguniform if distribution.log else ray_tune.uniform)(low, high)
