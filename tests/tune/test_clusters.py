"""Tests configs/cluster/ and a cluster of two nodes on this machine: real processes, a token, a killed node."""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from digits_experiment import timeless_rows
from processes import left, marked
from studies import SLOW, base, study_file

from lit_cfl.cli.main import main
from lit_cfl.errors import InputError
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tune.cluster import require_shared_folder

FOLDER = Path(__file__).parents[2] / "configs" / "cluster"
DOCS = Path(__file__).parents[2] / "docs" / "clusters.md"


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


def fake_ray(blind: str) -> SimpleNamespace:
    """Answers `os.path.isdir` of four nodes, the last of which is dead; the blind ones do not see a folder."""
    nodes = [{"NodeID": 56 * ip, "NodeManagerAddress": ip, "Alive": ip != "d"} for ip in "abcd"]

    def options(scheduling_strategy: Any) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda path: scheduling_strategy.node_id[0] not in blind)

    look = SimpleNamespace(options=options)
    return SimpleNamespace(nodes=lambda: nodes, remote=lambda **_: lambda _: look, get=list)


def test_nodes_that_do_not_see_the_study_directory_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lit_cfl.tune.cluster.ray", fake_ray("d"))
    require_shared_folder("/studies/x")
    monkeypatch.setattr("lit_cfl.tune.cluster.ray", fake_ray("bc"))
    with pytest.raises(InputError, match=r"/studies/x does not exist on b, c: .*--study_dir"):
        require_shared_folder("/studies/x")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


SCONTROL = "#!/bin/sh\nprintf 'one\\ntwo\\n'\n"
# as `srun`, but on this machine, where two nodes need ports and folders of their own
SRUN = """#!/bin/sh
for word in "$@"; do case $word in --nodelist=*) export LITCFL_TEST_NODE="${word#*=}" ;; esac; done
while [ "${1#--}" != "$1" ]; do shift; done
[ "$1" = hostname ] && { echo 127.0.0.1; exit; }
eval "exec \\"\\$@\\" \\$OPTIONS_$LITCFL_TEST_NODE"
"""


@dataclass
class Slurm:
    """Runs commands by `slurm.sh` in a folder, on a cluster of two nodes with one core each."""

    folder: Path
    dashboard: int
    mark: str
    environment: dict[str, str]

    def begin(self, *words: str) -> subprocess.Popen[str]:
        command, pipe = ["bash", str(FOLDER / "slurm.sh"), *words], subprocess.PIPE
        folder, environment = self.folder, self.environment
        return subprocess.Popen(command, env=environment, cwd=folder, text=True, stdout=pipe, stderr=subprocess.STDOUT)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    number, limit = str(secrets.randbelow(10_000)), "--object-store-memory=80000000 --dashboard-agent-listen-port"
    dashboard, head = free_port(), f"--ray-client-server-port={free_port()} --dashboard-port"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LITCFL_TEST_SLURM": str(tmp_path),
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_CPUS_PER_TASK": "1",
        "LITCFL_HEAD_IP": "127.0.0.1",  # both nodes run on this machine
        "OPTIONS_one": f"{limit}={free_port()} {head}={dashboard}",
        "OPTIONS_two": f"{limit}={free_port()}",
    }
    shutil.copy(Path(__file__).with_name("own_slow.py"), tmp_path)
    mark = f"LITCFL_TEST_SLURM={tmp_path}"
    yield Slurm(tmp_path, dashboard, mark, environment)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        left(mark, seconds=10)
    shutil.rmtree(f"/tmp/ray-{number}", ignore_errors=True)  # noqa: S108  # the script's own


@pytest.mark.nightly
def test_a_launched_run_gives_what_it_gives_here(slurm: Slurm, tmp_path: Path):
    config = tmp_path / "mine.yaml"
    config.write_text(yaml.safe_dump(base(name="mine", algorithm=SLOW)))
    words = ["--config", str(config), "--rounds", "3"]
    there = ["--address", f"http://127.0.0.1:{slurm.dashboard}", "--remote_dir", str(tmp_path / "jobs")]
    script = slurm.begin("launch", *words, *there, "--run_dir", "there")
    said, _ = script.communicate(timeout=300)
    assert script.returncode == 0, said
    assert said.count("Ray runtime started") == 2
    assert "round 3/3" in said
    assert left(slurm.mark) == []
    assert main(["run", *words, "--run_dir", str(tmp_path / "here")]) == 0
    (job,) = (tmp_path / "jobs").iterdir()
    assert timeless_rows(tmp_path / "here" / "metrics.csv") == timeless_rows(job / "metrics.csv")
    assert (tmp_path / "there" / "summary.json").read_text() == (job / "summary.json").read_text()
    # the job used the code that was sent
    assert str(tmp_path) not in yaml.safe_load((job / "config.yaml").read_text())["code"]


GATED = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from lit_cfl.algorithms import FedAvg


@dataclass(frozen=True)
class Gated(FedAvg):
    rate: float = 0.0

    def round(self, state, cohort, work, rng):
        folder = Path(os.environ["LITCFL_TEST_SLURM"])
        while work.round == 2 and not (folder / "gate").exists():
            time.sleep(0.1)
        with (folder / "log.txt").open("a") as file:
            file.write(f"{os.environ['LITCFL_TEST_NODE']} {self.rate} {work.round} {os.getpid()}\\n")
        return super().round(state, cohort, work, rng)
"""


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.002)


@pytest.mark.nightly
def test_a_study_over_two_nodes_survives_the_death_of_one(slurm: Slurm, tmp_path: Path):
    def rounds() -> list[list[str]]:
        """Returns the lines of the log: node, rate, round, process."""
        log = tmp_path / "log.txt"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    (tmp_path / "gated.py").write_text(GATED)
    study_file(
        tmp_path,
        base=base(algorithm={"class_path": "gated.Gated"}, checkpoint={"every_seconds": 0}),
        scheduler="FIFOScheduler",
        space={"algorithm.rate": {"uniform": [0.0, 1.0]}},
        limits={"trials": 4},
    )
    script = slurm.begin("tune", "--config", "study-to-run.yaml", "--study_dir", "study")
    wait_until(lambda: len(rounds()) == 4, "two rounds on each node")
    ((lost, process),) = {(rate, pid) for node, rate, _, pid in rounds() if node == "two"}
    on_two = set(marked(slurm.mark)) & set(marked("LITCFL_TEST_NODE=two"))
    (raylet,) = [pid for pid in on_two if Path(f"/proc/{pid}/exe").resolve().name == "raylet"]
    os.kill(raylet, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{process}").exists(), "the trial on the second node to die")
    (tmp_path / "gate").touch()
    said, _ = script.communicate(timeout=200)
    assert script.returncode == 0, said
    assert "4 trials: 4 finished, 0 stopped early, 0 failed" in said
    rows = read_table(tmp_path / "study" / "trials.csv", text=("trial_id",))
    assert [(row["status"], row["rounds"]) for row in rows] == [("finished", 4)] * 4
    # the trial continued from its last checkpoint
    by_node = [(node, number) for node, rate, number, _ in rounds() if rate == lost]
    assert by_node == [("two", "0"), ("two", "1"), ("one", "2"), ("one", "3")]
    for row in rows:
        summary = json.loads((tmp_path / "study" / "trials" / row["trial_id"] / "summary.json").read_text())
        assert row["val/weighted_accuracy"] == summary["val/weighted_accuracy"]
