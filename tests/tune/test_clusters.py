"""Tests configs/cluster/ and a cluster of two nodes on this machine: real processes, a token, a killed node."""

import contextlib
import csv
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from studies import base, study_file

from lit_cfl.cli.main import main
from lit_cfl.errors import InputError
from lit_cfl.tune.cluster import require_shared_folder

FOLDER = Path(__file__).parents[2] / "configs" / "cluster"
DOCS = Path(__file__).parents[2] / "docs" / "clusters.md"
SLOW = {"class_path": "own_slow.Slow", "init_args": {"rate": 0.0, "pause": 0.0}}


def ray_cluster_files() -> list[str]:
    """Returns our cluster file, and the same file with the lines for AWS from the docs."""
    aws = DOCS.read_text().partition("```yaml\nprovider:")[2].partition("```")[0]
    ours = yaml.safe_load((FOLDER / "ray-cluster.yml").read_text())
    return [yaml.safe_dump(ours), yaml.safe_dump(ours | yaml.safe_load("provider:" + aws))]


@pytest.mark.parametrize("number", [0, 1], ids=["own machines", "AWS"])
def test_the_ray_cluster_file_is_what_ray_expects(number: int):
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load(ray_cluster_files()[number])
    validate_config(prepare_config(config))
    with pytest.raises(ValidationError, match="setup_command"):
        validate_config(prepare_config(config | {"setup_command": []}))
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    assert all("RAY_AUTH_MODE=token" in line for line in starts if "ray start" in line)
    assert "~/.ray/auth_token" in config["file_mounts"]


def test_the_kubernetes_job_gives_every_pod_its_token_and_the_results():
    claim, job = yaml.safe_load_all((FOLDER / "kuberay-job.yml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for pod in (group["template"]["spec"] for group in groups):
        (container,), (volume,) = pod["containers"], pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/results"}]
        assert container["image"] == groups[0]["template"]["spec"]["containers"][0]["image"]
    assert "--study_dir /results/" in job["spec"]["entrypoint"]
    assert job["spec"]["backoffLimit"] == 0


def test_the_image_copies_what_is_there_on_the_tested_version_of_ray():
    root, text = FOLDER.parents[1], (FOLDER / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY --chown=ray (.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert all((root / name).exists() for name in copied)
    links = {os.readlink(link).removeprefix("../") for link in (root / "lit_cfl").iterdir() if link.is_symlink()}
    assert {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "lit_cfl", *links} == set(copied)
    (tag,) = re.findall(r"^ARG RAY_TAG=(\S+)-py311$", text, re.MULTILINE)
    assert f"ray=={tag}" in (root / "constraints.txt").read_text().splitlines()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_sound(path: Path):
    subprocess.run(["bash", "-n", str(path)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(path)], check=True)


def test_every_file_for_clusters_is_explained():
    text = DOCS.read_text()
    assert [path.name for path in FOLDER.iterdir() if f"configs/cluster/{path.name}" not in text] == []


def test_nodes_that_do_not_see_the_study_directory_are_named(monkeypatch: pytest.MonkeyPatch):
    ray = SimpleNamespace(
        nodes=lambda: [
            {"NodeID": 56 * ip, "NodeManagerAddress": ip, "Alive": ip != "d"} for ip in ("a", "b", "c", "d")
        ],
        remote=lambda **options: (
            lambda look: SimpleNamespace(
                options=lambda scheduling_strategy: SimpleNamespace(
                    remote=lambda path: (look, path, scheduling_strategy.node_id)
                )
            )
        ),
        get=lambda found: [
            sees[node[0]] for look, path, node in found if look is os.path.isdir and path == "/studies/x"
        ],
    )
    monkeypatch.setattr("lit_cfl.tune.cluster.ray", ray)
    sees = {"a": True, "b": True, "c": True}
    require_shared_folder("/studies/x")
    sees |= {"b": False, "c": False}
    with pytest.raises(
        InputError, match=r"/studies/x does not exist on b, c: .* give a --study_dir on a file system that"
    ):
        require_shared_folder("/studies/x")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def marked(mark: str) -> list[int]:
    """Lists the processes with this text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def end(mark: str) -> None:
    """Ends the marked processes by their ids."""
    for signum, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        deadline = time.monotonic() + seconds
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.2)


def wait_until(condition: Callable[[], object], what: str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.2)


@dataclass
class Cluster:
    """Cluster of a head node and a second node, with one core each."""

    folder: Path
    port: int
    dashboard: int
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard}"

    def node(self, name: str) -> str:
        return f"LITCFL_TEST_NODE={name}-{self.port}"

    def start(self, name: str, *words: str) -> None:
        key, _, value = self.node(name).partition("=")
        ports = ["--dashboard-agent-listen-port", str(free_port())]
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        limits = ["--num-cpus=1", "--object-store-memory=80000000"]
        with (self.folder / f"{name}.log").open("w") as log:
            subprocess.Popen(
                [*ray, *limits, *ports, *words],
                env=self.environment | {key: value},
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def begin(self, words: list[str], folder: Path) -> subprocess.Popen[str]:
        """Starts `python WORDS` with the cluster's token."""
        return subprocess.Popen(
            [sys.executable, *words],
            env=self.environment,
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, words: list[str], folder: Path) -> tuple[int, str]:
        """Runs `python WORDS`; returns its exit code and output."""
        process = self.begin(words, folder)
        output, _ = process.communicate(timeout=500)
        return process.returncode, output


@pytest.fixture(scope="module")
def token_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    short = Path(tempfile.mkdtemp(prefix="lc"))  # Ray's sockets need a short path
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "home").mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_TMPDIR": str(short),
        "GATED_LOG": str(folder / "log.txt"),
        "GATE": str(folder / "gate"),
        "HOME": str(folder / "home"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    found = Cluster(folder, free_port(), free_port(), environment)
    dashboard = [f"--dashboard-port={found.dashboard}", f"--ray-client-server-port={free_port()}"]
    try:
        found.start("head", "--head", f"--port={found.port}", *dashboard)
        wait_until(lambda: "Ray runtime started" in (folder / "head.log").read_text(), "the head")
        found.start(
            "second", f"--address=127.0.0.1:{found.port}", f"--temp-dir={short}/second"
        )  # as on its own machine
        wait_until(lambda: "Ray runtime started" in (folder / "second.log").read_text(), "the second node")
        yield found
    finally:
        for name in ("second", "head"):
            end(found.node(name))
        shutil.rmtree(short, ignore_errors=True)


def experiment_file(folder: Path, **changes: object) -> str:
    shutil.copy(Path(__file__).parents[1].joinpath("helpers", "own_slow.py"), folder)
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(base(name="mine", algorithm=SLOW) | changes))
    return str(path)


def numbers(path: Path) -> list[dict[str, str]]:
    with (path / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in csv.DictReader(file)]


@pytest.mark.nightly
def test_a_launched_run_gives_what_it_gives_here(token_cluster: Cluster, tmp_path: Path):
    config = experiment_file(tmp_path)
    words = ["--config", config, "--rounds", "3"]
    there = ["--address", token_cluster.url, "--remote_dir", str(tmp_path / "jobs"), "--run_dir", "there"]
    code, said = token_cluster.run(["-m", "lit_cfl", "launch", *words, *there], tmp_path)
    assert code == 0, said
    assert "round 3/3" in said
    assert main(["run", *words, "--run_dir", str(tmp_path / "here")]) == 0
    (job,) = (tmp_path / "jobs").iterdir()
    assert numbers(job) == numbers(tmp_path / "here")
    assert (tmp_path / "there" / "summary.json").read_text() == (job / "summary.json").read_text()
    code_there = yaml.safe_load((job / "config.yaml").read_text())["code"]
    assert [path for path in code_there if path == str(tmp_path)] == []  # the job used the code that was sent


GATED = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from lit_cfl.algorithms import FedAvg


@dataclass(frozen=True)
class Gated(FedAvg):
    rate: float = 0.0

    def round(self, state, cohort, work, rng):
        while work.round == 2 and not Path(os.environ["GATE"]).exists():
            time.sleep(0.1)
        with open(os.environ["GATED_LOG"], "a") as file:
            file.write(f"{os.environ['LITCFL_TEST_NODE'].partition('-')[0]} {self.rate} {work.round} {os.getpid()}\\n")
        return super().round(state, cohort, work, rng)
"""


@pytest.mark.nightly
def test_a_study_over_two_nodes_survives_the_death_of_one(token_cluster: Cluster, tmp_path: Path):
    log = Path(token_cluster.environment["GATED_LOG"])
    log.unlink(missing_ok=True)
    (tmp_path / "gated.py").write_text(GATED)
    study_file(
        tmp_path,
        base=base(algorithm={"class_path": "gated.Gated"}, checkpoint={"every_seconds": 0}),
        scheduler="FIFOScheduler",
        space={"algorithm.rate": {"uniform": [0.0, 1.0]}},
        limits={"trials": 4},
    )
    words = ["tune", "--config", "study-to-run.yaml", "--study_dir", "study"]
    study = token_cluster.begin(["-m", "lit_cfl", *words, "--ray.address", f"127.0.0.1:{token_cluster.port}"], tmp_path)
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) == 4, "two rounds on each node")
    rounds = [line.split() for line in log.read_text().splitlines()]
    ((lost, process),) = {(rate, pid) for node, rate, _, pid in rounds if node == "second"}
    (raylet,) = [
        pid for pid in marked(token_cluster.node("second")) if Path(f"/proc/{pid}/exe").resolve().name == "raylet"
    ]
    os.kill(raylet, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{process}").exists(), "the trial on the second node to die with it")
    Path(token_cluster.environment["GATE"]).touch()
    output, _ = study.communicate(timeout=200)
    assert study.returncode == 0, output
    assert "4 trials: 4 finished, 0 stopped early, 0 failed" in output
    with (tmp_path / "study" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["status"], row["rounds"]) for row in rows] == [("finished", "4")] * 4
    rounds = [line.split() for line in log.read_text().splitlines()]
    by_node = [(node, number) for node, rate, number, _ in rounds if rate == lost]
    # the trials continued from their last checkpoint
    assert by_node == [("second", "0"), ("second", "1"), ("head", "2"), ("head", "3")]
    for row in rows:
        summary = json.loads((tmp_path / "study" / "trials" / row["trial_id"] / "summary.json").read_text())
        assert float(row["val/weighted_accuracy"]) == summary["val/weighted_accuracy"]


SCONTROL = "#!/bin/sh\nprintf 'one\\ntwo\\n'\n"
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
[ "$1" = hostname ] && { echo 127.0.0.1; exit; }
exec "$@"
"""


@pytest.mark.nightly
def test_the_slurm_script_starts_a_cluster_runs_its_command_and_leaves_nothing(tmp_path: Path):
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    mark = f"LITCFL_TEST_SLURM={tmp_path}"
    number = str(secrets.randbelow(10_000))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LITCFL_TEST_SLURM": str(tmp_path),
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_CPUS_PER_TASK": "1",
        "LITCFL_HEAD_IP": "127.0.0.1",  # both nodes run on this machine
    }
    try:
        done = subprocess.run(
            ["bash", str(FOLDER / "slurm.sh"), "list", "nonsense"],
            env=environment,
            cwd=tmp_path,
            timeout=120,
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 2, said  # the exit code of the command itself
        assert said.count("Ray runtime started") == 2
        assert "invalid choice: 'nonsense'" in said
        wait_until(lambda: marked(mark) == [], "its processes to end", 20)
    finally:
        end(mark)
        shutil.rmtree(f"/tmp/ray-{number}", ignore_errors=True)  # noqa: S108  # the script's own
