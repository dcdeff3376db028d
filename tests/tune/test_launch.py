"""Tests `lit-cfl launch` without a cluster: what is sent and fetched, and errors (see also test_clusters.py)."""

import io
import os
import subprocess
import sys
import tarfile
from base64 import b64encode
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from studies import ALGORITHMS, STUDY, base

from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError
from lit_cfl.tune import cluster_jobs, launch_request
from lit_cfl.tune import launch as command
from lit_cfl.tune.cluster_jobs import (
    Jobs,
    packing_command,
    renamed_when_complete,
    require_new,
    unpack,
)
from lit_cfl.tune.launch_request import as_in_the_job, find_files, job_folder, read_launch_request
from lit_cfl.tune.options import parse_study

OWN = "from helper_of_launch import RATE\nfrom lit_cfl.algorithms import FedAvg\nclass Own(FedAvg):\n    rate = RATE\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a user's folder with an experiment, its code, and private files that must not be sent."""
    folder = tmp_path / "project"
    (folder / "nets_of_launch" / "deep").mkdir(parents=True)
    (folder / "own_of_launch.py").write_text(OWN)
    (folder / "helper_of_launch.py").write_text("RATE = 3\n")
    (folder / "nets_of_launch" / "__init__.py").write_text("from lit_cfl.nets import MCLR\nclass Net(MCLR): ...\n")
    (folder / "nets_of_launch" / "deep" / "layers.py").write_text("")
    for name in ("secret.txt", ".env", "other.py", "nets_of_launch/weights.bin", "part.npz"):
        (folder / name).write_text("private")
    task = base()["task"] | {}
    task["init_args"] = task["init_args"] | {"net": {"class_path": "nets_of_launch.Net"}}
    own = base(name="mine", task=task, algorithm={"class_path": "own_of_launch.Own"})
    (folder / "mine.yaml").write_text(yaml.safe_dump(own))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # another test may have imported a module of this name
    for name in [name for name in sys.modules if "_of_launch" in name]:
        del sys.modules[name]
    return folder


def sent(order) -> tuple[set[str], dict]:
    """Returns the files in a job's folder without our packages, and the content of its configuration."""
    with job_folder(order) as folder:
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        ours = {name for name in found if name.startswith("lit_cfl/")}
        assert {"py", "cpp"} <= {name.rpartition(".")[2] for name in ours}
        assert not [name for name in ours if name.endswith(".pyc")]
        assert {
            "lit_cfl/cli/main.py",
            "lit_cfl/datamodules/federated.py",
            "lit_cfl/tune/search.py",
        } <= ours
        assert [found.metadata["Name"] for found in distributions(path=[str(folder)])] == ["lit-cfl"]
        return found - ours, yaml.safe_load((folder / "launched.yaml").read_text())


def test_own_code_goes_along_and_nothing_else_of_the_folder(project: Path):
    found, config = sent(read_launch_request(["--config", "mine.yaml", "--rounds", "7"]))
    assert {name for name in found if "dist-info" not in name} == {
        "launched.yaml",
        "own_of_launch.py",
        "helper_of_launch.py",
        "nets_of_launch/__init__.py",
        "nets_of_launch/deep/layers.py",
    }
    assert config["rounds"] == 7
    assert "code" not in config
    assert str(project) not in str(config)


def test_the_configuration_that_is_sent_is_the_same_experiment(tmp_path: Path):
    words = ["--config", "quickstart", "--seed", "5", "--tiny"]
    _, config = sent(read_launch_request(words))
    (tmp_path / "launched.yaml").write_text(yaml.safe_dump(config))
    there, here = parse_run(["--config", str(tmp_path / "launched.yaml")]), parse_run(words)
    assert there.experiment.to_dict() | {"code": 0} == here.experiment.to_dict() | {"code": 0}
    assert there.experiment.rounds == 1


def test_a_study_goes_with_its_base_whole(project: Path):
    algorithms = {"choice": [*ALGORITHMS["choice"], {"class_path": "own_of_launch.Own"}]}
    (project / "base.yaml").write_text(yaml.safe_dump(base(rounds=9)))
    (project / "study.yaml").write_text(
        yaml.safe_dump(STUDY | {"base": "base.yaml", "space": {"algorithm": algorithms}})
    )
    order = read_launch_request(["--config", "study.yaml", "--limits.trials", "2"])
    found, config = sent(order)
    assert (order.command, order.name) == ("tune", "tiny-study")
    assert (config["base"]["rounds"], config["limits"]["trials"]) == (9, 2)
    assert {"own_of_launch.py", "helper_of_launch.py"} <= found
    assert str(project) not in str(config)
    (project / "launched.yaml").write_text(yaml.safe_dump(config))
    there = parse_study(["--config", "launched.yaml"]).study
    here = parse_study(["--config", "study.yaml", "--limits.trials", "2"]).study
    assert there.space == here.space
    assert {**there.base, "code": 0} == {**here.base, "code": 0}


def test_named_files_go_along_and_the_configuration_finds_them(project: Path):
    (project / "tables" / ".git").mkdir(parents=True)
    for name in ("a.csv", "b.csv", ".git/config"):
        (project / "tables" / name).write_text("1")
    words = ["--config", "quickstart", "--data.partition_file", "part.npz"]
    order = read_launch_request(words, ["part.npz", "tables"])
    assert set(order.files) == {"part.npz", "tables/a.csv", "tables/b.csv"}
    assert order.config["data"]["init_args"]["partition_file"] == "part.npz"
    assert order.notices == []
    (notice,) = read_launch_request(words).notices
    assert notice == (
        f"partition_file is {project / 'part.npz'}, which must exist on the cluster, too; "
        f"otherwise send it with --include {project / 'part.npz'}"
    )


def test_a_folder_that_the_configuration_names_is_named_in_the_job(project: Path):
    (project / "hub" / "deep").mkdir(parents=True)
    (project / "hub" / "deep" / "data.csv").write_text("1")
    config = {"data": {"source": str(project / "hub"), "other": [str(project / "hub" / "deep")]}, "name": "hub"}
    assert as_in_the_job(config, find_files(["hub"])) == {
        "data": {"source": "hub", "other": ["hub/deep"]},
        "name": "hub",
    }


def test_the_job_gets_the_command(project: Path):
    request = read_launch_request(["--config", "mine.yaml", "--rounds", "3", "--quiet"])
    command = "python -m lit_cfl run --config launched.yaml --quiet --run_dir '~/x/a job'"
    assert request.entrypoint("~/x/a job") == command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say what to run: lit-cfl launch --config FILE"),
        (["--config", "mine.yml"], "there is no file 'mine.yml'"),
        (["--config", "mine.yaml", "--resume", "runs/x"], r"leave out --config|--resume is for this machine"),
        (["--config", "mine.yaml", "--dry-run"], "--dry_run is for this machine"),
        (["--config", "mine.yaml", "--round", "3"], "did you mean --rounds"),
        (["--config", "study.yaml", "--ray.address", "auto"], "--ray.address is for this machine"),
        (["--config", "study.yaml", "--dry-run"], "--dry_run is for this machine"),
        (["--config", "study.yaml", "--limits.trials", "0"], "limits.trials is 0"),
        (["--config", "study.yaml", "--quiet"], "there is no option 'quiet'"),
        (["--config", "wrong.yaml"], "eta_g"),
        (["--config", "broken.yaml"], "broken.yaml is not a YAML file"),
    ],
)
def test_what_the_command_would_refuse_is_refused_before_anything_is_sent(
    words: list[str], message: str, project: Path
):
    (project / "study.yaml").write_text(yaml.safe_dump(STUDY))
    wrong = STUDY | {"space": {"algorithm.eta_gg": {"uniform": [0, 1]}}}
    (project / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    (project / "broken.yaml").write_text("a: [")
    with pytest.raises(InputError, match=message):
        read_launch_request(words)


def test_included_file_must_exist(project: Path):
    with pytest.raises(InputError, match=r"--include gone\.csv: there is no such file"):
        read_launch_request(["--config", "mine.yaml"], ["gone.csv"])


def test_a_job_larger_than_ray_takes_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch):
    (project / "big.bin").write_bytes(bytes(3 * 2**20))
    order = read_launch_request(["--config", "mine.yaml"], ["big.bin"])
    monkeypatch.setattr(launch_request, "_LIMIT_MIB", 3)
    # 3 MiB and our own code
    message = r"folder would be [45] MiB, but a Ray cluster accepts 3 at most; the largest file is big.bin"
    with pytest.raises(InputError, match=message), job_folder(order):
        pass


@pytest.fixture
def results_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "it's a run"
    for name in ("metrics.csv", "seed-1/config.yaml", "ray/pickle.pkl", ".lock", "trials/ray/a.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(3000))
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fetched(folder: Path) -> dict[str, bytes]:
    return {name: text for name, text in files_of(folder).items() if name not in ("ray/pickle.pkl", ".lock")}


def printed(shell: str, **environment: str) -> str:
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True, env=os.environ | environment)
    return done.stdout + done.stderr


def test_results_come_back_through_a_log_without_rays_own_records(results_folder: Path, tmp_path: Path):
    shell = packing_command(str(results_folder))
    log = printed(shell)
    of_ray = f"Running entrypoint for job x: {shell}\n"
    for number, text in enumerate(
        (f"INFO job\n{of_ray}{log}", f"{log[:900]}{of_ray}{log[900:]}")
    ):  # Ray's line need not be the first
        (tmp_path / str(number)).mkdir()
        unpack(text, tmp_path / str(number))
        assert files_of(tmp_path / str(number)) == fetched(results_folder)


def test_results_below_the_home_folder_of_the_cluster_are_found(results_folder: Path, tmp_path: Path):
    (tmp_path / "new").mkdir()
    unpack(printed(packing_command("~/it's a run"), HOME=str(tmp_path)), tmp_path / "new")
    assert files_of(tmp_path / "new") == fetched(results_folder)


def test_results_that_are_not_whole_or_too_large_are_none(
    results_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = printed(packing_command(str(results_folder)))
    for broken in (log[:4000], "", printed(packing_command(str(tmp_path / "gone")))):
        with pytest.raises(InputError, match="the results could not be read"):
            unpack(broken, tmp_path / "new")
    monkeypatch.setattr(cluster_jobs, "LIMIT_MIB", 0)
    with pytest.raises(InputError, match="more than 0 MiB compressed; copy them from the cluster"):
        unpack(printed(packing_command(str(results_folder))), tmp_path / "new")


@pytest.mark.parametrize("filters", [True, False], ids=["", "python 3.11.2"])
def test_an_archive_that_writes_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: bool):
    without_filters(monkeypatch, filters)
    (tmp_path / "new").mkdir()
    with pytest.raises(InputError, match="the results could not be read"):
        unpack(archived(tarfile.TarInfo("whole.txt"), tarfile.TarInfo("../escaped.txt")), tmp_path / "new")
    assert not (tmp_path / "escaped.txt").exists()


@pytest.mark.parametrize("filters", [True, False], ids=["", "python 3.11.2"])
def test_links_are_left_out_if_python_cannot_resolve_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: bool
):
    without_filters(monkeypatch, filters)
    link, folder = tarfile.TarInfo("link"), tmp_path / "new"
    link.type, link.linkname = tarfile.SYMTYPE, "whole.txt"
    folder.mkdir()
    unpack(archived(tarfile.TarInfo("whole.txt"), link), folder)
    assert (folder / "whole.txt").is_file()
    assert (folder / "link").is_symlink() == filters


def archived(*members: tarfile.TarInfo) -> str:
    packed_up = io.BytesIO()
    with tarfile.open(fileobj=packed_up, mode="w:gz") as archive:
        for member in members:
            archive.addfile(member)
    return f"lit-cfl archive begins\n{b64encode(packed_up.getvalue()).decode()}\nlit-cfl archive ends\n"


def without_filters(monkeypatch: pytest.MonkeyPatch, filters: bool) -> None:
    """Removes tarfile's filters, which Debian 12's Python lacks, unless `filters` is true."""
    if not filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filters")


def test_an_incomplete_result_leaves_no_files(tmp_path: Path):
    def stops() -> None:
        with renamed_when_complete(tmp_path / "runs" / "new") as folder:
            (folder / "half").write_text("")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stops()
    assert list((tmp_path / "runs").iterdir()) == []
    with renamed_when_complete(tmp_path / "runs" / "new") as folder:
        (folder / "whole").write_text("")
    assert list(files_of(tmp_path / "runs")) == ["new/whole"]
    with pytest.raises(InputError, match="new already exists; name another"):
        require_new(tmp_path / "runs" / "new")


class FakeJobs:
    """Stand-in for a cluster with scripted answers."""

    def __init__(self, address: str) -> None:
        self.address = address
        FakeJobs.calls = []

    def submit(self, job, shell, env, metadata, cpus, gpus):
        assert (Path(env["working_dir"]) / "launched.yaml").exists()
        self.calls.append(("submit", job, shell, env, metadata, cpus, gpus))

    def follow(self, job, say):
        say("round 1\n")
        if self.status == "INTERRUPTED":
            raise KeyboardInterrupt
        return self.details(job)

    def details(self, job):
        return SimpleNamespace(
            status=self.status, message="last lines", driver_exit_code=2, driver_node_id="n", metadata=self.metadata
        )

    def output_of(self, shell, node):
        self.calls.append(("output_of", node))
        return printed(shell)


class Outage:
    """Ray client whose connection breaks for some calls."""

    def __init__(self, calls_without_answer: int) -> None:
        self.left, self.asked = calls_without_answer, 0

    async def tail_job_logs(self, job):
        yield "round 1\n"

    def get_job_info(self, job):
        self.asked += 1
        if self.asked > 1 and self.left:
            self.left -= 1
            raise RuntimeError("connection refused")
        return SimpleNamespace(status=SimpleNamespace(is_terminal=lambda: self.asked > 1))


def test_a_job_is_followed_through_an_outage_and_a_long_one_names_the_command_to_follow_it_again(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("lit_cfl.tune.cluster_jobs._POLL_SECONDS", 0.001)
    jobs, said = object.__new__(Jobs), list[str]()
    jobs.address, jobs._client = "http://head:8265", Outage(3)
    assert jobs.follow("mine-1", said.append).status.is_terminal()
    assert said == ["round 1\n"]
    monkeypatch.setattr("lit_cfl.tune.cluster_jobs._SILENT_SECONDS", 0.01)
    jobs._client = Outage(10_000)
    with pytest.raises(
        InputError, match=r"connection refused\. The job may continue; .*--follow mine-1 --address http"
    ):
        jobs.follow("mine-1", said.append)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, results_folder: Path) -> type[FakeJobs]:
    monkeypatch.setattr(command, "Jobs", FakeJobs)
    FakeJobs.status, FakeJobs.metadata = "SUCCEEDED", {"lit-cfl folder": str(results_folder)}
    return FakeJobs


LAUNCH = ["--config", "mine.yaml", "--address", "http://head:8265"]


def test_a_job_is_sent_followed_and_fetched(jobs, project: Path, results_folder: Path, capsys):
    assert command.launch([*LAUNCH, "--run_dir", "back", "--cpus", "2", "--env", "A=b=c", "--pip", "r.txt"]) == 0
    (kind, job, shell, env, metadata, *resources), (_, node) = jobs.calls
    assert (kind, resources, node) == ("submit", [2.0, 0.0], "n")
    # otherwise Ray would kill a job three seconds after `ray job stop`
    assert env["env_vars"] == {"A": "b=c", "RAY_JOB_STOP_WAIT_TIME_S": "300"}
    assert env["pip"] == "r.txt"
    assert job.startswith("mine-2")
    assert shell == f"python -m lit_cfl run --config launched.yaml --run_dir '~/lit-cfl/{job}'"
    assert metadata == {"lit-cfl folder": f"~/lit-cfl/{job}"}
    assert files_of(project / "back") == fetched(results_folder)
    said = capsys.readouterr().out
    assert "sends lit-cfl itself, the configuration, and helper_of_launch.py, nets_of_launch/__init__.py" in said
    assert "round 1" in said


def test_ctrl_c_leaves_the_job_running_and_names_the_command_to_follow_it(jobs, project: Path, capsys):
    jobs.status = "INTERRUPTED"
    assert command.launch([*LAUNCH, "--run_dir", "my runs"]) == 130
    said, job = capsys.readouterr().out, jobs.calls[0][1]
    assert f"lit-cfl launch --follow {job} --address http://head:8265 --run_dir 'my runs'\n" in said
    assert f"ray job stop {job} --address http://head:8265" in said


def test_a_failed_job_says_why_and_its_exit_code_is_ours(jobs, project: Path, capsys):
    jobs.status = "FAILED"
    assert command.launch([*LAUNCH, "--run_dir", "back"]) == 2
    assert "the job failed: last lines" in capsys.readouterr().err
    assert (project / "back" / "metrics.csv").exists()
    jobs.metadata = jobs.metadata | {"lit-cfl folder": "/not/there"}
    assert command.launch([*LAUNCH, "--run_dir", "back2"]) == 2
    assert "nothing is fetched" in capsys.readouterr().err


def test_a_job_can_be_left_alone_and_followed_later(jobs, project: Path, results_folder: Path, capsys):
    assert command.launch([*LAUNCH, "--detach"]) == 0
    assert not (project / "runs").exists()
    assert command.launch(["--follow", "mine-1", "--address", "http://head:8265"]) == 0
    assert files_of(project / "runs" / "mine-1") == fetched(results_folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (LAUNCH[:2], "say where the cluster is: --address"),
        ([*LAUNCH, "--env", "NOT_SET_AT_ALL"], "the variable is not set here; give --env NOT_SET_AT_ALL=VALUE"),
        ([*LAUNCH, "--run_dir", "nets_of_launch"], "nets_of_launch already exists"),
        ([*LAUNCH, "--follow", "x"], "leave out --config mine.yaml"),
        ([*LAUNCH[2:], "--follow", "x"], "x was not started by lit-cfl launch"),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(
    words: list[str], message: str, jobs, project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    jobs.calls, jobs.metadata = [], {}
    with pytest.raises(InputError, match=message):
        command.launch(words)
    assert jobs.calls == []
