"""Derives an algorithm that replaces the plain mean over a round's fits with another rule."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from torch import Tensor

from lit_cfl.algorithms.base import Algorithm
from lit_cfl.errors import InputError
from lit_cfl.local_work import Fitted, LocalWork, MeanHook


def plain(algorithm: Algorithm) -> Algorithm:
    """Returns the algorithm from which a derived algorithm was made, and any other algorithm unchanged."""
    kind = plain_kind(algorithm)
    return algorithm if kind is type(algorithm) else kind(**field_values(algorithm))


def plain_kind(algorithm: Algorithm) -> type[Algorithm]:
    """Returns the class of the algorithm that `plain` returns."""
    kind = type(algorithm)
    while "plain_kind" in vars(kind):
        kind = vars(kind)["plain_kind"]
    return kind


def derive(algorithm: Algorithm, base: type, content: Mapping[str, Any]) -> Algorithm:
    """Derives an algorithm with the same name and options, whose class extends `base` and the algorithm's class.

    Args:
        base: First base of the new class; its methods call the algorithm's methods through `super()`.
        content: Attributes of the new class.
    """
    kind = type(algorithm)
    # marked as a local class, so that parsers of configurations do not offer it
    named = {"__module__": __name__, "__qualname__": f"derive.<locals>.{kind.__name__}", "__doc__": kind.__doc__}
    return cast(
        Algorithm,
        type(kind.__name__, (base, kind), {"plain_kind": kind, **content, **named})(**field_values(algorithm)),
    )


def require_means(algorithm: Algorithm, option: str) -> None:
    """Raises InputError if the algorithm does not average models in clusters."""
    if reason := algorithm.reason_without_means:
        name = type(algorithm).__name__
        raise InputError(f"{option} is given, but {name} cannot use it: {reason}; leave out {option}")


def require_hook_used(algorithm: Algorithm, option: str, work: "HookedWork", taken: bool) -> None:
    """Raises InputError if clients were asked to train, but the algorithm never averaged their fit."""
    if work.asked and not (taken or algorithm.needs_all(work.round)):
        raise InputError(
            f"{option} is given, but {type(algorithm).__name__} does not average the fits of a round by "
            f"mean_by_cluster(fitted, ..., into=models), where {option} takes effect; leave out {option}"
        )


class HookedWork:
    """A round's `LocalWork` whose fits are averaged by a hook instead of the plain mean.

    Args:
        work: Clients, bound to the round.
        hook: Rule that replaces the plain mean.
    """

    def __init__(self, work: LocalWork, hook: MeanHook) -> None:
        self._work, self._hook = work, hook
        self.asked = False  # True once clients were asked to train

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def fit(self, models: Tensor, clients: Tensor, *arguments: Any, purpose: str = "train", **options: Any) -> Fitted:
        fitted = self._work.fit(models, clients, *arguments, purpose=purpose, **options)
        if purpose == "train":
            fitted.hook, self.asked = self._hook, self.asked or len(clients) > 0
        return fitted


def field_values(value: Any, kind: Any = None) -> dict[str, Any]:
    """Returns a dataclass's fields by name; if `kind` is given, only those that `kind` also has."""
    return {f.name: getattr(value, f.name) for f in fields(value if kind is None else kind)}
