"""`lit-cfl launch`: runs an experiment or a study as a job on a Ray cluster."""

import asyncio
import json
import logging
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

import lit_cfl
from lit_cfl.config.catalogue import config_files, config_path
from lit_cfl.config.files import read_config
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError, LineParser
from lit_cfl.tune.options import parse_study

_RESULTS = ("summary.json", "trials.csv", "best.yaml")  # files that are fetched; the others stay on the cluster
_FOLDER, _MARK = "lit-cfl folder", "lit-cfl results "  # key of a job's metadata; start of the line with the results
_POLL_SECONDS, _ANSWER_SECONDS = 1.0, 10.0
_STOP_SECONDS = "300"  # time for a job to save its state before Ray kills it; Ray's default of 3 is too short
_CHECK = (  # ends a job in one line if its interpreter lacks our packages
    "import sys; from importlib.metadata import distributions; "
    "missing = {'lit-cfl', 'torch', 'lightning'} - {str(one.name).lower() for one in distributions()}; "
    "sys.exit(f'lit-cfl: error: {sys.executable} on the cluster lacks {sorted(missing)}; install Lit-CFL on every node "
    "(pip install -c constraints.txt .), and start Ray from that environment' if missing else None)"
)
_PRINT = (  # prints the results of a folder as one line
    "import json, sys; from pathlib import Path; folder = Path(sys.argv[1]).expanduser(); "
    f"files = [folder / name for name in {_RESULTS!r}]; "
    f"print({_MARK!r} + json.dumps({{file.name: file.read_text('utf-8') for file in files if file.exists()}}))"
)


def launch(arguments: Sequence[str]) -> int:
    """Submits a job, or follows an earlier one. Returns 0, the job's exit code, or 130 after Ctrl-C."""
    given, words = _parser().parse_known_args(arguments)
    address = given.address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if not address:
        raise InputError("say where the cluster is: --address http://HOST:8265")
    address = address if "://" in address else f"http://{address}"
    if given.follow and words:
        raise InputError(f"--follow only follows a job that was launched before; leave out {' '.join(words)}")
    folder, name, command = (None, "", []) if given.follow else _read_request(words)
    job = (
        given.follow or f"{re.sub('[^A-Za-z0-9_.-]', '-', name)}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    )
    where = Path(given.run_dir or given.study_dir or f"runs/{job}")
    if where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise InputError(f"{where} already exists; name another with --run_dir or --study_dir")
    env_vars = {"RAY_JOB_STOP_WAIT_TIME_S": _STOP_SECONDS} | dict(map(_variable, given.env))
    client = _connect(address)
    if not given.follow:
        there = f"{given.remote_dir.rstrip('/')}/{job}"
        option = "--study_dir" if command[0] == "tune" else "--run_dir"
        run = shlex.join(["python", "-m", "lit_cfl", *command, option, there])
        env = {"py_modules": [str(Path(lit_cfl.__file__).parent)], "excludes": ["__pycache__/"], "env_vars": env_vars}
        env |= {} if folder is None else {"working_dir": str(folder)}
        print(f"sends lit-cfl itself{'' if folder is None else f', and the folder {folder}'}")
        with _in_one_line(address):
            client.submit_job(
                entrypoint=f"{shlex.join(['python', '-c', _CHECK])} && {run}",
                submission_id=job,
                metadata={_FOLDER: there},
                runtime_env=env,
                entrypoint_num_cpus=given.cpus,
                entrypoint_num_gpus=given.gpus,
            )
        print(f"job {job}; it writes to {there} on the cluster", flush=True)
    again = f"lit-cfl launch --follow {job} --address {address} --run_dir {shlex.quote(str(where))}"
    if given.detach:
        print(f"follow it: {again}\nstop it:   ray job stop {job} --address {address}")
        return 0
    try:
        return _follow(client, job, where, address)
    except KeyboardInterrupt:
        print(f"\n{job} continues on the cluster.")
        print(f"follow it: {again}\nstop it:   ray job stop {job} --address {address}")
        return 130
    except aiohttp.ClientError as error:
        raise InputError(f"the connection broke ({error}). The job may continue; follow it again: {again}") from error


def _parser() -> LineParser:
    parser = LineParser(
        prog="lit-cfl launch",
        description="Runs an experiment or a study on a Ray cluster, and fetches its summary.",
        epilog="Every further option is one of lit-cfl run, or of lit-cfl tune if the file is a study.",
        allow_abbrev=False,
        usage="%(prog)s --config FILE --address http://HOST:8265 [...]",
    )
    parser.add_argument("--address", help="address of the dashboard, http://HOST:8265 (or RAY_API_SERVER_ADDRESS)")
    parser.add_argument("--run_dir", help="folder for a run's summary (default: runs/<job>)")
    parser.add_argument("--study_dir", help="folder for a study's results (default: runs/<job>)")
    parser.add_argument("--remote_dir", default="~/lit-cfl", help="folder of the jobs on the cluster (%(default)s)")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="environment variable of the job"
    )
    parser.add_argument("--cpus", type=float, default=0.0, help="cores of the job itself (default: none reserved)")
    parser.add_argument("--gpus", type=float, default=0.0, help="GPUs of the job itself")
    parser.add_argument("--detach", action="store_true", help="do not wait for the job")
    parser.add_argument("--follow", metavar="JOB", help="follow a job again; fetches its results at the end")
    return parser


def _read_request(words: Sequence[str]) -> tuple[Path | None, str, list[str]]:
    """Checks a run or a study in the folder of its file, as the job will read it.

    Returns:
        The folder to be sent (None = the file is a packaged one), the name, and the words of the command.
    """
    files = config_files(words)
    if not files:
        raise InputError("say what to run: lit-cfl launch --config FILE --address http://HOST:8265")
    if here := {"--dry-run", "--dry_run"} & set(words):
        raise InputError(f"{min(here)} is for this machine: leave out {min(here)}, or --address and lit-cfl launch")
    is_study = any("space" in read_config(config_path(file)) for file in files)
    own = {file: Path(file).resolve() for file in files if Path(file).is_file()}
    folder = next((path.parent for path in own.values()), None)
    places: dict[str, str] = {}
    for file, path in own.items():
        if folder is None or not path.is_relative_to(folder):
            raise InputError(f"--config {file} is outside of {folder}, which is sent; put all files into one folder")
        places |= {file: str(path.relative_to(folder)), f"--config={file}": f"--config={path.relative_to(folder)}"}
    words = [places.get(word, word) for word in words]
    with chdir(folder or "."):
        name = parse_study(words).study.name if is_study else parse_run(words, prog="lit-cfl launch").experiment.name
    return folder, name, ["tune" if is_study else "run", *words]


def _variable(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals and name not in os.environ:
        raise InputError(f"--env {name}: the variable is not set here; give --env {name}=VALUE")
    return name, value if equals else os.environ[name]


def _connect(address: str) -> JobSubmissionClient:
    """Connects to a cluster's Jobs API, after a check of its address: Ray itself would wait for minutes."""
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--address is {address}; give the address of Ray's dashboard, such as http://HOST:8265")
    try:
        with urlopen(f"{address.rstrip('/')}/api/version", timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  # http, as checked
            reason = "" if b"ray_version" in answer.read(10_000) else "the server there is not Ray's dashboard"
    except HTTPError as error:
        reason = "" if error.code in (401, 403) else str(error)  # the codes with which Ray asks for its token
    except (OSError, ValueError, HTTPException) as error:
        reason = str(error.reason) if isinstance(error, URLError) else f"it does not speak HTTP: {type(error).__name__}"
    if reason:
        raise InputError(
            f"no Ray cluster answers at {address} ({reason}); give the address of its dashboard, started with "
            "`ray start --head --dashboard-host=0.0.0.0`, or forward it: ssh -L 8265:localhost:8265 HEAD"
        )
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):  # Ray would use these instead of the given address
        os.environ.pop(name, None)
    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
    with _in_one_line(address):
        return JobSubmissionClient(address)


@contextmanager
def _in_one_line(address: str) -> Iterator[None]:
    """Turns the errors of Ray's client into one line with a remedy."""
    try:
        yield
    except InputError:
        raise
    except AuthenticationError as error:
        raise InputError(
            f"the cluster at {address} refused the token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or "
            "RAY_AUTH_TOKEN_PATH) as the cluster has them"
        ) from error
    except (RuntimeError, ValueError, OSError) as error:  # OSError includes the errors of `requests`
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        if "No available agent" in last:
            raise InputError(
                f"the cluster at {address} has no agent that takes jobs: another Ray on that machine has its port; "
                "start the head with another --dashboard-agent-listen-port"
            ) from error
        raise InputError(f"the cluster at {address} reports: {last}") from error


def _follow(client: JobSubmissionClient, job: str, where: Path, address: str) -> int:
    """Prints a job's log until the job ends, and fetches its results. Returns its exit code."""

    async def show() -> None:
        async for text in client.tail_job_logs(job):
            print(text, end="", flush=True)

    with _in_one_line(address):
        client.get_job_info(job)
        asyncio.run(show())
        while not (details := client.get_job_info(job)).status.is_terminal():
            time.sleep(_POLL_SECONDS)
        if details.status != "SUCCEEDED":
            reason = (details.message or "").partition("\n")[0]
            print(f"lit-cfl: the job {details.status.lower()}: {reason}", file=sys.stderr)
        _fetch(client, details, where)
    return 0 if details.status == "SUCCEEDED" else details.driver_exit_code or 1


def _fetch(client: JobSubmissionClient, details: Any, where: Path) -> None:
    """Fetches the results of a job, which a second job prints on the same node."""
    there = (details.metadata or {}).get(_FOLDER)
    if there is None:
        raise InputError(f"{details.submission_id} was not started by lit-cfl launch: there is nothing to fetch")
    node = None if details.driver_node_id is None else {"ray.io/node-id": details.driver_node_id}
    reader = client.submit_job(entrypoint=shlex.join(["python", "-c", _PRINT, there]), entrypoint_label_selector=node)
    while not client.get_job_status(reader).is_terminal():
        time.sleep(_POLL_SECONDS)
    lines = [line for line in client.get_job_logs(reader).splitlines() if line.startswith(_MARK)]
    client.delete_job(reader)
    found = json.loads(lines[-1].removeprefix(_MARK)) if lines else {}
    for name in sorted(found.keys() & set(_RESULTS)):
        where.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(found[name], "utf-8")
        print(f"fetched: {where / name}")
    print(f"all files: {there} on the cluster" if found else f"there are no results in {there} on the cluster")
