"""Makes an object of a configuration again by the constructor calls that made it first, without a parser's 7 ms."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class _Call:
    """A call. Among the arguments of later ones it stands for the object that it returned."""

    kind: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class RepeatedCalls:
    """Keeps the constructor calls that make an object, the last of which returns it, and repeats them."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._made: list[tuple[Any, _Call]] = []  # what each call returned
        self._open = True

    def make(self, kind: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a constructor; until `end`, it keeps the call with copies of the arguments."""
        if not self._open:
            return kind(*args, **kwargs)  # an optimizer, which a task makes for each client
        known: dict[int, Any] = {id(made): call for made, call in self._made}
        try:
            call = _Call(kind, *deepcopy((args, kwargs), known))
        except Exception:  # an argument of a user's that cannot be copied
            self._open, self._calls = False, []
            return kind(*args, **kwargs)
        made = kind(*args, **kwargs)
        self._calls.append(call)
        self._made.append((made, call))
        return made

    def end(self) -> bool:
        """Ends the keeping, and lets go of the objects. Returns whether the object can be made again."""
        self._open, self._made = False, []
        return bool(self._calls)

    def repeat(self) -> Any:
        """Makes the object again, with copies of the arguments."""
        made: dict[int, Any] = {}
        for call in self._calls:
            args, kwargs = deepcopy((call.args, call.kwargs), dict(made))
            made[id(call)] = call.kind(*args, **kwargs)
        return made[id(self._calls[-1])]
