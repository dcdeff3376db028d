"""Connects to the workers' Ray cluster: a running cluster, or a new one on this machine."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil, floor
from typing import Any
from urllib.parse import urlsplit

import ray
import torch
from ray.util import get_current_placement_group

from lit_cfl.cores import count_cores
from lit_cfl.devices import count_gpus
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.workload import RayRoom
from lit_cfl.errors import InputError

Resources = Mapping[str, float]  # number of "CPU", "GPU"
_ANSWER_SECONDS = 5.0
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # RFC 9113, 3.4: the preface of HTTP/2
_SETTINGS = b"\x04"  # type of the frame that every HTTP/2 server answers with
_users = 0  # number of users of a connection made here


def connect(plan: Plan) -> Resources:
    """Connects to the Ray cluster at RAY_ADDRESS, else to a new local one; keeps an existing connection.

    Returns:
        the resources of each worker of the plan: one core per thread, and a share of a GPU.

    Raises:
        InputError: the cluster does not answer, or has no room for the workers.
    """
    _join(plan)
    try:
        return share_of_each(plan, _room())
    except InputError:
        disconnect()
        raise


def count_room(threads: int = 1) -> RayRoom:
    """Counts the workers' resources: in the running cluster, else on this machine, where Ray will start.

    Args:
        threads: Threads of a worker.

    Raises:
        InputError: the cluster does not answer.
    """
    if not is_there():
        return RayRoom(count_cores() // threads, count_gpus())
    _join(Plan(workers=1))
    try:
        nodes = _room()
        places = sum(_fit_into(node, {"CPU": threads}) for node in nodes)
        return RayRoom(places, ceil(sum(node.get("GPU", 0.0) for node in nodes)))
    finally:
        disconnect()


def is_there() -> bool:
    """Returns whether `connect` would connect to a running cluster rather than start a new one."""
    return ray.is_initialized() or _address() != "local"


def _address() -> str:
    return os.environ.get("RAY_ADDRESS", "local") or "local"


def _join(plan: Plan) -> None:
    """Connects to Ray unless this process is connected already; counts the uses for `disconnect`."""
    global _users
    if not ray.is_initialized():
        _users = 0
        _start(plan)
        _users = 1
    elif _users:
        _users += 1


def disconnect() -> None:
    """Ends one use of Ray; ending the last use shuts Ray down if `connect` started it."""
    global _users
    if _users == 1 and ray.is_initialized():
        ray.shutdown()
    _users = max(0, _users - 1)


def share_of_each(plan: Plan, room: Sequence[Resources]) -> Resources:
    """Computes the share of a cluster that each worker of the plan holds.

    Args:
        room: Cores and GPUs of each node.

    Raises:
        InputError: the cluster has no room for all workers.
    """
    share = {"CPU": float(plan.threads)}
    if plan.device != "cpu":
        gpus = sum(node.get("GPU", 0.0) for node in room)
        if not gpus:
            raise InputError(
                f"device is {plan.device!r}, but Ray has no GPU here; use --device cpu, or a cluster of GPUs"
            )
        share["GPU"] = floor(10_000 / ceil(plan.workers / gpus)) / 10_000  # Ray counts resources in units of 1/10,000
    places = sum(_fit_into(node, share) for node in room)
    if places < plan.workers:
        each = " and ".join(f"{amount:g} {kind}" for kind, amount in share.items())
        raise InputError(
            f"plan.workers is {plan.workers}, but Ray has room for {places} workers of {each} each here; lower "
            "plan.workers or plan.threads, or add nodes (in a trial of Ray Tune: bundles)"
        )
    return share


def _fit_into(node: Resources, share: Resources) -> int:
    return min(floor(node.get(kind, 0.0) / amount + 1e-9) if amount else 0 for kind, amount in share.items())


def _room() -> list[Resources]:
    """Lists the resources of each node, or the unused ones of each bundle in a placement group (a Ray Tune trial)."""
    group = get_current_placement_group()
    if group is None:
        nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
        return [node["Resources"] for node in nodes if node["Alive"]]
    own = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]  # Ray's
    first, *others = group.bundle_specs
    return [{kind: amount - own.get(kind, 0.0) for kind, amount in first.items()}, *others]


def _start(plan: Plan) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = _address()
    if address == "local":
        gpus = 0 if plan.device == "cpu" else torch.cuda.device_count()
        share_of_each(plan, [{"CPU": count_cores(), "GPU": gpus}])
        options |= {"num_cpus": plan.workers * plan.threads, "num_gpus": gpus, "include_dashboard": False}
    else:
        _require_answer(address)
    with _keep_sigterm_handler():
        try:
            ray.init(address, **options)
        except Exception as error:  # Ray raises many kinds: no cluster, another version, no permission, no disk space
            where = "on this machine"
            if address != "local":
                where = f"at RAY_ADDRESS={address!r} (set RAY_AUTH_MODE and the token as the cluster has them)"
            busy = " Other programs may keep the machine busy: try again." if "timed out" in str(error) else ""
            raise InputError(f"Ray cannot be used {where}: {type(error).__name__}: {error}{busy}") from error


def _require_answer(address: str) -> None:
    """Raises InputError if no Ray cluster answers at an address within five seconds.

    Ray itself would try for minutes.
    """
    scheme, _, rest = address.rpartition("://")
    if address == "auto" or scheme not in ("", "ray"):
        return
    try:
        parts = urlsplit(f"//{rest}")
        with socket.create_connection((parts.hostname or "", parts.port or 0), _ANSWER_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") in ("0", ""):
                connection.sendall(_HELLO)
                if connection.recv(9)[3:4] != _SETTINGS:
                    raise ConnectionError("the server at that address is not Ray")
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Ray cluster answers at RAY_ADDRESS={address!r} ({error}); start it (`ray start --head`), give its "
            "<host>:6379 or ray://<host>:10001, or unset RAY_ADDRESS to use this machine alone"
        ) from error


@contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Restores the handler of SIGTERM after the block, because Ray replaces it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        ours = before not in (None, signal.SIG_DFL)
        if ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
