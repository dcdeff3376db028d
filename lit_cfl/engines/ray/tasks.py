"""Runs tasks in Ray, as many at once as resources allow."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf
from typing import Any, TypeVar

import ray
from ray import ObjectRef

T = TypeVar("T")
Ref = ObjectRef[Any]  # reference to an object in Ray's object store
_POLL_SECONDS = 0.5


def ended_tasks(
    waiting: deque[T],
    begin: Callable[[T], Ref | None],
    between: Callable[[Collection[Ref]], None],
    others: Callable[[], Collection[Ref]] = tuple,
    seconds: float = _POLL_SECONDS,
) -> Iterator[tuple[T, Ref]]:
    """Starts tasks in order, as soon as resources allow, and yields each with its reference when it has finished.

    Args:
        waiting: The tasks; tasks added meanwhile are started, too.
        begin: Starts a task; returns None if there is no room for it now.
        between: Called after each wait with the finished references; may raise to stop.
        others: Further references to wait for.
        seconds: Maximum wait, seconds.
    """
    running: dict[Ref, T] = {}
    while waiting or running:
        while waiting and (ref := begin(waiting[0])) is not None:
            running[ref] = waiting.popleft()
        ended = ray.wait([*running, *others()], timeout=seconds)[0]
        between(ended)
        for ref in ended:
            if ref in running:
                yield running.pop(ref), ref


def run_tasks(
    function: Callable[..., Any],
    arguments: Mapping[T, Sequence[Any]],
    resources: Mapping[str, float],
    deaths: int,
    between: Callable[[], None],
    at_once: float = inf,
    begun: Callable[[T], None] = lambda task: None,
) -> Iterator[tuple[T, Any]]:
    """Calls a function in Ray processes, and yields each task with its result, or with a RayError.

    Args:
        function: Function to call.
        arguments: Arguments of each task, in starting order.
        resources: Resources held by each call, `CPU` and `GPU`.
        deaths: Number of times that a call is repeated after its process died.
        between: Called twice a second; may raise to stop.
        at_once: Maximum number of concurrent calls.
        begun: Called with each task that starts.
    """
    remote = ray.remote(num_cpus=resources["CPU"], num_gpus=resources.get("GPU", 0), max_retries=deaths)(function)
    running: set[T] = set()

    def begin(task: T) -> Ref | None:
        if len(running) >= at_once:
            return None
        running.add(task)
        begun(task)
        ref: Ref = remote.remote(*arguments[task])
        return ref

    for task, ref in ended_tasks(deque(arguments), begin, lambda ended: between()):
        running.remove(task)
        try:
            result = ray.get(ref)
        except ray.exceptions.RayError as error:
            result = error
        yield task, result
