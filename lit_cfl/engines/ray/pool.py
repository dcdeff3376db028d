"""Distributes work among a pool of Ray actors, started once per run; an actor that dies is replaced."""

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lit_cfl.engines.plan import Plan
from lit_cfl.engines.ray import cluster as ray_cluster
from lit_cfl.engines.ray.shares import Share
from lit_cfl.engines.ray.tasks import Ref, ended_tasks
from lit_cfl.engines.ray.worker import EngineSpec, Worker
from lit_cfl.errors import InputError, WorkersLostError

MAX_RETRIES = 3  # restarts of a share whose worker died
_START_SECONDS = 300.0  # a cluster may have to make room, or start a machine
_POLL_SECONDS = 0.2
_LOST = (RayActorError, WorkerCrashedError, OutOfMemoryError, NodeDiedError, ObjectLostError)


@dataclass(frozen=True, eq=False)
class ShareTask:
    """A share of work, with references to its data and models in the object store."""

    share: Share
    examples: Ref
    rows: Sequence[Ref]


class WorkerPool:
    """The Ray workers of a run.

    Args:
        spec: Specification of the workers' engines.
        plan: The run's plan.

    Raises:
        InputError: there is no cluster, or no room in it, or the task cannot be sent.
    """

    def __init__(self, spec: EngineSpec, plan: Plan) -> None:
        try:
            share = ray_cluster.connect(plan)
        except InputError as error:
            raise InputError(f"{error}. To run without Ray, use --engine auto") from error
        self._open = True
        self._workers: list[Any] = [None] * plan.workers  # None = to be started
        self._starting: dict[Ref, int] = {}
        self._idle: list[int] = []
        self._asked = monotonic()
        try:
            self._spec = ray.put(spec)
        except Exception as error:  # a user's object may raise anything when it is pickled
            self.close()
            raise InputError(
                f"the task cannot be sent to Ray's workers: {str(error).splitlines()[0]}; let it build what it needs "
                "itself, or use --engine auto"
            ) from error
        group = get_current_placement_group()
        self._actor: Any = ray.remote(Worker).options(
            num_cpus=share["CPU"],
            num_gpus=share.get("GPU", 0),
            scheduling_strategy="DEFAULT" if group is None else PlacementGroupSchedulingStrategy(group),
        )

    def run(self, tasks: Sequence[ShareTask], between: Callable[[], None]) -> Iterator[tuple[int, Any]]:
        """Runs each task on a worker. Yields each task's number and result, in order of completion.

        Args:
            tasks: Any number of tasks.
            between: Called while the pool waits; may raise an error to stop.

        Raises:
            WorkersLostError: the workers of a task died more than `MAX_RETRIES` times.
        """
        for number in range(len(self._workers)):
            self._start(number)
        waiting, busy, deaths = deque(range(len(tasks))), dict[int, int](), Counter[int]()

        def begin(task: int) -> Ref | None:
            if not self._idle:
                return None
            busy[task] = self._idle.pop()
            return self._send(busy[task], tasks[task])

        def after_wait(ended: Collection[Ref]) -> None:
            between()
            self._take_up(ended, working=bool(busy))

        try:
            for task, ref in ended_tasks(waiting, begin, after_wait, lambda: self._starting, _POLL_SECONDS):
                number = busy.pop(task)
                self._idle.append(number)
                try:
                    done = _result(ref)
                except _LOST as error:
                    deaths[task] += 1
                    self._kill(number)
                    if deaths[task] > MAX_RETRIES:
                        raise _lost_worker_error(tasks[task].share, deaths[task], error) from error
                    self._start(number)
                    waiting.append(task)
                else:
                    yield task, done
        finally:
            for number in busy.values():  # shares still running when the pool is abandoned
                self._kill(number)

    def close(self) -> None:
        """Stops the workers, and Ray if the pool started it."""
        if not self._open:
            return
        self._open = False
        if ray.is_initialized():
            for number in range(len(self._workers)):
                self._kill(number)
        ray_cluster.disconnect()

    def _start(self, number: int) -> None:
        """Requests a worker if it is missing, without waiting until it has started."""
        if self._workers[number] is None:
            self._workers[number] = self._actor.remote([self._spec], sys.path)
            self._starting[self._workers[number].ready.remote()] = number
            self._asked = monotonic()

    def _take_up(self, ended: Collection[Ref], working: bool) -> None:
        """Marks started workers as idle. Raises InputError if none has started for minutes."""
        self._idle += [self._starting.pop(ref) for ref in ended if ref in self._starting]
        if not working and not self._idle and monotonic() - self._asked > _START_SECONDS:
            raise InputError(
                f"none of {len(self._workers)} Ray workers started in {_START_SECONDS:.0f} s: other programs hold the "
                "cluster's cores or GPUs; wait for them, or use --engine auto"
            )

    def _send(self, number: int, task: ShareTask) -> Ref:
        ref: Ref = self._workers[number].run.remote(task.share, [task.examples], *task.rows)
        return ref

    def _kill(self, number: int) -> None:
        worker, self._workers[number] = self._workers[number], None
        self._idle = [other for other in self._idle if other != number]
        self._starting = {ref: other for ref, other in self._starting.items() if other != number}
        if worker is not None:
            ray.kill(worker)


def _result(ref: Ref) -> Any:
    try:
        return ray.get(ref)
    except RayTaskError as error:  # raised by the engine in the worker, and wrapped by Ray
        raise error.cause from error


def _lost_worker_error(share: Share, deaths: int, error: RayError) -> WorkersLostError:
    return WorkersLostError(
        f"{share.worker_in_words} died {deaths} times ({str(error).splitlines()[0]}); if it was short of memory, lower "
        "plan.workers, plan.lanes or plan.rows_mib"
    )
