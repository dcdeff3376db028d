"""Tests `lit-cfl launch` without a cluster: what is sent and fetched, and errors (see also test_clusters.py)."""

import os
import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml
from studies import STUDY, base

from lit_cfl.errors import InputError
from lit_cfl.tune import launch as command

OWN = "from lit_cfl.algorithms import FedAvg\nclass Own(FedAvg): ...\n"
LAUNCH = ["--config", "mine.yaml", "--address", "http://head:8265"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a user's folder with an experiment, a study, and their code; the current folder is the one above."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own_of_launch.py").write_text(OWN)
    (folder / "mine.yaml").write_text(
        yaml.safe_dump(base(name="my run", algorithm={"class_path": "own_of_launch.Own"}))
    )
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY))
    (tmp_path / "other.yaml").write_text("rounds: 3")
    (folder / "there").mkdir()
    for name in ("summary.json", "metrics.csv", "best.yaml"):
        (folder / "there" / name).write_text(f"{name}: ü\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder


class FakeClient:
    """Stand-in for Ray's client; runs the shell commands of short jobs here."""

    jobs: ClassVar[list[dict[str, Any]]] = []
    status, metadata = "SUCCEEDED", None

    def submit_job(self, **job: Any) -> str:
        self.jobs.append(job)
        return f"job {len(self.jobs)}"

    async def tail_job_logs(self, job: str) -> Any:
        yield "round 1\n"
        if self.status == "INTERRUPTED":
            raise KeyboardInterrupt

    def get_job_info(self, job: str) -> Any:
        status = type("Status", (str,), {"is_terminal": lambda self: True})(self.status)
        metadata = self.metadata if self.metadata is not None else self.jobs[0]["metadata"]
        message = "Job failed with exit code 2, last lines:\nthey say"
        return SimpleNamespace(
            submission_id=job, status=status, message=message, driver_exit_code=2, driver_node_id="n", metadata=metadata
        )

    def get_job_status(self, job: str) -> Any:
        return SimpleNamespace(is_terminal=lambda: True)

    def get_job_logs(self, job: str) -> str:
        shell = self.jobs[-1]["entrypoint"]
        done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
        return f"Running entrypoint for job x: {shell}\n{done.stdout}"

    def delete_job(self, job: str) -> None: ...


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    class Client(FakeClient):
        jobs: ClassVar[list[dict[str, Any]]] = []

    monkeypatch.setattr(command, "_connect", lambda address: Client())
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    return Client


def test_a_run_is_sent_with_the_folder_of_its_file_followed_and_its_summary_is_fetched(
    client: type[FakeClient], project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.secrets, "token_hex", lambda _: "there")
    monkeypatch.setattr(command, "datetime", SimpleNamespace(now=lambda: datetime(2026, 1, 2)))
    job, remote = "my-run-20260102-000000-there", tmp_path / "it's remote"
    remote.mkdir()
    (project / "there").rename(remote / job)
    words = ["--config", "project/mine.yaml", "--rounds", "3", "--address", "head:8265", "--remote_dir", str(remote)]
    assert command.launch([*words, "--run_dir", "back", "--cpus", "2", "--env", "A=b=c"]) == 0
    sent, reader = client.jobs
    env = sent["runtime_env"]
    assert env["working_dir"] == str(project)
    assert (Path(env["py_modules"][0]) / "engines" / "steps.cpp").exists()
    # otherwise Ray would kill a job three seconds after `ray job stop`
    assert env["env_vars"] == {"A": "b=c", "RAY_JOB_STOP_WAIT_TIME_S": "300"}
    assert (sent["submission_id"], sent["entrypoint_num_cpus"]) == (job, 2.0)
    check, _, run = sent["entrypoint"].partition(" && ")
    assert check.startswith("python -c ")  # of the cluster's interpreter
    assert run == f"python -m lit_cfl run --config mine.yaml --rounds 3 --run_dir {shlex.quote(str(remote / job))}"
    assert reader["entrypoint_label_selector"] == {"ray.io/node-id": "n"}
    back = {path.name: path.read_text() for path in (tmp_path / "back").iterdir()}
    assert back == {"summary.json": "summary.json: ü\n", "best.yaml": "best.yaml: ü\n"}
    said = capsys.readouterr().out
    assert f"sends lit-cfl itself, and the folder {project}\n" in said
    assert "round 1\n" in said


def test_a_study_is_searched_and_a_packaged_file_needs_no_folder(client: type[FakeClient], project: Path):
    for words in ("--config=study.yaml --limits.trials 2", "--config quickstart --tiny"):
        assert command.launch([*words.split(), *LAUNCH[2:], "--detach"]) == 0
    study, packaged = client.jobs
    assert " && python -m lit_cfl tune --config=study.yaml --limits.trials 2 --study_dir" in study["entrypoint"]
    assert study["runtime_env"]["working_dir"] == str(project)
    assert " && python -m lit_cfl run --config quickstart --tiny --run_dir" in packaged["entrypoint"]
    assert "working_dir" not in packaged["runtime_env"]


def test_a_job_can_be_followed_later(client: type[FakeClient], project: Path):
    client.metadata = {"lit-cfl folder": str(project / "there")}
    assert command.launch(["--follow", "mine-1", *LAUNCH[2:]]) == 0
    assert (project / "runs" / "mine-1" / "summary.json").exists()


def test_mistakes_are_found_before_anything_is_sent(client: type[FakeClient], project: Path):
    client.metadata = {}
    for words, message in ((["--follow", "x"], "x was not started"), (["--config", "../other.yaml"], "other")):
        with pytest.raises(InputError, match=message):
            command.launch([*(LAUNCH[2:] if "--follow" in words else LAUNCH), *words])
    assert client.jobs == []


def test_ctrl_c_leaves_the_job_running_and_names_the_command_to_follow_it(
    client: type[FakeClient], project: Path, capsys: pytest.CaptureFixture[str]
):
    client.status = "INTERRUPTED"
    assert command.launch([*LAUNCH, "--run_dir", "my runs"]) == 130
    job = client.jobs[0]["submission_id"]
    there = f"{job} --address http://head:8265 --run_dir 'my runs'\n"
    assert f"lit-cfl launch --follow {there}" in capsys.readouterr().out


def test_a_failed_job_says_why_in_one_line_and_its_exit_code_is_ours(
    client: type[FakeClient], project: Path, capsys: pytest.CaptureFixture[str]
):
    client.status = "FAILED"
    assert command.launch([*LAUNCH, "--remote_dir", str(project / "empty")]) == 2
    captured = capsys.readouterr()
    assert captured.err == "lit-cfl: the job failed: Job failed with exit code 2, last lines:\n"
    assert "there are no results in" in captured.out
    assert not (project / "runs").exists()


def test_an_interpreter_without_our_packages_is_named_in_one_line(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    check = [str(tmp_path / "bin" / "python"), "-c", command._CHECK]
    done = subprocess.run(check, capture_output=True, text=True, check=False, env=bare)
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert len(lines) == 1
    assert "lacks ['lightning', 'lit-cfl', 'torch']; install Lit-CFL" in lines[0]
    assert subprocess.run([sys.executable, "-c", command._CHECK], check=False).returncode == 0
