"""Jobs on a Ray cluster through Ray's Jobs API: submits them, follows them, and fetches their results."""

import asyncio
import logging
import os
import re
import shlex
import tarfile
import time
from base64 import b64decode
from binascii import Error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient

from lit_cfl.errors import InputError

_ANSWER_SECONDS, _POLL_SECONDS = 10.0, 1.0
_SILENT_SECONDS = 300.0  # maximum time without an answer while a job is followed
_OVERRIDING = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray would use these instead of the given address
_TALKATIVE = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")


class Jobs:
    """Client of a Ray cluster's Jobs API.

    Args:
        address: Address of the cluster's dashboard, http://HOST:8265.

    Raises:
        InputError: no Ray cluster answers there, or it rejects this client.
    """

    def __init__(self, address: str) -> None:
        self.address = address if "://" in address else f"http://{address}"
        _require_answer(self.address)
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
        with _explain_errors(self.address), _not_overridden():
            self._client = JobSubmissionClient(self.address)

    def submit(
        self, job: str, command: str, env: dict[str, Any], metadata: dict[str, str], cpus: float, gpus: float
    ) -> None:
        """Sends a job's folder to the cluster, and starts its command.

        Args:
            job: Id of the job.
            command: Shell command.
            env: Ray's runtime environment of the job, with its folder.
            metadata: Notes that the cluster stores with the job.
            cpus, gpus: Reserved cores and GPUs; 0 = the job runs on the head node alongside all other processes.
        """
        with _explain_errors(self.address):
            self._client.submit_job(
                entrypoint=command,
                submission_id=job,
                metadata=metadata,
                runtime_env=env,
                entrypoint_num_cpus=cpus,
                entrypoint_num_gpus=gpus,
            )

    def details(self, job: str) -> JobDetails:
        """Returns the status and other details of a job from the cluster."""
        with _explain_errors(self.address):
            return self._client.get_job_info(job)

    def follow(self, job: str, say: Callable[[str], None]) -> JobDetails:
        """Prints a job's log as it grows; returns when the job has finished.

        Raises:
            InputError: there is no such job, or the cluster has not answered for minutes.
        """
        self.details(job)
        shown, answered = 0, time.monotonic()
        while True:
            try:
                with _explain_errors(self.address):
                    shown = asyncio.run(self._tail(job, shown, say))
                details = self.details(job)
            except InputError as error:
                if time.monotonic() - answered > _SILENT_SECONDS:
                    again = f"lit-cfl launch --follow {job} --address {self.address}"
                    raise InputError(f"{error}. The job may continue; follow it again with: {again}") from error
            else:
                answered = time.monotonic()
                if details.status.is_terminal():
                    return details
            time.sleep(_POLL_SECONDS)

    async def _tail(self, job: str, shown: int, say: Callable[[str], None]) -> int:
        """Prints a job's log beyond the part already shown; returns the length shown so far."""
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

    def output_of(self, command: str, node: str | None) -> str:
        """Runs a short shell command as a separate job on one node (None = the head); returns its output."""
        with _explain_errors(self.address):
            where = None if node is None else {"ray.io/node-id": node}
            job = self._client.submit_job(entrypoint=command, entrypoint_label_selector=where)
            while not self._client.get_job_status(job).is_terminal():
                time.sleep(_POLL_SECONDS)
            log = self._client.get_job_logs(job)
            self._client.delete_job(job)
        return str(log)


def _require_answer(address: str) -> None:
    """Checks that a cluster answers within seconds; Ray itself would wait for minutes."""
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--address is {address}; give the address of Ray's dashboard, such as http://HOST:8265")
    try:
        with urlopen(f"{address.rstrip('/')}/api/version", timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  # http, as checked
            if b"ray_version" not in answer.read(10_000):
                raise ValueError("the server at that address is not Ray's dashboard")
    except HTTPError as error:
        if error.code not in (401, 403):  # status codes with which Ray asks for its token
            raise _no_cluster(address, error) from error
    except (OSError, ValueError, HTTPException) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> InputError:
    return InputError(
        f"no Ray cluster answers at {address} ({error}); give the address of its dashboard, started with "
        "`ray start --head --dashboard-host=0.0.0.0`, or forward it: ssh -L 8265:localhost:8265 HEAD"
    )


@contextmanager
def _explain_errors(address: str) -> Iterator[None]:
    try:
        yield
    except AuthenticationError as error:
        raise InputError(
            f"the cluster at {address} refused the token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or "
            "RAY_AUTH_TOKEN_PATH) as the cluster has them"
        ) from error
    except (RuntimeError, ValueError, OSError) as error:  # OSError includes the errors of `requests`
        raise InputError(f"the cluster at {address} reports: {str(error)[-2000:]}") from error


@contextmanager
def _not_overridden() -> Iterator[None]:
    held = {name: os.environ.pop(name) for name in _OVERRIDING if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


_BEGIN, _END = "lit-cfl archive begins", "lit-cfl archive ends"
# Ray's own line, which may appear anywhere in the log
_OF_RAY = re.compile("Running entrypoint for job .*\n")
_LEFT_OUT = ("ray", ".lock")  # Ray's records contain pickles, which are never sent; a lock file is empty
LIMIT_MIB = 256  # packed: Ray keeps a whole log in memory when it is read


def packing_command(folder: str) -> str:
    """Returns a shell command that prints a folder as a packed archive between two marker lines."""
    place = f'"$HOME"/{shlex.quote(folder[2:])}' if folder.startswith("~/") else shlex.quote(folder)
    left_out = " ".join(f"--exclude=./{name}" for name in _LEFT_OUT)
    size = LIMIT_MIB * 2**20 + 1
    tar = f"tar -C {place} {left_out} -czf - . | head -c {size} | base64"
    return f"echo {shlex.quote(_BEGIN)}; {tar}; echo {shlex.quote(_END)}"


def unpack(log: str, folder: Path) -> None:
    """Unpacks the archive that `packing_command` has printed into a log.

    Raises:
        InputError: the output is incomplete, or too large.
    """
    text = _OF_RAY.sub("", f"\n{log}").rpartition(f"\n{_BEGIN}\n")[2].partition(f"\n{_END}")[0]
    try:
        archive_bytes = b64decode(text)
        if len(archive_bytes) > LIMIT_MIB * 2**20:
            raise InputError(
                f"the results take more than {LIMIT_MIB} MiB compressed; copy them from the cluster, or launch with "
                "--remote_dir in a folder that this machine sees, too"
            )
        with tarfile.open(fileobj=BytesIO(archive_bytes), mode="r:gz") as archive:
            _extract(archive, folder)
    except (Error, tarfile.TarError, EOFError, OSError) as error:
        raise InputError(
            f"the results could not be read: {error}; the cluster reports: {log[-500:].strip()}"
        ) from error


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extracts an archive; raises TarError for a member that would lie outside of the folder."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    plain = []  # without a filter (before Python 3.11.4, as in Debian 12): files and folders, but no links
    for member in archive:
        place = PurePosixPath(member.name)
        if place.is_absolute() or ".." in place.parts:
            raise tarfile.TarError(f"{member.name!r} would be outside of the folder")
        plain += [member] if member.isfile() or member.isdir() else []
    archive.extractall(folder, plain)  # noqa: S202  # each was looked at above


@contextmanager
def renamed_when_complete(folder: Path) -> Iterator[Path]:
    """Provides a temporary folder, which becomes `folder` only if the block succeeds.

    Raises:
        InputError: the name is taken.
    """
    require_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        (Path(name) / "results").mkdir()
        yield Path(name) / "results"
        (Path(name) / "results").rename(folder)


def require_new(folder: Path) -> None:
    """Raises InputError unless a folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} already exists; name another with --run_dir or --study_dir")
