"""Builds an object of a configuration again from its first constructor calls, without the 7 ms of a parser."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class _ConstructorCall:
    """A constructor call. In the arguments of later calls it represents the object that it returned."""

    kind: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class RepeatedCalls:
    """Records the constructor calls that build an object, the last of which returns it, and repeats them."""

    def __init__(self) -> None:
        self._calls: list[_ConstructorCall] = []
        self._made: list[tuple[Any, _ConstructorCall]] = []  # objects that the calls returned
        self._open = True

    def make(self, kind: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a constructor; until `end`, records the call with copies of the arguments."""
        if not self._open:
            return kind(*args, **kwargs)  # such as an optimizer, which a task builds for each client
        known: dict[int, Any] = {id(made): call for made, call in self._made}
        try:
            call = _ConstructorCall(kind, *deepcopy((args, kwargs), known))
        except Exception:  # a user's argument may not be copyable
            self._open, self._calls = False, []
            return kind(*args, **kwargs)
        made = kind(*args, **kwargs)
        self._calls.append(call)
        self._made.append((made, call))
        return made

    def end(self) -> bool:
        """Ends the recording and releases the objects. Returns whether the object can be built again."""
        self._open, self._made = False, []
        return bool(self._calls)

    def repeat(self) -> Any:
        """Builds the object again, with copies of the arguments."""
        made: dict[int, Any] = {}
        for call in self._calls:
            args, kwargs = deepcopy((call.args, call.kwargs), dict(made))
            made[id(call)] = call.kind(*args, **kwargs)
        return made[id(self._calls[-1])]
