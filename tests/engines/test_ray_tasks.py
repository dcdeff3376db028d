"""Tests running a list of tasks in Ray, with a stand-in for Ray: the order of starts, and the results."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayError

from lit_cfl.engines.ray import tasks

CPU = {"CPU": 1.0}


class CallsInTurn:
    """Stand-in for Ray whose calls end one by one, the last started first."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.waits: list[tuple[Any, ...]] = []

    def remote(self, **options: Any) -> Callable[..., Any]:
        self.options = options
        return lambda function: SimpleNamespace(remote=lambda *words: (function, words))

    def wait(self, running: Sequence[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.waits.append(tuple(words for _, words in running))
        return [running[-1]], list(running[:-1])

    def get(self, ref: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
        return ref[0](*ref[1])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> CallsInTurn:
    fake = CallsInTurn()
    monkeypatch.setattr(tasks, "ray", fake)
    return fake


def divided(a: int, b: int) -> float:
    if b == 0:
        raise RayError("nothing to divide by")
    return a / b


def test_tasks_start_in_order_and_return_as_they_finish(calls: CallsInTurn):
    begun: list[str] = []
    arguments = {"a": (4, 2), "b": (1, 0), "c": (9, 3)}
    found = tasks.run_tasks(divided, arguments, CPU, 2, lambda: None, 2, begun.append)
    (first, error), *others = list(found)
    assert begun == ["a", "b", "c"]
    assert calls.waits == [((4, 2), (1, 0)), ((4, 2), (9, 3)), ((4, 2),)]
    assert (first, str(error), others) == ("b", "nothing to divide by", [("c", 3.0), ("a", 2.0)])
    assert calls.options == {"num_cpus": 1.0, "num_gpus": 0, "max_retries": 2}


def test_what_is_called_between_may_give_up(calls: CallsInTurn):
    def end() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(tasks.run_tasks(divided, {"a": (4, 2)}, CPU, 0, end))
    assert len(calls.waits) == 1
