"""Ray's Jobs API, with errors that name a remedy."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient

from lit_cfl.errors import InputError

_ANSWER_SECONDS, _POLL_SECONDS = 10.0, 1.0
_SILENT_SECONDS = 300.0  # maximum time without an answer while a job is followed
_STOP_SECONDS = "300"  # time for a job to save itself before Ray kills it
_OVERRIDING = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray would take these rather than the address it is given
_TALKATIVE = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")


@dataclass(frozen=True)
class JobResources:
    """Resources of the job itself on the cluster, apart from its trials and workers.

    Args:
        cpus, gpus: reserved; 0 = it runs on the head node beside everything else.
        env: environment variables, also of trials and workers; everybody on the cluster can read them.
        pip: a requirements file that the cluster installs first, or None.
    """

    cpus: float = 0.0
    gpus: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)
    pip: str | None = None

    def runtime_env(self, parcel: Path) -> dict[str, Any]:
        """Returns Ray's runtime environment."""
        env = {"RAY_JOB_STOP_WAIT_TIME_S": _STOP_SECONDS} | dict(self.env)  # Ray's default is 3: too few to save
        found: dict[str, Any] = {"working_dir": str(parcel), "env_vars": env}
        return found if self.pip is None else found | {"pip": self.pip}


class Jobs:
    """The jobs of a cluster.

    Args:
        address: Address of its dashboard, http://HOST:8265.

    Raises:
        InputError: no Ray cluster answers there, or not to us.
    """

    def __init__(self, address: str) -> None:
        self.address = address if "://" in address else f"http://{address}"
        _require_answer(self.address)
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
        with _explained(self.address), _not_overridden():
            self._client = JobSubmissionClient(self.address)

    def submit(self, job: str, parcel: Path, needs: JobResources, metadata: dict[str, str]) -> None:
        """Sends a job's folder and starts it."""
        with _explained(self.address):
            self._client.submit_job(
                entrypoint="python -m lit_cfl.cli.on_cluster",
                submission_id=job,
                metadata=metadata,
                runtime_env=needs.runtime_env(parcel),
                entrypoint_num_cpus=needs.cpus,
                entrypoint_num_gpus=needs.gpus,
            )

    def details(self, job: str) -> JobDetails:
        """Returns the cluster's information on a job."""
        with _explained(self.address):
            return self._client.get_job_info(job)

    def follow(self, job: str, say: Callable[[str], None]) -> JobDetails:
        """Passes on a job's log as it grows; returns when the job has finished.

        Raises:
            InputError: there is no such job, or the cluster has not answered for minutes.
        """
        self.details(job)
        shown, answered = 0, time.monotonic()
        while True:
            try:
                with _explained(self.address):
                    shown = asyncio.run(self._tail(job, shown, say))
                details = self.details(job)
            except InputError as error:
                if time.monotonic() - answered > _SILENT_SECONDS:
                    again = f"lit-cfl launch --follow {job} --address {self.address}"
                    raise InputError(f"{error}. The job may go on; follow it again with: {again}") from error
            else:
                answered = time.monotonic()
                if details.status.is_terminal():
                    return details
            time.sleep(_POLL_SECONDS)

    async def _tail(self, job: str, shown: int, say: Callable[[str], None]) -> int:
        """Passes on the log after its first characters; returns its new length."""
        length = 0
        try:
            async for text in self._client.tail_job_logs(job):
                length += len(text)
                new = length - shown
                if new > 0:
                    say(text[-new:])
                    shown = length
        except (RuntimeError, aiohttp.ClientError):  # the connection broke: the job may continue
            await asyncio.sleep(_POLL_SECONDS)
        return shown

    def stop(self, job: str) -> bool:
        """Requests a job to stop; returns whether it was running."""
        with _explained(self.address):
            return bool(self._client.stop_job(job))

    def output_of(self, command: str, node: str | None) -> str:
        """Runs a short shell command as a separate job on one node (None = the head); returns its output."""
        with _explained(self.address):
            where = None if node is None else {"ray.io/node-id": node}
            job = self._client.submit_job(entrypoint=command, entrypoint_label_selector=where)
            while not self._client.get_job_status(job).is_terminal():
                time.sleep(_POLL_SECONDS)
            log = self._client.get_job_logs(job)
            self._client.delete_job(job)
        return str(log)


def _require_answer(address: str) -> None:
    """Checks that a cluster answers, as Ray itself would wait for minutes."""
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--address {address}: give the dashboard's, such as http://HOST:8265")
    try:
        with urlopen(f"{address.rstrip('/')}/api/version", timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  # http, as checked
            if b"ray_version" not in answer.read(10_000):
                raise ValueError("what answers there is not Ray's dashboard")
    except HTTPError as error:
        if error.code not in (401, 403):  # Ray's, asking for its token
            raise _no_cluster(address, error) from error
    except (OSError, ValueError, HTTPException) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> InputError:
    return InputError(
        f"no Ray cluster answers at {address} ({error}); give the address of its dashboard, started with "
        "`ray start --head --dashboard-host=0.0.0.0`, or forward it: ssh -L 8265:localhost:8265 HEAD"
    )


@contextmanager
def _explained(address: str) -> Iterator[None]:
    try:
        yield
    except AuthenticationError as error:
        raise InputError(
            f"the cluster at {address} refused the token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or "
            "RAY_AUTH_TOKEN_PATH) as the cluster has them"
        ) from error
    except (RuntimeError, ValueError, OSError) as error:  # OSError: also those of `requests`
        raise InputError(f"the cluster at {address} says: {str(error)[-2000:]}") from error


@contextmanager
def _not_overridden() -> Iterator[None]:
    held = {name: os.environ.pop(name) for name in _OVERRIDING if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)
