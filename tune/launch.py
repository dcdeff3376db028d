"""`lit-cfl launch`: runs an experiment or a study as a job on a Ray cluster."""

import argparse
import os
import re
import secrets
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Any

from lit_cfl.errors import InputError, LineParser
from lit_cfl.tune.cluster_jobs import (
    Jobs,
    packing_command,
    renamed_when_complete,
    require_new,
    unpack,
)
from lit_cfl.tune.launch_request import LaunchRequest, job_folder, read_launch_request

_EPILOG = """\
every further option is one of lit-cfl run, or of lit-cfl tune if the file is a study:
  lit-cfl launch --config quickstart --address http://head:8265 --rounds 50
"""
_FOLDER = "lit-cfl folder"  # key of a job's metadata
_STOP_SECONDS = "300"  # time for a job to save its state before Ray kills it; Ray's default of 3 is too short


def launch(arguments: Sequence[str]) -> int:
    """Submits a job, or follows an earlier one. Returns 0, the job's exit code, or 130 after Ctrl-C."""
    given, rest = _parser().parse_known_args(arguments)
    address = given.address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if not address:
        raise InputError("say where the cluster is: --address http://HOST:8265")
    folder = given.run_dir or given.study_dir
    if given.follow:
        if rest:
            raise InputError(f"--follow only follows a job that was launched before; leave out {' '.join(rest)}")
        return _follow(Jobs(address), given.follow, folder)
    request = read_launch_request(rest, given.include)
    job = _job_name(request.name)
    require_new(Path(folder or _default_folder(job)))
    environment = _environment(given.env)
    jobs = Jobs(address)
    _send(jobs, job, request, environment, given)
    if given.detach:
        _say_how(job, jobs.address, folder)
        return 0
    return _follow(jobs, job, folder)


def _parser() -> LineParser:
    parser = LineParser(
        prog="lit-cfl launch",
        description="Runs an experiment or a study on a Ray cluster, and fetches its results.",
        epilog=_EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s --config FILE --address http://HOST:8265 [...]",
    )
    parser.add_argument("--address", help="address of the dashboard, http://HOST:8265 (or RAY_API_SERVER_ADDRESS)")
    parser.add_argument("--run_dir", help="folder of a run's results (default: runs/<job>)")
    parser.add_argument("--study_dir", help="folder of a study's results (default: runs/<job>)")
    parser.add_argument("--remote_dir", default="~/lit-cfl", help="folder of the jobs on the cluster (%(default)s)")
    parser.add_argument("--include", nargs="+", default=[], metavar="PATH", help="further files to send")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="environment variable of the job"
    )
    parser.add_argument("--pip", metavar="FILE", help="requirements that the cluster installs for the job")
    parser.add_argument("--cpus", type=float, default=0.0, help="cores of the job itself (default: none reserved)")
    parser.add_argument("--gpus", type=float, default=0.0, help="GPUs of the job itself")
    parser.add_argument("--detach", action="store_true", help="do not wait for the job")
    parser.add_argument("--follow", metavar="JOB", help="follow a job again; fetches its results at the end")
    return parser


def _environment(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals and name not in os.environ:
            raise InputError(f"--env {name}: the variable is not set here; give --env {name}=VALUE")
        found[name] = value if equals else os.environ[name]
    return found


def _job_name(name: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _default_folder(job: str) -> str:
    return f"runs/{job}"


def _send(jobs: Jobs, job: str, request: LaunchRequest, env_vars: dict[str, str], given: argparse.Namespace) -> None:
    for notice in request.notices:
        print(f"Note: {notice}.")
    own = ", ".join(sorted(request.files)) or "none of your files"
    print(f"sends lit-cfl itself, the configuration, and {own}")
    folder = f"{given.remote_dir.rstrip('/')}/{job}"
    env: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": _STOP_SECONDS} | env_vars}
    env |= {} if given.pip is None else {"pip": given.pip}
    with job_folder(request) as sent:
        env["working_dir"] = str(sent)
        jobs.submit(job, request.entrypoint(folder), env, {_FOLDER: folder}, given.cpus, given.gpus)
    print(f"job {job}; it writes to {folder} on the cluster", flush=True)


def _follow(jobs: Jobs, job: str, folder: str | None) -> int:
    where = Path(folder or _default_folder(job))
    require_new(where)
    try:
        details = jobs.follow(job, lambda text: print(text, end="", flush=True))
        if details.status == "SUCCEEDED":
            _fetch(jobs, job, where)
            return 0
        print(f"lit-cfl: the job {details.status.lower()}: {details.message}", file=sys.stderr)
        _fetch_if_any(jobs, job, where)
        return details.driver_exit_code or 1
    except KeyboardInterrupt:
        print()
        _say_how(job, jobs.address, folder)
        return 130


def _fetch_if_any(jobs: Jobs, job: str, folder: Path) -> None:
    """Fetches the partial results of a failed job, if any."""
    try:
        _fetch(jobs, job, folder)
    except InputError as error:
        print(f"nothing is fetched: {error}", file=sys.stderr)


def _fetch(jobs: Jobs, job: str, folder: Path) -> None:
    details = jobs.details(job)
    metadata = details.metadata or {}
    if _FOLDER not in metadata:
        raise InputError(f"{job} was not started by lit-cfl launch: there is nothing to fetch")
    with renamed_when_complete(folder) as new:
        unpack(jobs.output_of(packing_command(metadata[_FOLDER]), details.driver_node_id), new)
    print(f"fetched: {folder}")


def _say_how(job: str, address: str, folder: str | None) -> None:
    where = "" if folder is None else f" --run_dir {quote(folder)}"
    print(f"{job} continues on the cluster.")
    print(f"follow it, and fetch its results: lit-cfl launch --follow {job} --address {address}{where}")
    print(f"stop it:                          ray job stop {job} --address {address}")


if __name__ == "__main__":  # starts only this command, without loading the others
    try:
        sys.exit(launch(sys.argv[1:]))
    except InputError as error:
        sys.exit(f"lit-cfl: error: {error}")
